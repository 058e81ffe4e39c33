"""Peaks of memory: the rules against known answers. Those of the observer meet measured peaks."""

from dataclasses import replace

import pytest

from benchmarks import left_out_families, prediction_errors
from benchmarks.prediction_errors import Peak
from dsnb.base.formulas.memory import MemoryParts
from dsnb.prediction import accuracy, memory
from dsnb.prediction.accuracy import LEFT_OUT, PEAK_ERRORS, PredictionError, peak_error
from dsnb.prediction.memory import MEMORY, Engine, peak_memory, room_gib
from dsnb.prediction.traces import MemoryTrace
from dsnb.settings.strategies import load
from tests.prediction.made_up import MIB, PARAMETERS, RECORD, TRACE, given

P = PARAMETERS


def moments(trace=TRACE, **settings):
    experiment = given(**settings)
    rule = load(experiment.parallel_strategy.memory_rule)
    found = rule(Engine(experiment, trace))
    return {
        name: max(one.total for one in found if one.moment == name)
        for name in dict.fromkeys(one.moment for one in found)
    }


def test_one_process_holds_twelve_bytes_a_parameter_and_ddp_buckets_besides():
    found = moments(strategy="plain")
    assert found["loss"] == 12 * P + 1000 * MIB
    assert found["backward"] == max(12 * P + 4 * P / 2 + 500 * MIB, 12 * P + 4 * P + 50 * MIB)
    assert found["optimizer"] == 16 * P
    assert moments(strategy="plain", grad_accum=2)["loss"] == 16 * P + 1000 * MIB
    assert moments(strategy="ddp", gpus=2)["loss"] == 16 * P + 1000 * MIB
    assert (
        moments(strategy="ddp", gpus=2, gradient_compression="bf16")["loss"] == 18 * P + 1000 * MIB
    )
    assert (
        moments(strategy="ddp", gpus=2, gradient_compression="powersgd")["loss"]
        == 20 * P + 1000 * MIB
    )
    accumulated = moments(strategy="ddp", gpus=2, grad_accum=2)
    assert accumulated["loss"] == 20 * P + 1000 * MIB
    assert accumulated["second step"] == 24 * P + 1000 * MIB
    assert "second step" not in moments(strategy="ddp", gpus=2, grad_accum=2, optimizer="adafactor")


def test_fsdp_holds_shares_and_gathers_the_root_and_a_block():
    gathered = 2 * (100_000_000 + 45_000_000)
    for ranks in (2, 8):
        settings = {"strategy": "fsdp", "gpus": ranks}
        once, accumulated = (moments(**settings, grad_accum=count)["loss"] for count in (1, 2))
        assert once == 12 * P / ranks + gathered + 1000 * MIB
        assert accumulated == 16 * P / ranks + gathered + 1000 * MIB
        kept = moments(**settings, gathered_weights="micro-batch")["loss"]
        assert kept == (12 / ranks + 2) * P + 1000 * MIB  # whole weights in bf16
        whole = moments(**settings, grad_accum=2, reduce_gradients="step")["loss"]
        assert (
            whole == (12 / ranks + 4) * P + gathered + 1000 * MIB
        )  # these gradients are not sharded


def test_groups_with_copies_hold_what_so_many_ranks_of_fsdp_hold():
    for more in ({}, {"grad_accum": 2}, {"grad_accum": 2, "reduce_gradients": "step"}):
        alone = moments(strategy="fsdp", gpus=4, **more)
        assert moments(strategy="fsdp", gpus=16, shard_size=4, **more) == alone


def test_tensor_parallel_ranks_share_their_parts_of_blocks_and_whole_embeddings():
    """Of each rank's 100 million parameters outside of blocks and half of those inside."""
    part = 100_000_000 + (P - 100_000_000) / 2
    for groups in (1, 4):
        settings = {"strategy": "fsdp", "tensor_parallel": 2, "gpus": 2 * groups}
        loss = moments(**settings)["loss"]
        gathered = 2 * (100_000_000 + 45_000_000 / 2)
        assert loss == pytest.approx(12 * part / groups + gathered + 1000 * MIB)
        kept = moments(**settings, gathered_weights="micro-batch")["loss"]
        assert kept == pytest.approx(12 * part / groups + 2 * part + 1000 * MIB)


