"""Settings: names, defaults, and every wrong one said in one sentence."""

import json

import pytest

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

V100 = hardware.InstalledGpu(0, "Tesla V100-SXM2-32GB", "GPU-1", 32.0, (7, 0))
ALLOWED = "give a causal language model, such as GPT-2, Llama or Mixtral"
IF_SET = f"set is_decoder to true in its configuration, or {ALLOWED}"
ENCODER = f"is an encoder: its tokens also attend to later ones; {IF_SET}"
REFUSED = {
    "bert": ({"model_type": "bert"}, f"bert {ENCODER}"),
    "roberta": ({"model_type": "roberta", "is_decoder": False}, f"roberta {ENCODER}"),
    "xlnet": ({"model_type": "xlnet"}, f"in xlnet, tokens also attend to later ones; {ALLOWED}"),
    "t5": ({"model_type": "t5", "is_encoder_decoder": True}, f"t5 is an encoder-decoder; {ALLOWED}"),
    "list": ([1], f"its configuration is not a JSON object; {ALLOWED}"),
    "none": ({"hidden_size": 64}, f"its configuration has no model_type; {ALLOWED}"),
}


def problems(**settings):
    with pytest.raises(SettingsError) as caught:
        Experiment(**settings)
    return caught.value.problems


def test_names_and_derived_numbers():
    settings = {"precision": "fp16", "gpus": 1, "micro_batch_size": 32, "seq_len": 128}
    assert Experiment(zero_stage=0, **settings).name == "zs0_fp16_gpus1_bs32_sl128"
    assert Experiment(zero_stage=2, **{**settings, "precision": "bf16", "gpus": 8}).name == "zs2_bf16_gpus8_bs32_sl128"
    experiment = Experiment(
        model="opt-350m", grad_accum=16, activation_checkpointing=True, attention="eager", data="stdlib", seed=3
    )
    assert experiment.name == "zs0_bf16_gpus1_bs8_sl128_ga16_ac_eager_stdlib_seed3"
    assert experiment.name_with_model == "opt-350m_" + experiment.name
    experiment = Experiment(micro_batch_size=4, grad_accum=3, gpus=2, seq_len=10, learning_rate="1e-4")  # as YAML reads
    assert (experiment.global_batch_size, experiment.tokens_per_step, experiment.learning_rate) == (24, 240, 1e-4)


def test_auto_is_resolved(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: (V100,) * 8)
    assert Experiment(gpus="auto", device="cpu").gpus == min(2, hardware.cores())
    assert (Experiment(gpus="auto").gpus, Experiment().device) == (8, "cuda")


def test_all_problems_are_reported_at_once():
    found = problems(batch_size=1, zero_stgae=1, zero_stage=4, seq_len=4096, precision="int8", model="gpt2")
    assert found == [
        "unknown setting 'batch_size': did you mean 'micro_batch_size'?",
        "unknown setting 'zero_stgae': did you mean 'zero_stage'?",
        "zero_stage is 4: allowed are 0, 1, 2 or 3",
        "precision is 'int8': allowed are 'fp32', 'tf32', 'fp16' or 'bf16'",
        "seq_len is 4096: gpt2 has 1024 positions; use at most 1024",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"launcher": "deepspeed"},
            "launcher is no longer a setting: ranks are forked on one machine and started by torchrun on several; "
            "leave it out",
        ),
        ({"micro_batch_size": 0}, "micro_batch_size is 0: it must be at least 1"),
        (
            {"micro_batch_size": "auto"},
            "micro_batch_size is 'auto': give a whole number; `dsnb recommend` and `dsnb predict` tell what fits",
        ),
        ({"activation_checkpointing": 1}, "activation_checkpointing is 1: give true or false"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': give a number"),
        ({"dropout": 1.0}, "dropout is 1.0: it must be less than 1.0"),
        ({"time_limit_s": 0}, "time_limit_s is 0: it must be more than 0.0"),
        ({"nvme_path": "x" * 10_000}, "nvme_path is set, but offload is 'none': drop it, or offload to NVMe"),
        ({"optimizer": "onebit-adam"}, "optimizer is 'onebit-adam': allowed are 'adamw', 'adafactor' or 'muon'"),
        (
            {"data": "no/such.txt"},
            "data is 'no/such.txt': no such file; give 'synthetic', 'stdlib' or the path of a text file",
        ),
        (
            {"model": "gpt2-tiny", "weights": "pretrained"},
            "weights is 'pretrained': there are no trained weights for gpt2-tiny; use 'random'",
        ),
        (
            {"tokenizer": "openai-community/gpt2"},
            "tokenizer is 'openai-community/gpt2', but synthetic data has no text: "
            "set 'data' to a text file, or drop it",
        ),
        ({"include": "w"}, "include is 'w', but there is no hostfile: name the hosts in 'hostfile'"),
        ({"nodes": 2}, "nodes is 2, but there is no hostfile: name the hosts in 'hostfile'"),
        ({"ssh_user": "-oProxyCommand=x"}, "ssh_user is '-oProxyCommand=x': write it like 'root'"),
        ({"ssh_user": "root\n"}, "ssh_user is 'root\\n': write it like 'root'"),
        ({"interface": "$(x)"}, "interface is '$(x)': write it like 'ib0'"),
        ({"forward_env": "A=B"}, "forward_env is 'A=B': write it like 'WANDB_MODE,MY_*'"),
    ],
)
def test_one_sentence_for_each_problem(settings, message):
    assert problems(**settings) == [message]


