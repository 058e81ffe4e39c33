"""Commands: their words, what fills placeholders, which settings are known, and equal runs."""

from pathlib import Path

import pytest

import dsnb
from dsnb.settings import command, inputs
from dsnb.settings.command import Place
from dsnb.settings.exchange import deepspeed_auto, flags, training_arguments
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

PLACE = Place(RunPaths(Path("/runs/a b/run1")), 20_123)


def asked(words, **settings):
    return Experiment(**{"device": "cpu", "command": f"python train.py {words}", **settings})


def filled(words, **settings):
    return command.arguments(asked(words, **settings), PLACE)[2:]


def unknown(experiment):
    return {name for name, value in experiment.model_dump().items() if value is None}


@pytest.mark.parametrize(
    ("words", "settings", "expected"),
    [
        ("{run_dir}/out --port={port}", {}, ["/runs/a b/run1/out", "--port=20123"]),
        ("{total_steps} {steps}", {"steps": 7, "warmup_steps": 3}, ["10", "7"]),
        ("'a \"b\" c' d\\ e", {}, ['a "b" c', "d e"]),
        ("{{x}} '{{\"a\": {gpus}}}'", {"gpus": 2}, ["{x}", '{"a": 2}']),
        ("{learning_rate}", {"learning_rate": 0.000123456789}, ["0.000123456789"]),
        ("{script.x}", {"script.x": "; rm -rf $HOME `id` {gpus} --y 'z"},
         ["; rm -rf $HOME `id` {gpus} --y 'z"]),
        ("--x {script.x}", {"script.x": ""}, ["--x", ""]),
        ("{script.x} {script.y.z}", {"script": {"x": True, "y": {"z": 1.5}}}, ["true", "1.5"]),
    ],
)  # fmt: skip
def test_words_are_split_before_they_are_filled(words, settings, expected):
    assert filled(words, **settings) == expected


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [
        ("activation_checkpointing", True, False),
        ("compile", "default", "off"),
        ("script.packing", True, False),
        ("script.size", 2, 0),
        ("script.kernels", "liger", "none"),
        ("strategy", "ddp", None),
    ],
)
def test_a_switch_is_a_word_only_while_its_setting_is_on(name, on, off):
    words = f"a {{{name}?--flag}} {{{name}?--two=}}{{{name}?2}} z"
    assert filled(words, **{name: on}) == ["a", "--flag", "--two=2", "z"]
    if off is not None:
        assert filled(words, **{name: off}) == ["a", "z"]


def test_files_are_named_by_their_paths_and_left_out_where_they_do_not_apply(tmp_path):
    (tmp_path / "hosts").write_text("one slots=4\ntwo slots=4\nthree slots=4\n")
    words = "{deepspeed_auto_json?--deepspeed=}{deepspeed_auto_json} {hostfile?--hosts=}{hostfile}"
    with_both = asked(words, zero_stage=2, hostfile=str(tmp_path / "hosts"), gpus=8, exclude="two")
    run = PLACE.run
    assert command.arguments(with_both, PLACE)[2:] == [
        f"--deepspeed={run.deepspeed_auto}",
        f"--hosts={run.hosts}",
    ]
    assert command.files(with_both, run) == {
        "deepspeed_auto": deepspeed_auto(with_both.complete),
        "hosts": "one slots=4\nthree slots=4\n",
    }
    neither = asked(words, strategy="ddp")
    assert command.arguments(neither, PLACE)[2:] == []
    assert command.files(neither, run) == {}
    accelerated = asked("{accelerate_yaml}", zero_stage=3)
    files = command.files(accelerated, run)
    place = str(run.deepspeed_accelerate)
    assert files["accelerate"]["deepspeed_config"]["deepspeed_config_file"] == place
    assert files["deepspeed_accelerate"]["zero_optimization"]["stage"] == 3
    plain = command.files(asked("{deepspeed_json}", micro_batch_size=3), run)["deepspeed"]
    assert plain["train_micro_batch_size_per_gpu"] == 3


def test_arguments_of_the_trainer_are_several_words():
    experiment = asked("a {trainer_args} z", micro_batch_size=3, activation_checkpointing=True)
    words = command.arguments(experiment, PLACE)[2:]
    assert words == ["a", *flags(training_arguments(experiment.complete)), "z"]
    assert words[words.index("--per_device_train_batch_size") + 1] == "3"