def test_pure_bf16_holds_six_bytes_a_parameter_and_its_gradients():
    """ZeRO has a copy of its share of the weights, as with fp32 masters."""
    pure = {"mixed_precision": "none"}
    alone = moments(strategy="plain", **pure)
    assert (alone["loss"], alone["optimizer"]) == (6 * P + 1000 * MIB, 8 * P)
    assert moments(strategy="ddp", gpus=2, **pure)["loss"] == 8 * P + 1000 * MIB
    gathered = 2 * (100_000_000 + 45_000_000)
    sharded = {"strategy": "fsdp", "gpus": 4, **pure}
    assert moments(**sharded)["loss"] == 6 * P / 4 + gathered + 1000 * MIB
    assert moments(**sharded, grad_accum=2)["loss"] == 8 * P / 4 + gathered + 1000 * MIB
    peaks = moments(zero_stage=1, gpus=4, **pure)
    assert peaks["loss"] == (2 + 6 / 4) * P + 1000 * MIB
    assert peaks["optimizer"] == (2 + 10 / 4) * P  # gradients, and their flat copy


def test_zero_0_flattens_gradients_twice():
    """14 bytes a parameter, 2 of gradients, and in the step 8 more: a list in fp32 and its flat copy."""
    found = moments(zero_stage=0, gpus=2)
    assert (found["loss"], found["reduction"], found["optimizer"]) == (
        14 * P + 1000 * MIB,
        18 * P,
        24 * P,
    )
    assert moments(zero_stage=0)["reduction"] == 16 * P  # a single rank
    found = moments(zero_stage=0, gpus=2, mixed_precision="autocast")
    assert (found["loss"], found["reduction"], found["optimizer"]) == (
        12 * P + 1000 * MIB,
        20 * P,
        16 * P,
    )


def test_zero_1_and_2_share_the_optimizer_but_zero_1_accumulates_whole_gradients():
    for stage, whole in ((1, 2 * P), (2, 0)):
        peaks = moments(zero_stage=stage, gpus=4)
        assert peaks["loss"] == (2 + 12 / 4) * P + 1000 * MIB
        assert peaks["optimizer"] == (2 + 20 / 4) * P
        assert peaks["reduction"] == (2 + 12 / 4 + 2 / 4) * P + whole
    assert (
        moments(zero_stage=1, gpus=4, grad_accum=2)["loss"] == (2 + 12 / 4 + 4 + 2) * P + 1000 * MIB
    )
    half = moments(
        zero_stage=1, gpus=4, grad_accum=2, grad_accum_dtype="bf16", bucket_elements=1000
    )
    assert half["loss"] == (2 + 12 / 4 + 2) * P + 2 * 1000 + 1000 * MIB
    assert (
        moments(zero_stage=2, gpus=4, grad_accum=2)["loss"] == (2 + 12 / 4 + 4 / 4) * P + 1000 * MIB
    )


@pytest.mark.parametrize(("bucket", "beside"), [(500_000_000, 0), (80_000_000, 2 * 90_000_000)])
@pytest.mark.parametrize(("ranks", "share"), [(4, 90_000_000), (16, P / 16)])
def test_offloaded_gradients_of_zero_2_have_their_norm_in_fp64(bucket, beside, ranks, share):
    """A gradient that is larger than the bucket is beside it; the measured BLOOM-7B1 took 25.7 GiB, not 20.9."""
    trace = replace(TRACE, moments=((0.0, 0.0), (0.0, P)))
    settings = {
        "zero_stage": 2,
        "offload": "optimizer-cpu",
        "bucket_elements": bucket,
        "gpus": ranks,
    }
    states = (2 * P) + 2 * 90_000_000  # and a buffer for the largest gradient
    expected = states + 2 * bucket + max(beside + 8 * share, 2 * min(bucket, P))
    assert moments(trace, **settings)["backward"] == expected