def test_unknown_model_names_the_nearest():
    (message,) = problems(model="gpt2-xxl")
    assert message.startswith("model is 'gpt2-xxl': did you mean 'gpt2-xl'? give a preset such as falcon-7b, ")
    assert message.endswith("or a hub id of the form owner/name")


def test_a_notebook_takes_what_a_sweep_recorded_if_it_says_the_same(tmp_path):
    planned = Experiment(model="gpt2-tiny", zero_stage=2, hostfile="slurm")
    resolved = {**planned.model_dump(), "device": "cuda", "asked": {"device": "auto"}}
    records.write_json(RunPaths(tmp_path).experiment, resolved)
    names = {"model": "gpt2-tiny", "zero_stage": 2, "hostfile": "slurm", "device": "auto", "data": "synthetic"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "contradictions", None)  # nothing is checked again
        assert Experiment.from_namespace({**names, "run_dir": str(tmp_path)}) == planned
    assert Experiment.from_namespace({**names, "zero_stage": 1, "run_dir": str(tmp_path)}).zero_stage == 1
    with pytest.raises(SettingsError, match="zero_stage is 7"):
        Experiment.from_namespace({**names, "zero_stage": 7, "run_dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("gpus", "settings", "expected"),
    [
        ((), {"device": "cpu", "precision": "tf32"}, ["precision is 'tf32': only NVIDIA GPUs have it; use 'fp32' or"]),
        ((), {"device": "cpu", "precision": "fp32", "gpus": 999}, ["gpus is 999: "]),
        ((), {"device": "cpu", "precision": "fp16"}, ["precision is 'fp16': this CPU has no fp16 arithmetic; use"]),
        ((), {"device": "cuda"}, ["device is 'cuda': this machine has no usable NVIDIA GPU; use 'cpu' or 'auto'"]),
        (
            (V100,),
            {"device": "cuda", "gpus": 2, "precision": "bf16"},
            [
                "gpus is 2: this machine has 1; use at most 1, 'auto', or a hostfile",
                "precision is 'bf16': Tesla V100-SXM2-32GB does not support it; use 'fp16' or 'fp32'",
            ],
        ),
    ],
)
def test_what_a_machine_cannot_do(monkeypatch, gpus, settings, expected):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cpu_facts", lambda: {"flags": "avx2"})
    found = checks.unsupported(Experiment(**settings).model_dump())
    assert len(found) == len(expected)
    assert all(problem.startswith(words) for problem, words in zip(found, expected, strict=True))


def test_what_sees_its_targets_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be shortened
    for name, (config, why) in REFUSED.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
        assert problems(model=f"{name}.json") == [f"model is '{name}.json': {why}"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "is_decoder": True},
        {"model_type": "bart", "is_encoder_decoder": False, "is_decoder": True},
        {"model_type": "xlm", "causal": True},
        {"model_type": "mamba2"},
        {"model_type": "gpt_neox", "is_decoder": False},
    ],
    ids=lambda config: config["model_type"],
)
def test_decoders_are_allowed(small, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert small(model=str(tmp_path)).model == str(tmp_path)
