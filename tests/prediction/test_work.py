"""Counts of FLOPs and bytes against the formulas of the literature."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import shapes
from dsnb.prediction import work as module
from dsnb.prediction.shapes import Counts, shape
from dsnb.settings.experiment import Experiment
from tests.support import lazy

host_time = lazy.Module("benchmarks.host_time")
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
    cheap = {"activation_checkpointing": True, "checkpoint_ops": "cheap"}
    whole, kept = work(activation_checkpointing=True), work(**cheap)
    assert kept.matmul_flops == plain
    assert kept.attention_flops == work().attention_flops < whole.attention_flops
    assert kept.elementwise_bytes == whole.elementwise_bytes > work().elementwise_bytes
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
    assert waits(optimizer="adamw-8bit", strategy="fsdp", gpus=4) == module.TENSORS.adamw_8_bit
    pure = {"zero_stage": 1, "mixed_precision": "none"}  # gradients in half precision are searched
    assert waits(**pure) == waits(zero_stage=1) > waits(zero_stage=1, precision="fp32")
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


def test_zero_3_orders_what_its_ranks_share_five_times_in_each_micro_batch():
    """Reads and writes 2 bytes of a parameter: weights for both passes, gradients three times."""

    def moved(stage, gpus):
        return work(zero_stage=stage, gpus=gpus, grad_accum=3, precision="bf16").elementwise_bytes

    parameters = shape("opt-1.3b").parameters
    assert moved(3, 4) - moved(3, 1) == pytest.approx(3 * 5 * 2 * 2 * parameters)
    assert moved(2, 4) == moved(2, 1)


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


ROUND = {
    "WORK": {"attention_tile": 8, "compiled_traffic": 0.5, "adapter_kernels": 7, "outside_kernels": 1000},
    "LAUNCHES": {
        "kernel": 1, "modules": 100, "recomputed_kernel": 2, "recomputed_block": 20, "kept_kernel": 7, "adapter": 12,
        "compiled_adapter": 6, "hook": 3, "idle_hook": 1, "cast": 0.5, "split": 40, "tensor_reduction": 8,
        "compiled_block": 12, "recomputed_compiled_block": 30, "fsdp_block": 64, "cuda_graphs": 5,
    },
    "TENSORS": {
        "flat": 0.125, "flat_with_norms": 0.5, "overflow_search": 0.25, "zero_3": 2, "adafactor": 3, "adamw_8_bit": 4,
    },
    "GATHERS": {"block": 3, "among_ranks": 1.5},
}  # fmt: skip
"""Tuned numbers in place of those of `tuned.toml`, so that counts can be done in the head."""
SMALL = Counts(
    family="small",
    layers=2,
    hidden=10,
    vocab=16,
    parameters=1000,
    head=160,
    weights=100,
    held=100,
    numbers=40,
    linear=3,
    adapted=50,
    tensors=5,
    root_tensors=2,
    attention=[(10, None, 2)] * 2,
    traffic={
        "half": {"eager": [4.0, 6.0, 20.0, 30.0], "compiled": [2.0, 3.0, 10.0, 15.0]},
        "autocast": {"eager": [5.0, 7.0, 26.0, 34.0], "compiled": [2.0, 3.0, 10.0, 15.0]},
        "full": {"eager": [8.0, 12.0, 20.0, 30.0], "compiled": [4.0, 6.0, 10.0, 15.0]},
    },
)
"""Two blocks; forward and backward bytes of a token, forward and backward kernels."""


@pytest.fixture
def small(monkeypatch):
    """Return a function that counts a step of `SMALL`, or of a variation: 2 sequences of 16 tokens."""
    for name, values in ROUND.items():
        for key, value in values.items():
            monkeypatch.setattr(getattr(module, name), key, value)
    monkeypatch.setattr(module, "LOGIT_BYTES", {"eager": [10, 4], "compiled": [6, 3]})
    monkeypatch.setattr(module, "HEAD_TIMES", {})
    monkeypatch.setattr(module, "MASKED_TIMES", {"2": [3.0, 2.0], "4": [5.0, 4.0]})
    monkeypatch.setattr(shapes, "TRACED", {"eager": [1] * 4, "compiled": [1] * 4})

    def count(model=SMALL, masked=False, **settings):
        monkeypatch.setattr(module, "shape", lambda _: model)
        common = {"model": "gpt2", "micro_batch_size": 2, "seq_len": 16, "device": "cuda"}
        return SimpleNamespace(**module.work(Experiment(**{**common, **settings}), masked))

    return count


AGAIN = {"activation_checkpointing": True}
SECOND = {**AGAIN, "checkpoint_every": 2}
AUTOCAST = {"mixed_precision": "autocast"}


def test_kernels_run_again_where_blocks_are_recomputed(small):
    """20 forward, 30 backward and 2 of attention in each of two blocks, and 1,000 outside of them."""
    assert small().kernels == 2 * 52 + 1000
    assert small(grad_accum=3).kernels == 3 * small().kernels
    assert small(**AGAIN).kernels == 2 * (52 + 20) + 1000
    assert small(**SECOND).kernels == 2 * (52 + 20 / 2) + 1000
    assert small(lora_rank=1).kernels == 2 * (52 + 7 * 3) + 1000
    assert small(compile="default").kernels == 2 * (10 + 15 + 2) + 1000
    assert small(**AUTOCAST).kernels == 2 * (26 + 34 + 2) + 1000


LOGITS = 32 * 16
EMBEDDED = 6 * 10 * 32
"""Six numbers of each token's hidden state."""