def test_zero_3_gathers_up_to_a_limit():
    bucket, shares = 1e9, (14 + 2) / 4 * P
    assert moments(zero_stage=3, gpus=4)["loss"] == shares + bucket + 2 * P + 1000 * MIB
    keys = {
        "zero_optimization": {"stage3_max_live_parameters": 10_000_000, "reduce_bucket_size": 1000}
    }
    assert moments(zero_stage=3, gpus=4, deepspeed=keys)["loss"] == shares + 2000 + 2e7 + 1000 * MIB
    offloaded = moments(zero_stage=3, gpus=4, offload="all-cpu")
    assert offloaded["loss"] == bucket + 2 * P + 1000 * MIB
    # One rank gathers nothing, unless its weights are in host memory (GPT-2 on H200, `h200_gpt2_zero_precision`).
    assert moments(zero_stage=3)["loss"] == (14 + 2) * P + 1e9 + 1000 * MIB
    assert moments(zero_stage=3, offload="all-cpu")["loss"] == 1e9 + 2 * P + 1000 * MIB


VALID = [
    {"strategy": "plain", "gpus": 1, "precision": "fp32"},
    {"strategy": "ddp", "grad_accum": 8},
    {"strategy": "fsdp", "mixed_precision": "autocast"},
    {"zero_stage": 0, "grad_accum": 8, "precision": "fp32"},
    {"zero_stage": 1, "grad_accum": 8},
    {"zero_stage": 1, "grad_accum": 8, "offload": "optimizer-cpu", "mixed_precision": "autocast"},
    {"zero_stage": 2, "offload": "optimizer-cpu"},
    {"zero_stage": 3, "precision": "fp32"},
    {"zero_stage": 3, "offload": "all-cpu", "grad_accum": 8},
    {"zero_stage": 0, "tensor_parallel": 4},
    {"zero_stage": 1, "pipeline_parallel": 2, "grad_accum": 8},
]


def peak_gib(**settings):
    return peak_memory(given(**settings), TRACE).gib


def test_larger_micro_batches_never_take_less_and_what_is_shared_or_in_host_memory_never_more():
    for settings in ({"gpus": 4, **each} for each in VALID):
        small, large = (
            peak_memory(given(**settings, micro_batch_size=size), MemoryTrace.of(RECORD, size))
            for size in (1, 64)
        )
        assert min(*small[:-1], *large[:-1]) >= 0
        assert small.gib <= large.gib
        if settings.get("offload", "none") != "none":
            assert peak_gib(**settings) <= peak_gib(**{**settings, "offload": "none"})
        elif settings.get("zero_stage") or settings.get("strategy") == "fsdp":
            assert peak_gib(**{**settings, "gpus": 8}) <= peak_gib(**settings)


def test_tensor_parallel_ranks_keep_embeddings_whole_and_two_thirds_of_what_opt_keeps():
    """(4 + 8 / 2) of (4 + 8) numbers a token: Korthikanti et al. 2022, without dropout and with ReLU."""
    kept = 12 * 2 * (8 * 2048) * 2048 * 20  # bytes of 12 numbers in bf16 of each token and block
    trace = replace(TRACE, kept=kept, forward_peak=kept, moments=((kept + 400 * MIB, 0.0),))
    peak = peak_memory(given(zero_stage=1, gpus=2, tensor_parallel=2), trace)
    assert peak.moment == "loss"
    assert peak.activations == pytest.approx(kept * (4 + 8 / 2) / (4 + 8))
    assert peak.output == 400 * MIB
    engine = Engine(given(zero_stage=0, gpus=2, tensor_parallel=2), TRACE)
    assert engine.trained == pytest.approx(100_000_000 + 900_000_000 / 2)


def test_zero_shares_states_among_the_ranks_with_equal_layers():
    """Of four GPUs two share the layers: masters and moments of 550 million weights are shared by two ranks."""
    states = Engine(given(zero_stage=1, gpus=4, tensor_parallel=2), TRACE).states
    assert states.weights == 2 * 550_000_000
    assert states.optimizer == 12 * 550_000_000 / 2


