"""Settings: names, defaults, derived values, and what DeepSpeed is configured with."""

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.settings import checks
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import IN_NAMES, PARTS, Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.tables import SHOWN

V100 = hardware.InstalledGpu(0, "Tesla V100-SXM2-32GB", "GPU-1", 32.0, (7, 0))


def problems(**settings):
    with pytest.raises(SettingsError) as caught:
        Experiment(**settings)
    return caught.value.problems


def test_names_and_derived_numbers(monkeypatch):
    assert (
        Experiment(zero_stage=2, precision="fp16", gpus=8, micro_batch_size=32).name
        == "zs2_fp16_gpus8_bs32_sl128"
    )
    experiment = Experiment(
        model="opt-350m",
        grad_accum=16,
        activation_checkpointing=True,
        attention="eager",
        data="stdlib",
        seed=3,
    )
    assert experiment.name == "zs0_bf16_gpus1_bs8_sl128_ga16_ac_eager_stdlib_seed3"
    assert experiment.name_with_model == "opt-350m_" + experiment.name
    fsdp = {"strategy": "fsdp", "gpus": 2, "grad_accum": 2}
    assert Experiment(**fsdp).name == "fsdp_bf16_gpus2_bs8_sl128_ga2"
    assert (
        Experiment(**fsdp, reduce_gradients="step").name
        == "fsdp_bf16_gpus2_bs8_sl128_ga2_reduce-step"
    )
    experiment = Experiment(
        micro_batch_size=4, grad_accum=3, gpus=2, seq_len=10, learning_rate="1e-4"
    )  # as YAML reads
    assert (experiment.global_batch_size, experiment.tokens_per_step, experiment.learning_rate) == (
        24,
        240,
        1e-4,
    )
    monkeypatch.setattr(hardware, "gpus", lambda: (V100,) * 8)
    assert Experiment(gpus="auto", device="cpu").gpus == min(2, hardware.cores())
    assert (Experiment(gpus="auto").gpus, Experiment().device) == (8, "cuda")


def test_words_are_those_of_settings():
    assert set(SHOWN) <= set(Experiment.model_fields)
    assert set(PARTS) <= set(IN_NAMES)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("zero", "zero_stage"),  # zeropp is as similar, but does not continue the word
        ("step", "steps"),  # a letter less, rather than the beginning of step_timeout_s
        ("grad", "grad_accum"),
        ("batch", "micro_batch_size"),
        ("tensor", "tensor_parallel"),
        ("memory", "memory_limit_gib"),
    ],
)
def test_the_beginning_of_a_name_suggests_the_setting_that_continues_it(typed, meant):
    assert problems(**{typed: 3}) == [f"unknown setting {typed!r}: did you mean {meant!r}?"]


def test_a_variable_of_a_notebook_may_be_the_beginning_of_a_setting():
    assert Experiment.from_namespace({"memory": 3, "tensor": 3}) == Experiment()


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ({"device": "cpu"}, "gpt2-tiny"),
        ({"device": "cuda"}, "gpt2"),
        ({"device": "cpu", "model": "opt-125m"}, "opt-125m"),
        ({"device": "cpu", "command": "python train.py"}, None),
    ],
)
def test_a_notebook_that_names_no_model_trains_a_small_one_on_a_cpu(given, model):
    assert Experiment.from_namespace({"model": "", **given}).model == model


def test_a_notebook_takes_what_a_sweep_recorded_if_it_says_the_same(tmp_path):
    planned = Experiment(model="gpt2-tiny", zero_stage=2, device="cuda")
    json_files.write_json(RunPaths(tmp_path).experiment, planned.model_dump())
    names = {"model": "gpt2-tiny", "zero_stage": 2, "device": "cuda", "data": "synthetic"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "contradictions", None)  # nothing is checked again
        assert Experiment.from_namespace({**names, "run_dir": str(tmp_path)}) == planned
    assert (
        Experiment.from_namespace({**names, "zero_stage": 1, "run_dir": str(tmp_path)}).zero_stage
        == 1
    )
    with pytest.raises(SettingsError, match="zero_stage is 7"):
        Experiment.from_namespace({**names, "zero_stage": 7, "run_dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("settings", "is_fp32"),
    [
        ({"zero_stage": 1}, False),
        ({"zero_stage": 1, "grad_accum": 2}, True),
        ({"zero_stage": 0, "grad_accum": 2}, False),
        ({"zero_stage": 2, "grad_accum": 2, "precision": "fp16"}, False),
        ({"zero_stage": 2, "grad_accum": 2, "mixed_precision": "autocast"}, False),
        ({"zero_stage": 1, "grad_accum": 2, "grad_accum_dtype": "bf16"}, False),
        ({"zero_stage": 1, "grad_accum_dtype": "fp32"}, True),
    ],
    ids=str,
)
def test_several_micro_batches_are_accumulated_in_fp32(settings, is_fp32):
    config = deepspeed_config(Experiment(device="cuda", **settings))
    assert (config.get("data_types") == {"grad_accum_dtype": "fp32"}) is is_fp32


def test_every_axis_reaches_deepspeed(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=8\nb slots=8\n")
    zero = {"zero_stage": 3, "device": "cuda", "gpus": 16, "nodes": 2, "hostfile": str(hosts)}
    config = deepspeed_config(
        Experiment(**zero, zeropp="all", overlap_comm=False, bucket_elements=7)
    )
    assert config["zero_optimization"] == {
        "stage": 3, "overlap_comm": False, "reduce_bucket_size": 7, "allgather_bucket_size": 7,
        "zero_quantized_weights": True, "zero_quantized_gradients": True, "zero_hpz_partition_size": 8,
    }  # fmt: skip
    config = deepspeed_config(Experiment(zero_stage=2, device="cuda", gradient_checks="off"))
    assert config["zero_optimization"] == {"stage": 2, "compute_grad_norm": False}
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": False}
    config = deepspeed_config(
        Experiment(zero_stage=1, device="cuda", compile="deepcompile", optimizer="muon")
    )
    assert config["compile"] == {"deepcompile": True}
    assert config["optimizer"]["type"] == "Muon"


@pytest.mark.parametrize(
    ("settings", "by_blocks", "gathered_whole"),
    [
        ({"zero_stage": 3}, True, True),
        ({"zero_stage": 3, "compile_unit": "model"}, False, False),
        ({"zero_stage": 3, "compile_unit": "model", "leaf_modules": "blocks"}, False, True),
        ({"zero_stage": 3, "compile": "off"}, False, False),
        ({"strategy": "fsdp"}, True, True),
        ({"zero_stage": 2}, False, False),
        ({"zero_stage": 1, "activation_checkpointing": True}, True, True),
        (
            {"zero_stage": 1, "activation_checkpointing": True, "compile": "reduce-overhead"},
            False,
            False,
        ),
    ],
    ids=str,
)
def test_what_gathers_or_recomputes_blocks_is_compiled_by_blocks(
    settings, by_blocks, gathered_whole
):
    chosen = Experiment(**{"device": "cpu", "compile": "default", **settings})
    assert (chosen.compiles_blocks, chosen.gathers_blocks) == (by_blocks, gathered_whole)
