"""Keys of DeepSpeed's configuration: both notations, as axes, what dsnb decides itself, misspellings."""

import pytest

from dsnb.errors import SettingsError
from dsnb.launcher.folder import deepspeed_config
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment
from dsnb.sweep.params import load_sweep
from dsnb.train import ask_deepspeed

OVERLAP = "zero_optimization.overlap_comm"


def test_keys_are_merged_over_dsnbs_own_and_change_nothing_given():
    experiment = Experiment(zero_stage=1, device="cpu", deepspeed={"zero_optimization": {"overlap_comm": True}})
    config, plain = deepspeed_config(experiment), deepspeed_config(Experiment(zero_stage=1, device="cpu"))
    assert plain["zero_optimization"] == {"stage": 1}
    assert config == {**plain, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    mixed = deepspeed_keys.flattened({"deepspeed": {OVERLAP: True}, "deepspeed.zero_optimization": {"x": [1]}})
    assert mixed == {"deepspeed": {OVERLAP: True, "zero_optimization.x": [1]}}


def test_they_are_part_of_the_name():
    keys = {OVERLAP: True, "zero_optimization.reduce_bucket_size": 1000, "communication_data_type": "bf16"}
    name = Experiment(zero_stage=1, device="cpu", deepspeed=keys).name
    assert name.endswith("_communication_data_type-bf16_overlap_comm-on_reduce_bucket_size-1000")
    hostile = Experiment(zero_stage=1, device="cpu", deepspeed={"a.b": "../../x y\n"}).name
    assert hostile.endswith("_b-..-..-x-y")
    assert "/" not in hostile


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"deepspeed": {"zero_optimization.stage": 2}},
            "deepspeed.zero_optimization.stage is 2: dsnb decides zero_opt",
        ),
        ({"deepspeed": {"tensorboard": {"a": "/etc"}}}, "deepspeed.tensorboard.a is '/etc': dsnb decides tensorboard "),
        ({"deepspeed": 5}, "deepspeed is 5: give sections and keys of DeepSpeed's configuration, or leave it out"),
        ({"deepspeed": {"a": {}}}, "deepspeed.a is an empty section: give it a key, or leave it out"),
        ({"strategy": "ddp", "deepspeed": {"a": 1}}, "deepspeed is {'a': 1}, but strategy is 'ddp': these are keys of"),
    ],
    ids=str,
)
def test_what_is_refused_in_one_sentence(settings, message):
    with pytest.raises(SettingsError) as caught:
        Experiment(**{"device": "cpu", "zero_stage": int("strategy" not in settings), **settings})
    (problem,) = caught.value.problems
    assert problem.startswith(message)


@pytest.mark.process
def test_misspellings_are_found_in_another_process_that_imports_nothing_of_the_current_folder(tmp_path, monkeypatch):
    for name in ("json.py", "dsnb/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    wrong = {"zero_optimization.overlap_com": True, "zero_optimization.reduce_bucket_size": "x"}
    assert sorted(deepspeed_keys.unknown_keys(1, wrong)) == [
        "deepspeed.zero_optimization.overlap_com is no key of DeepSpeed: did you mean 'overlap_comm'?",
        "deepspeed.zero_optimization.reduce_bucket_size is 'x': input should be a valid integer, unable to parse "
        "string as an integer",
    ]
    assert not (tmp_path / "imported").exists()


@pytest.mark.process
def test_keys_that_deepspeed_never_reads_are_misspelled():
    import deepspeed  # noqa: F401  (the worker of a test run that has loaded it runs this file)

    right = {
        "zero_optimization.reduce_scatter": False, "zero_optimization.stage3_max_live_parameters": 10,
        "communication_data_type": "fp32", "torch_autocast.lower_precision_safe_modules": ["torch.nn.Linear"],
        "optimizer.params.torch_adam": True, "compile.free_activation": True, "checkpoint.tag_validation": "Ignore",
        "scheduler.type": "WarmupLR", "scheduler.params.warmup_num_steps": 3, "aio.block_size": 2**20,
    }  # fmt: skip
    unread = {"communication_datatype": "fp32", "aio.blocksize": 1, "zero_optimisation.overlap_comm": True}
    assert sorted(ask_deepspeed.check(3, {**right, **unread})) == [
        "deepspeed.aio.blocksize is no key of DeepSpeed: did you mean 'block_size'?",
        "deepspeed.communication_datatype is no key of DeepSpeed: did you mean 'communication_data_type'?",
        "deepspeed.zero_optimisation is no key of DeepSpeed: did you mean 'zero_optimization'?",
    ]


def test_a_key_is_an_axis_of_a_sweep(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(
        "name: keys\norder: listed\n"
        "defaults: {model: gpt2-tiny, device: cpu, precision: fp32, deepspeed: {communication_data_type: fp32}}\n"
        "grid:\n  zero_stage: [1, 2]\n  deepspeed: {zero_optimization: {overlap_comm: [false, true]}}\n"
        "exclude: [{zero_stage: 2, deepspeed.zero_optimization.overlap_comm: true}]\n"
    )
    keys = [(run.experiment.zero_stage, run.experiment.deepspeed) for run in load_sweep(path).runs]
    fp32 = {"communication_data_type": "fp32"}
    assert keys == [(1, {**fp32, OVERLAP: False}), (1, {**fp32, OVERLAP: True}), (2, {**fp32, OVERLAP: False})]
    changed = load_sweep(path, {f"deepspeed.{OVERLAP}": True, "deepspeed.communication_data_type": ["fp16", "bf16"]})
    assert [run.experiment.deepspeed["communication_data_type"] for run in changed.runs] == ["fp16", "bf16"]
