"""Counts of FLOPs and bytes against the formulas of the literature."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import host_time
from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import work as module
from dsnb.prediction.shapes import shape
from dsnb.settings.experiment import Experiment

TOKENS = 8 * 1024
OPT = PRESETS["opt-1.3b"]
BLOCKS, HEAD = 24 * 12 * 2048**2, 50272 * 2048
"""The weights that a token is multiplied with, without biases and norms."""


def work(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 8, "seq_len": 1024, "device": "cuda"}
    return SimpleNamespace(**module.work(Experiment(**{**common, **settings})))


def test_products_are_six_flops_a_weight_and_token():
    plain = work().matmul_flops
    assert plain == pytest.approx(6 * (BLOCKS + HEAD) * TOKENS)
    # Frozen weights have no weight gradients.
    adapters = 24 * 64 * 18 * 2048
    tuned = work(lora_rank=64, strategy="plain").matmul_flops
    assert tuned == pytest.approx((4 * (BLOCKS + HEAD) + 6 * adapters) * TOKENS)
    for every, share in (
        (1, 1.0),
        (2, 0.5),
        (5, 5 / 24),
    ):  # a forward pass of the recomputed blocks
        again = work(activation_checkpointing=True, checkpoint_every=every).matmul_flops
        assert again - plain == pytest.approx(2 * BLOCKS * TOKENS * share)
    split = work(tensor_parallel=2, gpus=2).matmul_flops
    assert split - 6 * HEAD * TOKENS == pytest.approx((plain - 6 * HEAD * TOKENS) / 2)


def test_eager_adapters_move_what_peft_casts_scales_and_adds():
    of_opt = 18 * 2048  # inputs and outputs of a block's six linear layers
    native, cast = (
        work(lora_rank=8, **how).elementwise_bytes for how in ({}, {"mixed_precision": "autocast"})
    )
    assert cast - native == pytest.approx(2 * 6 * of_opt * TOKENS * 24)
    of_attention = 2 * (128 + 128) + 2 * (128 + 64)  # experts have no adapters
    for model, numbers, bytes_each, compiled in (
        ("opt-1.3b", of_opt, 5, "off"), ("opt-1.3b", of_opt, 0, "default"), ("moe-tiny", of_attention, 5, "off"),
    ):  # fmt: skip
        given = Experiment(
            model=model, lora_rank=8, device="cuda", compile=compiled, activation_checkpointing=True
        )
        moved = module._adapter_bytes(module._Step(given))
        assert moved == pytest.approx(3 * bytes_each * numbers)


def test_eager_attention_adds_what_the_convention_of_mfu_counts_and_fused_the_causal_half_in_seven_products():
    extra = work(attention="eager").matmul_flops - work().matmul_flops
    assert extra == pytest.approx(12 * OPT.layers * OPT.hidden * 1024 * TOKENS)
    square = 8 * 1024 * 1024 * OPT.hidden * OPT.layers
    assert work().attention_flops == pytest.approx(7 * 2 * square * (1024 + 128) / 2 / 1024)


@pytest.mark.parametrize(
    ("model", "precision", "keys"),
    [
        ("opt-2.7b", "tf32", 1.3 * (1024 + 128) / 2),
        ("bloom-560m", "fp32", 1.1 * 1024),
        ("bloom-560m", "bf16", 2 * 1024),
    ],
)
def test_attention_by_width_of_heads_and_mask(model, precision, keys):
    width = PRESETS[model].hidden * PRESETS[model].layers
    assert work(model=model, precision=precision).attention_flops == pytest.approx(
        7 * 2 * TOKENS * width * keys
    )


def test_tensors_that_a_step_waits_for():
    def waits(**settings):
        return work(**settings).host_parameters / (24 * 16 + 4)  # embeddings, the last norm

    autocast = {"optimizer": "adafactor", "mixed_precision": "autocast"}
    assert waits(optimizer="adafactor") == pytest.approx(
        waits() + waits(**autocast)
    )  # overflows, and its own norms
    assert waits(zero_stage=1, gpus=4) == pytest.approx(
        waits(zero_stage=1) / 4
    )  # those of a partition
    assert (
        waits(lora_rank=8) > waits(lora_rank=8, mixed_precision="autocast") == 0
    )  # adapters in fp32 do not overflow


def test_fsdp_adds_gradients_to_shards_or_to_whole_ones():
    """12 bytes: read and write an fp32 number, read another. Three of four micro-batches add to earlier gradients."""
    each = {"strategy": "fsdp", "gpus": 4, "grad_accum": 4}
    shards, whole = (
        work(**each, reduce_gradients=how).elementwise_bytes for how in ("micro-batch", "step")
    )
    parameters = shape("opt-1.3b").parameters
    assert whole - shards == pytest.approx(4 * 3 / 4 * 12 * parameters * (1 - 1 / 4))


def test_the_shape_of_a_configuration_file_is_that_of_its_preset(tmp_path):
    for name in ("gpt2-medium", "opt-350m", "bloom-560m"):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(PRESETS[name].config()))
        assert shape(str(path)) == shape(name)
    path = tmp_path / "without_sizes.json"
    path.write_text('{"model_type": "opt"}')
    with pytest.raises(
        SettingsError,
        match=r"cannot read the shape of a opt model from .*: it has no layers, hidden",
    ):
        shape(str(path))
    with pytest.raises(SettingsError, match="a prediction needs a preset or a configuration file"):
        shape("someone/model")


@pytest.mark.docs
def test_launches_are_those_of_narrow_models_on_a_gpu():
    table = host_time.counted()
    assert np.exp(np.abs(np.log(table["counted"] / table["measured"])).mean()) == pytest.approx(
        1.155, abs=0.005
    )