@pytest.mark.parametrize(
    ("settings", "of_blocks", "of_logits", "of_embedding", "each_weight"),
    [
        ({}, 4 + 6, 10, 4, 0),
        (AGAIN, 4 + 4 + 6, 10, 4, 0),
        (AUTOCAST, 5 + 7, 10, 6, 12),
        ({"precision": "fp32"}, 8 + 12, 20, 8, 0),
        ({"gpus": 4, "strategy": "fsdp"}, 4 + 6, 10, 4, 14),
        ({**AUTOCAST, "gpus": 4, "strategy": "fsdp"}, 5 + 7, 10, 6, 12 + 14),
    ],
)
def test_bytes_that_pass_through_memory(
    small, settings, of_blocks, of_logits, of_embedding, each_weight
):
    """Hidden states and logits in the format of products, residuals in fp32 under autocast, casts."""
    moved = 2 * 32 * of_blocks + LOGITS * of_logits + 1000 * each_weight
    assert small(**settings).elementwise_bytes == moved + EMBEDDED * of_embedding


def test_compiled_models_move_less_and_chunks_move_the_output_layers_gradient(small, monkeypatch):
    compiled = 0.5 * (2 * 32 * (2 + 3) + LOGITS * 6) + EMBEDDED * 4
    assert small(compile="default").elementwise_bytes == compiled
    monkeypatch.setattr(module, "CHUNK_TOKENS", 10)  # 32 tokens are 4 chunks
    chunked = 2 * 32 * 10 + LOGITS * 4 + 4 * 8 * 160 + EMBEDDED * 4
    assert small(loss="chunked").elementwise_bytes == chunked


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"zero_stage": 0}, 6 * 3 / 4),
        ({"zero_stage": 1}, 6 + 12 * 3 / 4),
        ({"zero_stage": 0, **AUTOCAST}, 12 * 3 / 4),
        ({"zero_stage": 0, "precision": "fp32"}, 12 * 3 / 4),
        ({"zero_stage": 0, "lora_rank": 1}, 0),
    ],
)
def test_three_of_four_micro_batches_add_to_earlier_gradients(small, settings, each):
    alone = small(**settings).elementwise_bytes
    accumulated = small(**settings, grad_accum=4).elementwise_bytes
    assert accumulated == pytest.approx(4 * (alone + 1000 * each))


def test_experts_are_multiplied_in_fp32_under_autocast_and_not_cast(small):
    """Half of the products, which fp32 makes 1.25 times as slow; 200 of 1,000 weights are experts'."""
    experts = replace(SMALL, grouped=50, experts=100)
    flops = 2 * 3 * 2 * 32 * 100
    found = small(experts, **AUTOCAST)
    assert found.fp32_flops == pytest.approx(1.25 * flops / 2)
    assert found.matmul_flops == pytest.approx(flops / 2 + 3 * 2 * 32 * 160)
    cast = small(**AUTOCAST).elementwise_bytes - found.elementwise_bytes
    assert cast == pytest.approx(12 * 200)


def test_offloaded_inputs_go_to_host_memory_and_back(small):
    offloaded = {**AGAIN, "checkpoint_offload": True}
    of_block = 32 * 10 * 2
    assert small(**offloaded).offloaded_activation_bytes == 2 * 2 * of_block
    assert small(**offloaded, grad_accum=3).offloaded_activation_bytes == 3 * 2 * 2 * of_block
    assert small(**offloaded, checkpoint_every=2).offloaded_activation_bytes == 2 * of_block