def test_two_buckets_alternate_where_communication_overlaps():
    """ZeRO 1 accumulates beside buckets of a thousand gradients in bf16."""
    settings = {"zero_stage": 1, "gpus": 4, "grad_accum": 2, "bucket_elements": 1000}
    one, two = (Engine(given(**settings, overlap_comm=how), TRACE) for how in ("off", "on"))
    assert (one.bucket, one.buckets) == (2000, 2000)
    assert (two.bucket, two.buckets) == (2000, 4000)


def test_room_is_what_the_context_nccl_and_a_limit_leave():
    room = room_gib(given(), 80.0)
    assert room == 80 - MEMORY.context_gib
    assert room_gib(given(gpus=2), 80.0) == room - MEMORY.nccl_gib
    assert room_gib(given(memory_limit_gib=10.0), 80.0) == 10
    assert room_gib(given(memory_limit_gib=100.0), 80.0) == room


def test_the_first_stage_of_a_pipeline_keeps_micro_batches():
    trace = replace(TRACE, kept=10_000 * MIB, moments=((10_400 * MIB, 0.0),))
    first = peak_memory(given(zero_stage=1, gpus=4, pipeline_parallel=4, grad_accum=8), trace)
    assert first.activations == pytest.approx(
        10_000 * MIB
    )  # four micro-batches of a quarter of the blocks


def test_errors_are_told_by_kind_and_by_all_where_a_kind_has_too_few(monkeypatch):
    monkeypatch.setattr(accuracy, "MIN_PEAKS", PEAK_ERRORS["LoRA"].settings + 1)
    assert peak_error(given(zero_stage=1)) == ("ZeRO 1", PEAK_ERRORS["ZeRO 1"])
    assert peak_error(given(zero_stage=1, lora_rank=8)) == ("all", PEAK_ERRORS["all"])
    peaks = [
        Peak(given(zero_stage=stage), *gib) for stage, *gib in ((0, 10, 8), (0, 9, 10), (1, 5, 5))
    ]
    assert prediction_errors.by_kind_of_peak(peaks) == {
        "ZeRO 0": PredictionError(2, 17.5, 25.0),
        "ZeRO 1": PredictionError(1, 0.0, 0.0),
        "all": PredictionError(3, 11.67, 25.0),
    }


def test_a_family_left_out_of_the_fit_has_the_larger_error_of_its_kind_and_its_family(monkeypatch):
    zero_1 = PEAK_ERRORS["ZeRO 1"].mean_pct
    ddp = PEAK_ERRORS["DDP"].mean_pct
    of_llama = PredictionError(3, (zero_1 + ddp) / 2, 9.0)
    of_all = PredictionError(9, 2 * ddp, 9.0)
    few = PredictionError(2, 0.0, 0.0)
    errors = {"llama": of_llama, "qwen3": few, LEFT_OUT: of_all}
    monkeypatch.setattr(accuracy, "FAMILY_PEAK_ERRORS", errors)
    llama = given(model="llama-3.2-1b", zero_stage=1)
    assert peak_error(llama) == ("llama", of_llama)
    assert peak_error(given(model="llama-3.2-1b", strategy="ddp", gpus=2)).kind == "DDP"
    assert peak_error(given(model="qwen3-0.6b", zero_stage=1)) == (LEFT_OUT, of_all)
    assert peak_error(given(zero_stage=1)).kind == "ZeRO 1"


def test_errors_of_peaks_are_told_by_family_where_nothing_was_fitted_to_it():
    gib_of = (
        ("llama-3.2-1b", 10, 8),
        ("llama-3.2-1b", 9, 10),
        ("qwen3-0.6b", 5, 5),
        ("opt-1.3b", 9, 1),
    )
    peaks = [Peak(given(model=model), *gib) for model, *gib in gib_of]
    assert left_out_families.by_family_of_peak(peaks) == {
        "llama": PredictionError(2, 17.5, 25.0),
        "qwen3": PredictionError(1, 0.0, 0.0),
        LEFT_OUT: PredictionError(3, 11.67, 25.0),
    }


