"""Replays of strategies: by hand with a model of two weights, and beside what was measured on H200."""

import math

import pytest

import dsnb
from dsnb.prediction import gpus
from dsnb.prediction.measured import recorded
from dsnb.prediction.memory import GIB, WORKSPACE_GIB, room
from dsnb.prediction.replay import step
from dsnb.prediction.replay.allocator import MIB, CachingAllocator
from dsnb.prediction.replay.recording import ALLOCATED, FREED, GRADIENT, Recording
from dsnb.prediction.replay.simulate import engine_of, simulate
from dsnb.prediction.traces import recordings, traces
from dsnb.settings.experiment import Experiment

WEIGHTS = (16, 8)
"""Elements of two weights, in units of 2**20."""
ACTIVATION = 100
"""MiB of each sequence, kept until the first gradient is there."""


def given(**settings):
    asked = {"model": "gpt2", "precision": "bf16", "micro_batch_size": 1, "device": "cuda", **settings}
    return Experiment(**asked)


def recording(width):
    """A forward pass that keeps one activation, and the gradients of the second and the first weight."""
    events = [
        (ALLOCATED, 0, ACTIVATION * MIB),
        (ALLOCATED, WEIGHTS[1] * width * MIB, 0),
        (GRADIENT, 1, 1),
        (FREED, 0, 0),
        (ALLOCATED, WEIGHTS[0] * width * MIB, 0),
        (GRADIENT, 0, 2),
        (FREED, 1, 0),
        (FREED, 2, 0),
    ]
    tensors = [([elements, MIB], width, True) for elements in WEIGHTS]
    return Recording.read({"tensors": tensors, "events": events})


def peaks(experiment, width, rank=0, limit=math.inf):
    """Return what a replay allocates and reserves at most, in MiB, without the workspace of libraries."""
    allocator = CachingAllocator(limit)
    engine_of(experiment)(experiment, recording(width), allocator, rank).run()
    return allocator.peak_allocated / MIB, allocator.peak_reserved / MIB


@pytest.fixture
def _no_workspace(monkeypatch):
    monkeypatch.setattr(step, "WORKSPACE_GIB", 0)


@pytest.mark.usefixtures("_no_workspace")
def test_moments_take_the_place_of_activations_which_then_need_new_segments():
    """Step 1: the activation is new, then the gradient of 32 MiB; the one of 64 takes part of the activation's 100.

    Of the moments 64, 64 and 32 are new, the other 32 takes what is left of the 100. Step 2: the activation is new.
    """
    weights, activation, small_segment = 64 + 32, 100, 2
    allocated, reserved = peaks(given(strategy="plain"), width=4)
    assert reserved == weights + activation + 32 + (64 + 64 + 32) + activation + small_segment
    assert allocated == pytest.approx(weights + 2 * weights + activation + 32, abs=0.01)


@pytest.mark.usefixtures("_no_workspace")
def test_micro_batches_beyond_the_third_change_nothing(monkeypatch):
    few = peaks(given(zero_stage=2, grad_accum=64, grad_accum_dtype="bf16"), width=2)
    monkeypatch.setattr(step, "MICRO_BATCHES", 64)
    assert peaks(given(zero_stage=2, grad_accum=64, grad_accum_dtype="bf16"), width=2) == few


SETTINGS = [
    given(strategy="plain"),
    given(strategy="ddp", gpus=2),
    given(strategy="ddp", gpus=2, grad_accum=2, optimizer="adafactor"),
    given(zero_stage=0),
    given(zero_stage=0, mixed_precision="autocast", gpus=2),
    given(zero_stage=1),
    given(zero_stage=1, gpus=2, mixed_precision="autocast"),
    given(zero_stage=1, grad_accum=4),
    given(zero_stage=2, gpus=2),
    given(zero_stage=2, gpus=2, grad_accum=4),
]