@pytest.mark.parametrize(
    ("settings", "is_unaligned"),
    [
        ({}, True),
        ({"precision": "fp32"}, False),
        ({"compile": "default"}, False),
        ({"loss": "chunked"}, False),
        ({"pad_vocab": 8}, False),
    ],
)
def test_an_odd_vocabulary_slows_eager_products_in_half_precision(small, settings, is_unaligned):
    odd = replace(SMALL, vocab=15, head=150)
    of_head = 3 * 2 * 32 * 150
    found = small(odd, **settings)
    assert found.unaligned_flops == of_head * is_unaligned
    assert found.matmul_flops == 2 * 3 * 2 * 32 * 100 + of_head * (not is_unaligned)
    frozen = small(odd, lora_rank=1).unaligned_flops
    assert frozen == of_head * 2 / 3


def test_attention_is_recomputed_and_a_window_is_a_mask(small):
    """A query of 16 sees (16 + 8) / 2 keys with tiles of 8; a mask is the whole square, twice as slow."""
    causal = 2 * 32 * 2 * 10 * 12
    assert small().attention_flops == 7 * causal
    assert small(**AGAIN).attention_flops == 9 * causal
    wide, narrow = (replace(SMALL, attention=[(10, window, 2)] * 2) for window in (16, 8))
    assert small(wide).attention_flops == 7 * causal
    assert small(narrow).attention_flops == 7 * 2 * 32 * 2 * 10 * 16 * 2


def test_a_mask_is_of_the_model_or_of_a_run_that_was_measured(small):
    """7 products of 2 blocks, 32 queries and a width of 10 with 12 keys, or 16 with a mask, twice as slow."""
    of_key = 7 * 2 * 32 * 2 * 10
    own = replace(SMALL, maskless=False)
    assert small(compile="default").attention_flops == 12 * of_key
    assert small(masked=True).attention_flops == 16 * 2 * of_key
    assert small(own).attention_flops == 12 * of_key  # only where a compiler traces it
    assert small(own, compile="default").attention_flops == 16 * 2 * of_key
    assert small(own, compile="default", precision="fp32").attention_flops == 16 * 4 * of_key
    alibi = replace(SMALL, family="bloom")
    assert small(alibi).attention_flops == 16 * 3 * of_key
    assert small(alibi, compile="default").attention_flops == 2 * 12 * of_key


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({}, 28 + 32),
        ({"gpus": 4}, 28 + 32 + 4 * 2),
        ({"gpus": 2, "tensor_parallel": 2}, (28 + 32) / 2),
        ({"optimizer": "adafactor"}, 28 + 32 + 60),
        ({"gpus": 4, "zero_stage": 1}, (28 + 16 + 3 * 2 + 16) / 4 + 4 * 2),
        ({"gpus": 4, "zero_stage": 1, "gradient_checks": "off"}, (28 + 16) / 4 + 4 * 2),
        ({"gpus": 4, "zero_stage": 3}, (28 + 16 + 3 * 2 + 16) / 4),
        ({"precision": "fp32"}, 28),
        ({"precision": "fp32", "gradient_clipping": 1.0}, 28 + 8),
        ({"strategy": "plain", "mixed_precision": "none"}, 14),
        ({"strategy": "plain", "optimizer": "adamw-8bit"}, 12 + 4 * (1 + 4 / 256)),
        (
            {"strategy": "plain", "optimizer": "adamw-8bit", "mixed_precision": "none"},
            6 + 4 * (1 + 4 / 256),
        ),
        ({"strategy": "plain", "mixed_precision": "none", "gradient_clipping": 1.0}, 14 + 4),
        ({"strategy": "fsdp", "gpus": 4, "mixed_precision": "none"}, 14 / 4),
        ({"zero_stage": 1, "offload": "optimizer-cpu"}, 0),
    ],
)
def test_bytes_of_the_update_on_the_gpu(small, settings, each):
    assert small(**settings).optimizer_bytes == pytest.approx(1000 * each)


def test_moments_of_8_bits_cost_launches_for_each_tensor():
    tensors = 24 * 16 + 4
    for sharing, each in (
        ({"strategy": "plain"}, module.LAUNCHES.adamw_8_bit),
        ({"strategy": "fsdp"}, module.LAUNCHES.adamw_8_bit + module.LAUNCHES.adamw_8_bit_sharded),
    ):
        usual, eighth = (work(**sharing, optimizer=name) for name in ("adamw", "adamw-8bit"))
        assert eighth.host_launches - usual.host_launches == pytest.approx(each * tensors)