def test_what_is_neither_stated_nor_told_to_the_script_is_unknown():
    told = {"gradient_clipping", "learning_rate", "activation_checkpointing", "grad_accum"}
    own = {"steps", "warmup_steps", "gpus", "nodes", "device", "time_limit_s", "profile"}
    nothing = unknown(asked(""))
    assert {"model", "strategy", "precision", "micro_batch_size", "allocator"} | told <= nothing
    assert not own & nothing
    by_name = asked("{precision} {compile?--compile}")
    assert nothing - unknown(by_name) == {"precision", "compile"}
    assert (by_name.precision, by_name.compile) == ("bf16", "off")
    stated = asked("", seq_len=64, model="no/such/folder", attention="sdpa", zero_stage=None)
    assert nothing - unknown(stated) == {"seq_len", "model", "attention"}
    by_flags = nothing - unknown(asked("{trainer_args}"))
    assert told < by_flags
    assert "strategy" not in by_flags  # DDP and DeepSpeed may have the same flags
    assert "micro_batch_size" in by_flags
    by_file = asked("{deepspeed_auto_json}", zero_stage=1)
    assert {"strategy", "overlap_comm"} <= nothing - unknown(by_file)
    assert "micro_batch_size" in unknown(by_file)  # left to the arguments
    assert Experiment(device="cpu").complete == Experiment(device="cpu")
    assert unknown(Experiment(device="cpu")) == set()


def test_what_is_unknown_is_in_no_name():
    assert asked("", gpus=2).name == "gpus2"
    named = asked("{script.a} {script.b.c}", script={"a": "x/y z", "b": {"c": True}}, seq_len=64)
    assert named.name == "gpus1_sl64_a-x-y-z_c-on"
    assert asked("", activation_checkpointing=True).name == "gpus1_ac"
    assert named.name_with_model == named.name


def test_a_sweep_has_axes_of_its_script(tmp_path):
    params = tmp_path / "p.yaml"
    params.write_text("""
name: mine
command: torchrun train.py --bs {micro_batch_size} {script.attn} {script.pack?--pack}
defaults: {device: cpu, script: {pack: true}}
grid: {script.attn: [sdpa, eager], micro_batch_size: [1, 2]}
exclude: [{script.attn: eager, micro_batch_size: 2}]
include: [{script: {attn: flash, pack: [true, false]}, micro_batch_size: 4}]
""")
    sweep = dsnb.load_sweep(params)
    assert sorted(run.name for run in sweep.runs) == [
        "gpus1_bs1_attn-eager_pack-on",
        "gpus1_bs1_attn-sdpa_pack-on",
        "gpus1_bs2_attn-sdpa_pack-on",
        "gpus1_bs4_attn-flash_pack-off",
        "gpus1_bs4_attn-flash_pack-on",
    ]
    assert sweep.params["command"].startswith("torchrun ")
    assert {run.experiment.command for run in sweep.runs} == {sweep.params["command"]}
    changed = dsnb.load_sweep(params, {"command": "other {script.attn} {script.pack}"}, "*bs4*on")
    (run,) = changed.runs
    assert command.arguments(run.experiment, PLACE) == ["other", "flash", "true"]


def test_papermill_states_what_it_passes_and_the_cell_what_is_no_default():
    cell = "zero_stage: int = 0\ncommand: str = ''\nseq_len: int = 128\ndevice: str = 'cpu'"
    words = "python train.py {script.lr}"
    passed = f"# Parameters\nseq_len = 128\ncommand = {words!r}\nscript = {{'lr': 1}}"
    names = {"zero_stage": 0, "seq_len": 128, "micro_batch_size": 3, "device": "cpu"}
    names |= {"command": words, "script": {"lr": 1}, "In": ["", cell, passed]}
    experiment = Experiment.from_namespace(names)
    known = (experiment.seq_len, experiment.micro_batch_size, experiment.script)
    assert known == (128, 3, {"lr": 1})
    assert experiment.zero_stage is None


def test_files_that_a_command_names_are_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "options.yaml", "mine.json", "python"):
        (tmp_path / name).write_text("{}")
    experiment = asked("--config=options.yaml other.py {run_dir}", model="mine.json")
    before = inputs.digests(experiment)
    assert sorted(before) == ["mine.json", "options.yaml", "train.py"]
    (tmp_path / "train.py").write_text("print()")
    assert inputs.changed(before, inputs.digests(experiment)) == ["train.py"]