@pytest.mark.parametrize("experiment", SETTINGS, ids=lambda one: one.name)
def test_everything_but_the_states_is_freed_after_each_step(experiment):
    """So a fourth and a fifth step reserve nothing more, and a larger micro-batch as much as it keeps."""
    engine, width = engine_of(experiment), 4 if experiment.mixed_precision == "autocast" else 2
    width = 4 if experiment.strategy != "deepspeed" else width
    allocator = CachingAllocator()
    replay = engine(experiment, recording(width), allocator)
    replay.run()
    after, reserved = allocator.allocated, allocator.reserved
    for number in (3, 4):
        replay.step(number)
        assert (allocator.allocated, allocator.reserved) == (after, reserved)
    larger = experiment.model_copy(update={"micro_batch_size": 8})
    found, expected = (simulate(one, recording(width)) for one in (larger, experiment))
    assert found.reserved_gib >= expected.reserved_gib
    assert found.allocated_gib - expected.allocated_gib <= 7 * ACTIVATION * MIB / GIB + 1e-9


@pytest.mark.usefixtures("_no_workspace")
def test_the_states_of_zero_1_on_each_rank():
    """bf16: 24 Mi elements: flat weights 48 MiB, masters and moments 3 x 96 MiB over two ranks."""
    experiment = given(zero_stage=1, gpus=2, bucket_elements=1_000_000)
    for rank in (0, 1):
        allocator = CachingAllocator()
        engine_of(experiment)(experiment, recording(2), allocator, rank).run()
        assert allocator.allocated == pytest.approx((48 + 3 * 96 / 2) * MIB, abs=1000)


def test_a_gradient_that_exceeds_the_bucket_stays_where_it_is_until_it_is_reduced(monkeypatch):
    """ZeRO 2, a bucket of 18 MB for gradients of 16 and 32 MiB: the larger one is beside the share it is copied to."""
    allocator = CachingAllocator()
    replay = engine_of(given(zero_stage=2))(given(zero_stage=2, bucket_elements=9_000_000), recording(2), allocator)
    replay.prepare()
    held = []

    def reduce():
        held.append([block.size / MIB for block in replay._oversized.values()])
        type(replay)._reduce(replay)

    monkeypatch.setattr(replay, "_reduce", reduce)
    replay.step(0)
    assert held == [[], [32]]
    assert not replay._oversized


def test_no_replay_where_streams_or_parts_of_the_model_are_not_known():
    for settings in (
        {"zero_stage": 3}, {"strategy": "fsdp", "gpus": 2}, {"compile": "reduce-overhead"},
        {"zero_stage": 1, "overlap_comm": "on"}, {"tensor_parallel": 2, "gpus": 2},
        {"zero_stage": 2, "offload": "optimizer-cpu"},
        {"strategy": "ddp", "gpus": 2, "grad_accum": 2},
        {"strategy": "ddp", "gpus": 2, "gradient_compression": "bf16"},
        {"zero_stage": 1, "optimizer": "muon"},
    ):  # fmt: skip
        assert engine_of(given(**settings)) is None, settings
        assert simulate(given(**settings), recording(2)) is None


def test_within_a_limit_what_is_cached_is_given_back():
    experiment = given(strategy="plain")
    free = simulate(experiment, recording(4))
    assert free.within_limit_gib == free.reserved_gib > free.allocated_gib
    limit = (free.reserved_gib + free.allocated_gib) / 2
    assert free.allocated_gib <= simulate(experiment, recording(4), limit).within_limit_gib <= limit
    short = simulate(experiment, recording(4), 0.1)
    assert (short.within_limit_gib, short.fits) == (0.1, False)
    assert free.fits
    assert simulate(experiment, recording(4), limit).fits


def test_a_replay_that_needs_hardly_more_than_there_is_fits():
    experiment = given(strategy="plain")
    least = simulate(experiment, recording(4)).allocated_gib
    assert not simulate(experiment, recording(4), least / 1.02).fits
    everything = simulate(experiment, recording(4)).reserved_gib
    close = simulate(experiment, recording(4), everything / 1.005)
    assert close.fits
    assert close.within_limit_gib <= everything / 1.005