def test_adapters_of_some_layers_are_fewer_in_every_count():
    """GPT-2 makes queries, keys and values in one layer of h x 3h, and attention's output in one of h x h."""
    h, layers = 768, 12
    common = {"model": "gpt2", "strategy": "plain", "lora_rank": 8}
    trained = {}
    for targets in ("linear", "attention", "query-value"):
        setting = Experiment(**common, lora_targets=targets)
        trained[targets] = module.trained_parameters(setting)
    assert trained == {
        "linear": 8 * layers * 16 * h,
        "attention": 8 * layers * 6 * h,
        "query-value": 8 * layers * 4 * h,
    }
    counts = [work(**common, lora_targets=targets) for targets in trained]
    for name in (
        "matmul_flops",
        "kernels",
        "host_launches",
        "elementwise_bytes",
        "optimizer_bytes",
    ):
        values = [getattr(each, name) for each in counts]
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == 3, name
    unknown = r"lora_targets is 'attention': which layers of small these are was not counted; use 'linear'"
    with pytest.raises(SettingsError, match=f"^{unknown}$"):
        SMALL.adapters("attention")


def test_products_in_fp8_are_counted_apart_with_their_casts(small):
    """Operands are read twice and written as a byte, and two of three transposed; a kernel casts and scales each."""
    exact, rounded = (
        small(strategy="fsdp", compile="default", matmul=each) for each in ("auto", "fp8")
    )
    assert rounded.fp8_flops == exact.matmul_flops - rounded.matmul_flops > 0
    assert exact.fp8_flops == 0
    assert rounded.matmul_bytes == 0.75 * exact.matmul_bytes
    eager, cast = (small(strategy="fsdp", matmul=each) for each in ("auto", "fp8"))
    more = rounded.elementwise_bytes - exact.elementwise_bytes
    assert cast.elementwise_bytes - eager.elementwise_bytes > 2 * more > 0
    assert cast.kernels > rounded.kernels > exact.kernels


def test_weights_of_4_bits_are_made_again_for_each_pass():
    """A weight is read with 4.127 bits and written with 16, twice, and once more where blocks are recomputed."""
    common = {"model": "gpt2", "strategy": "plain", "lora_rank": 8}
    for again, passes in (({}, 2), (AGAIN, 3)):
        whole, small = (work(**common, **again, frozen_weights=each) for each in ("auto", "nf4"))
        moved = small.elementwise_bytes - whole.elementwise_bytes
        weights = 12 * 12 * 768**2
        assert moved == pytest.approx(passes * weights * (4.127 / 8 + 2), rel=1e-4)
        assert small.kernels - whole.kernels == 12 * 4 * passes
        assert small.matmul_flops == whole.matmul_flops


@pytest.mark.parametrize(
    ("settings", "of_block"),
    [
        ({}, 100 + 20 + 30 + 2),
        (AGAIN, 152 + 20 + 2 * 20),
        ({**AGAIN, "checkpoint_ops": "cheap"}, 152 + 20 + 2 * 20 + 7 * 20),
        (AUTOCAST, 100 + 50 + 2 + 0.5 * 10),  # 6 + 4 kernels are casts
        ({**AUTOCAST, **AGAIN}, 157 + 20 + 2 * 20 + 0.5 * 6),
        ({"lora_rank": 1}, 152 + 12 * 3),
        ({"lora_rank": 1, "compile": "default"}, 10 + 15 + 2 + 6 * 3),
        ({"gpus": 2, "tensor_parallel": 2}, 152 + 8 * 2 * 2),
        ({"gpus": 2, "tensor_parallel": 2, **AGAIN}, 212 + 8 * 2 * 3),
        ({"gpus": 4, "strategy": "fsdp"}, 152 + 64 * 2),
        ({"gpus": 4, "strategy": "fsdp", **AGAIN}, 212 + 64 * 3),
        ({"compile": "default"}, 10 + 15 + 2),
        ({"compile": "default", "compile_unit": "block"}, 10 + 15 + 2 + 12),
        ({"compile": "default", **AGAIN}, 10 + 15 + 2 + 10 + 12 + 30),
    ],
)
def test_launches_of_a_block(small, settings, of_block):
    assert small(**settings).host_launches == 2 * of_block + 1000
    assert small(**settings, grad_accum=3).host_launches == 3 * (2 * of_block + 1000)