LATE = replace(TRACE, moments=((0.0, 0.0), (0.0, P)))
"""Activations take nothing: only states and gradients count."""


def states(trace=TRACE, **settings):
    return Engine(given(**settings), trace).states


def test_a_model_compiled_as_a_whole_releases_all_gradients_at_the_end():
    """12 bytes a parameter, and 4 of gradients at once; after half of the backward pass it would be 2."""
    half_way = replace(TRACE, moments=((1000 * MIB, 0.0), (500 * MIB, P / 2)))

    def backward(**settings):
        return moments(half_way, strategy="plain", **settings)["backward"]

    assert backward() == 14 * P + 500 * MIB
    assert backward(compile="default", compile_unit="block") == 14 * P + 500 * MIB
    assert backward(compile="default") == 16 * P
    assert backward(compile="default", loss="chunked") == 16 * P + 500 * MIB


def test_accumulation_adds_new_gradients_to_those_that_are_there():
    assert moments(strategy="plain", grad_accum=2)["backward"] == 16 * P + 500 * MIB


def test_gradients_of_a_rank_are_those_of_its_part_of_the_model():
    """A tensor-parallel rank trains 550 million parameters, of 2 + 2 + 12 bytes."""
    found = moments(LATE, zero_stage=0, gpus=2, tensor_parallel=2)
    assert found["backward"] == pytest.approx(16 * 550_000_000)


def test_fsdp_reduces_a_block_in_fp32_and_updates_shards():
    """Half-precision gradients of a block, 2 bytes each, become fp32 beside the gathered weights."""
    half = moments(LATE, strategy="fsdp", gpus=2)
    gathered = 100_000_000 + 45_000_000
    assert half["backward"] == 16 * P / 2 + 2 * gathered + 2 * 45_000_000
    assert half["optimizer"] == 16 * P / 2
    full = moments(LATE, strategy="fsdp", gpus=2, precision="fp32")
    assert full["loss"] == 12 * P / 2 + 4 * gathered
    assert full["backward"] == 16 * P / 2 + 4 * gathered


def test_frozen_weights_of_4_bits_and_the_one_that_is_made_again():
    """OPT-1.3B's blocks have 12 x 2,048^2 weights in linear layers, the largest of 4 x 2,048^2."""
    adapters = 10_000_000
    trace = replace(TRACE, trainable=adapters)
    lora = {"strategy": "plain", "lora_rank": 8}
    whole, small = (states(trace, **lora, frozen_weights=each) for each in ("auto", "nf4"))
    quantized = 24 * 12 * 2048**2
    assert whole.weights - small.weights == pytest.approx(quantized * (2 - 4.127 / 8), rel=1e-4)
    assert (whole.buffers, small.buffers) == (0, 2 * 4 * 2048**2)
    assert whole.optimizer == small.optimizer
    shared = states(trace, strategy="fsdp", gpus=4, lora_rank=8, frozen_weights="nf4")
    assert shared.weights == pytest.approx(small.weights / 4)


def test_moments_of_8_bits_take_a_quarter_and_a_scale_for_each_256():
    for pure, width in (("native", 4), ("none", 2)):
        found = states(optimizer="adamw-8bit", strategy="fsdp", gpus=4, mixed_precision=pure)
        assert found.weights == width * P / 4
        assert found.optimizer == 2 * (1 + 4 / 256) * P / 4