def test_the_workspace_of_libraries_is_counted(monkeypatch):
    experiment = given(strategy="plain")
    with_it = simulate(experiment, recording(4)).allocated_gib
    monkeypatch.setattr(step, "WORKSPACE_GIB", 0)
    assert with_it - simulate(experiment, recording(4)).allocated_gib == pytest.approx(WORKSPACE_GIB, abs=0.001)


MEASURED = [
    "zs0_bf16_gpus1_bs32_sl128_autocast",
    "zs1_bf16_gpus1_bs32_sl128",
    "zs1_fp32_gpus1_bs32_sl128",
    "zs2_fp16_gpus1_bs32_sl128_autocast",
    "plain_fp32_gpus1_bs32_sl128",
    "plain_bf16_gpus1_bs32_sl1024",
    "opt-350m_zs1_bf16_gpus2_bs24_sl512",
    "opt-350m_zs2_bf16_gpus2_bs24_sl512",
    "zs0_bf16_gpus1_bs32_sl128",
    "gpt2_zs0_bf16_gpus1_bs8_sl1024",
    "gpt2_zs0_bf16_gpus1_bs8_sl1024_autocast_compile",
    "zs1_fp16_gpus1_bs32_sl128_autocast_compile",
]


@pytest.mark.process
def test_what_was_reserved_on_h200_is_met():
    runs = dsnb.published("h200").drop_duplicates("experiment").set_index("experiment").loc[MEASURED].reset_index()
    rows = runs.to_dict("records")
    settings = [recorded(row).model_copy(update={"device": "cuda"}) for row in rows]
    traces(settings)
    for one, found, row in zip(settings, recordings(settings), rows, strict=True):
        simulated = simulate(one, found)
        assert simulated.reserved_gib == pytest.approx(row["peak_reserved_gib"], rel=0.01), one.name
        assert simulated.allocated_gib == pytest.approx(row["peak_allocated_gib"], rel=0.015), one.name


GPUS = {name: gpus.find(name.upper()).memory_gib for name in ("h100", "h200")}
CLOSE = [
    ("h100", "opt-2.7b_zs1_bf16_gpus1_bs16_sl1024"),
    ("h200", "bloom-560m_zs0_bf16_gpus1_bs36_sl1024"),
    ("h200", "opt-1.3b_zs2_bf16_gpus1_bs68_sl1024"),
    ("h200", "gpt2-xl_zs1_bf16_gpus1_bs26_sl1024"),
    ("h200", "gpt2-xl_zs1_bf16_gpus1_bs24_sl1024"),
    ("h200", "zs1_fp16_gpus2_bs1_sl2048_ga16_ac_eager_limit16gib_dropout0.1_clip1"),
]


@pytest.mark.process
def test_which_runs_close_to_the_limit_ran_out_of_memory():
    """Three of the four that did had enough in all, but in pieces; one only from the fourth step on."""
    tables = {name: dsnb.published(name).drop_duplicates("experiment").set_index("experiment") for name in GPUS}
    rows = [tables[name].loc[[experiment]].reset_index().iloc[0].to_dict() for name, experiment in CLOSE]
    settings = [recorded(row).model_copy(update={"device": "cuda"}) for row in rows]
    traces(settings)
    limits = [room(one, GPUS[name]).tensors_gib for one, (name, _) in zip(settings, CLOSE, strict=True)]
    found = [simulate(*one) for one in zip(settings, recordings(settings), limits, strict=True)]
    assert [one.fits for one in found] == [row["status"] == "ok" for row in rows]
    assert [one.allocated_gib < limit for one, limit in zip(found, limits, strict=True)] == [True] * 3 + [False] + [
        True
    ] * 2