def test_launches_of_graphs_buckets_and_hooks(small):
    assert small(compile="reduce-overhead").host_launches == 5
    split = {"strategy": "ddp", "compile": "default", "bucket_elements": 500_000}
    buckets = small(**split, gpus=2).host_launches - small(**split).host_launches
    assert buckets == pytest.approx(40 * 1000 / 500_000)
    hooks = {}
    for stage in (1, 2):
        step = small(zero_stage=stage, gpus=2, grad_accum=4).host_launches
        hooks[stage] = step - 4 * (2 * 152 + 1000)
    # 2 x 5 + 2 tensors: ZeRO 1 moves the last of four gradients, ZeRO 2 each of them.
    assert hooks == {1: 12 * (3 + 3 * 1), 2: 12 * 4 * 3}


def test_tensors_and_gathers_that_the_host_handles(small):
    assert small(zero_stage=1, gpus=4).host_parameters == 12 * (0.5 + 0.25) / 4
    assert small(zero_stage=1, gpus=4, gradient_checks="off").host_parameters == 12 * 0.125 / 4
    assert small(zero_stage=3).host_parameters == 12 * 2
    gathers = {"zero_stage": 3, "grad_accum": 3}
    assert small(**gathers).host_gathers == 3 * 2 * 5 * 2
    assert small(**gathers, gpus=2).host_gathers == 3 * 2 * 5 * 2 * 1.5
    assert small(**gathers, **AGAIN).host_gathers == 3 * 2 * 5 * 3
    assert small(**gathers, lora_rank=1).host_gathers == 3 * 2 * (5 + 2 * 3) * 2
    assert small(**gathers, leaf_modules="blocks").host_gathers == 3 * 2 * 3 * 2
    assert small(**gathers, compile="default").host_gathers == 3 * 2 * 3 * 2


@pytest.mark.parametrize(
    ("settings", "of_stream", "of_inner", "kernels", "casts"),
    [
        ({}, (10, 12), (12 * 2, 29 * 2), (14, 32), 0),
        ({"tensor_parallel": 2, "gpus": 2}, (10, 12), (12, 29), (14, 32), 0),
        ({"dropout": 0.1}, (16, 18), (12 * 2, 29 * 2), (17, 35), 0),
        (AUTOCAST, (10 * 2, 12 * 2), (12 * 2 + 4 * 6, 29 * 2 + 4 * 6), (14, 32), 16),
    ],
    ids=str,
)
def test_a_block_of_opt_is_counted_by_hand(settings, of_stream, of_inner, kernels, casts):
    """Numbers of the residual stream, and between the norms, which ranks share (`families.toml`).

    Autocast keeps the stream in fp32. Of six linear layers four cast their input, and each casts
    its weight and its bias.
    """
    passes = shape("opt-1.3b").passes(Experiment(model="opt-1.3b", **settings), "eager")
    for direction, found in enumerate(passes):
        assert found.bytes == 2048 * (2 * of_stream[direction] + of_inner[direction])
        assert (found.kernels, found.cast_kernels) == (kernels[direction], casts)


def test_the_output_layer_of_opt_350m_is_as_narrow_as_its_embedding():
    assert shape("opt-350m").head == 50272 * 512
    assert shape("opt-350m").projections == 2 * 512 * 1024


def test_every_second_of_26_blocks_of_gemma_2_has_a_window():
    windows = [window for _, window, _ in shape("gemma-2-2b").attention]
    assert windows == [4096, None] * 13


def test_tensor_parallel_ranks_share_what_is_between_split_layers_of_llama():
    """Of each linear layer one side is divided; of other bytes, all but the norms and the residual stream."""
    llama = shape("llama-2-7b")
    hidden, inner = 4096, 11008
    attention = 3 * hidden + hidden  # queries, keys and values, and the input of the next layer
    assert llama.divided == attention + 3 * inner
    settings = {"model": "llama-2-7b", "device": "cuda", "precision": "bf16", "gpus": 2}
    whole, split = (
        llama.passes(Experiment(**settings, tensor_parallel=ranks), "compiled") for ranks in (1, 2)
    )
    # In bf16: turned queries and keys are read and written, the MLP's three tensors are read and written.
    between = 2 * (4 * hidden + 3 * inner)
    for direction, least in ((0, between), (1, between)):
        traced = llama.traffic["half"]["compiled"][direction]
        shared = 1 - split[direction].bytes / whole[direction].bytes
        assert least <= 2 * shared * traced < traced
        assert split[direction].kernels == whole[direction].kernels