def test_moments_of_adafactor_and_muon():
    """Of 1 billion parameters 0.9 are in blocks, whose matrices have one moment in Muon."""
    muon = states(optimizer="muon", zero_stage=1)
    assert muon.optimizer == 4 * P + 4 * (0.9 * P + 2 * 0.1 * P)
    other = replace(TRACE, factored=1234.0)
    assert states(other, model="llama-2-7b", optimizer="adafactor", strategy="plain") == (
        MemoryParts(weights=4 * P, optimizer=4 * 1234)
    )
    # A row and a column for each matrix: OPT's 20 blocks, embeddings of 50,000 tokens and 2,048
    # positions, and the last norm.
    numbers = 20 * 29 * 2048 + (50_000 + 2048) + (2048 + 2048) + 2 * 2048
    assert states(other, optimizer="adafactor", strategy="plain").optimizer == 4 * numbers
    # Weights, masters and gradients are 2 + 4 + 2 bytes, and the list of gradients in fp32 is 4.
    update = moments(zero_stage=0, optimizer="adafactor")["optimizer"]
    assert update == 12 * P + 4 * numbers


def test_zero_clones_weights_in_full_precision_and_lora_keeps_half_precision_weights():
    assert states(precision="fp32", zero_stage=1, gpus=4).optimizer == (4 + 8) * P / 4
    assert states(precision="fp32", zero_stage=0, gpus=4).optimizer == 8 * P
    adapters = 10_000_000
    trace = replace(TRACE, trainable=adapters)
    plain = states(trace, strategy="plain", lora_rank=8)
    assert plain.weights == 4 * adapters + 2 * (P - adapters)
    assert plain.optimizer == 8 * adapters
    gathered = moments(trace, zero_stage=3, gpus=4, lora_rank=8, bucket_elements=1000)["loss"]
    of_rank = (2 * P + (12 + 2) * adapters) / 4
    assert gathered == of_rank + 2000 + 2 * P + 1000 * MIB


@pytest.mark.parametrize(
    ("stage", "lora_rank", "expected"),
    [(1, 0, 4000 + 4000), (3, 0, 4000 + 2000), (1, 8, 4000), (3, 8, 2000)],
)
def test_linear_layers_have_their_own_bucket_under_autocast(stage, lora_rank, expected):
    """A thousand gradients in fp32; at ZeRO 3 those of linear layers are in half precision."""
    settings = {"zero_stage": stage, "lora_rank": lora_rank, "mixed_precision": "autocast"}
    engine = Engine(given(**settings, gpus=4, bucket_elements=1000), TRACE)
    assert engine.buckets == expected


@pytest.mark.parametrize("elements", [1000, 400_000_000])
def test_zero_2_holds_a_share_and_a_bucket_of_gradients_and_a_bucket_to_send(elements):
    found = moments(LATE, zero_stage=2, gpus=4, bucket_elements=elements)
    assert found["backward"] == (2 + 12 / 4 + 2 / 4) * P + 2 * elements + 2 * elements


def test_zero_1_accumulates_whole_gradients_on_the_gpu():
    """In fp32 where the optimizer is in host memory, and else beside those in half precision."""
    settings = {"zero_stage": 1, "gpus": 4, "grad_accum": 2, "bucket_elements": 1000}
    offloaded = moments(**settings, offload="optimizer-cpu")
    assert offloaded["loss"] == (2 + 4) * P + 2 * 90_000_000 + 2 * 1000 + 1000 * MIB
    kept = moments(**settings)
    assert kept["reduction"] == kept["optimizer"] == (2 + 12 / 4 + 4 + 2 + 2) * P


def test_zero_3_updates_one_sub_group_of_a_billion_parameters_at_a_time():
    """A rank has 2 of 8 billion: 6 bytes of copies for each of a billion, or 4 in full precision."""
    trace = replace(LATE, parameters=8 * P, trainable=8 * P)
    settings = {"zero_stage": 3, "gpus": 4, "bucket_elements": 1000}
    assert moments(trace, **settings)["optimizer"] == 16 * 2 * P + 2000 + 6 * P
    full = moments(trace, **settings, precision="fp32")
    assert full["optimizer"] == (4 + 12 + 4) * 2 * P + 4000 + 4 * P
    assert moments(**settings)["optimizer"] == 16 * P / 4 + 2000 + 6 * P / 4
    accumulated = moments(**settings, grad_accum=2)["loss"]
    assert accumulated == (14 + 4) * P / 4 + 2000 + 2 * P + 1000 * MIB


def test_tensor_parallel_ranks_share_less_as_blocks_are_done():
    """They save a third of what OPT keeps, half of that once half of the blocks have gradients."""
    kept = 12 * 2 * (8 * 2048) * 2048 * 20
    settings = given(zero_stage=2, gpus=2, tensor_parallel=2, bucket_elements=1000)
    half_way = replace(TRACE, kept=kept, forward_peak=kept, moments=((kept, 0.0), (kept, 0.45 * P)))
    peak = peak_memory(settings, half_way)
    assert peak.moment == "backward"
    assert peak.activations == pytest.approx(kept * (1 - 1 / 6))
    forward = replace(half_way, forward_peak=2 * kept)
    assert peak_memory(settings, forward).activations == pytest.approx(kept * (2 - 1 / 3))


def test_the_last_stage_of_a_pipeline_keeps_the_logits_of_its_buffers():
    """Four buffers of 16,384 tokens and 50,000 logits in half precision, and those of the loss."""
    trace = replace(TRACE, kept=4000 * MIB, moments=((4400 * MIB, 0.0),))
    last = peak_memory(given(zero_stage=1, gpus=4, pipeline_parallel=4, grad_accum=8), trace)
    assert last.activations == 1000 * MIB
    assert last.output == 400 * MIB + 4 * 2 * 16384 * 50_000


def test_workspaces_are_added_to_the_peak(monkeypatch):
    monkeypatch.setattr(MEMORY, "workspace_gib", 0.5)
    assert peak_memory(given(strategy="plain"), TRACE).workspace == 2**29


@pytest.fixture
def round_numbers(monkeypatch):
    """Let an untraced block keep half of the formula at least, and twice as much under autocast."""
    rounded = {"least_block": 0.5, "autocast_block": 2.0}
    rounded |= {"eager_logit_bytes": 10.0, "compiled_logit_bytes": 3.0}
    for name, value in rounded.items():
        monkeypatch.setattr(memory.UNTRACED, name, value)


NUMBERS = 8 * 2048 * 2048
"""Numbers of a hidden state of OPT-1.3B: tokens of a micro-batch times width."""
BLOCK = 12 * 2 * NUMBERS
"""What one of its 24 blocks keeps: 12 numbers of 2 bytes for each (Korthikanti et al. 2022)."""
LOGITS = 8 * 2048 * 50272


@pytest.mark.parametrize(
    ("settings", "likely", "block", "logit_bytes"),
    [
        ({"zero_stage": 1}, True, BLOCK, 10),
        ({"zero_stage": 1, "compile": "default"}, True, BLOCK, 3),
        ({"zero_stage": 1, "mixed_precision": "autocast"}, True, 2 * BLOCK, 10),
        ({"zero_stage": 1, "loss": "chunked"}, True, BLOCK, 0),
        ({"zero_stage": 1}, False, BLOCK / 2, 2),
        ({"zero_stage": 1, "mixed_precision": "autocast"}, False, BLOCK / 2, 2),
    ],
)
@pytest.mark.usefixtures("round_numbers")
def test_an_untraced_model_follows_from_formulas(settings, likely, block, logit_bytes):
    found = memory.untraced(given(**settings), likely)
    assert found.kept == found.forward_peak == 24 * block
    assert found.moments == ((24 * block + logit_bytes * LOGITS, 0.0), (24 * block, 1.0))


def test_untraced_blocks_are_recomputed_one_by_one_and_lora_trains_none():
    every_second = {"activation_checkpointing": True, "checkpoint_every": 2}
    found = memory.untraced(given(**every_second, loss="chunked"), likely=True)
    kept = 12 * BLOCK + 12 * 2 * NUMBERS
    assert found.kept == kept
    assert found.moments == ((kept, 0.0), (kept + BLOCK, 1.0))
    assert found.trainable == found.parameters
    assert found.of_root == 50272 * 2048
    assert found.of_block == (found.parameters - 50272 * 2048) / 24
    assert memory.untraced(given(lora_rank=8), likely=True).trainable == 0
