"""The largest micro-batch that is predicted to fit: from a made-up machine and traces that grow with the size."""

from dataclasses import replace

import pytest

from dsnb.errors import SettingsError
from dsnb.prediction import largest_batch
from dsnb.prediction.largest_batch import TRACED, largest_predicted, on_the_line
from dsnb.prediction.memory import peak_memory
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import MIB, TRACE


def given(**settings):
    return Experiment(
        **{"model": "opt-1.3b", "precision": "bf16", "device": "cuda", "micro_batch_size": "auto", **settings}
    )


def of_size(size):
    """Give a trace in which the loss overtakes the rest of the backward pass at a size of 10."""
    moments = ((100 * size * MIB, 0.0), ((800 + 20 * size) * MIB, 0.5e9), (50 * MIB, 1e9))
    hull = moments if size >= 10 else moments[1:]
    return replace(TRACE, forward_peak=90 * size * MIB, kept=60 * size * MIB, block_input=size * MIB, moments=hull)


@pytest.fixture
def traced(monkeypatch):
    """Trace nothing, and return a list of the sizes that would have been traced."""
    found = []

    def attempts(asked):
        found.extend(one.micro_batch_size for one in asked)
        return [of_size(one.micro_batch_size) for one in asked]

    monkeypatch.setattr(largest_batch, "attempts", attempts)
    monkeypatch.setattr("dsnb.system.hardware.gpus", tuple)
    return found


@pytest.mark.parametrize("limit_gib", [30, 31, 45, 100])
@pytest.mark.parametrize("zero_stage", [0, 3])
def test_two_traces_tell_the_largest_size(traced, limit_gib, zero_stage):
    asked = given(zero_stage=zero_stage, gpus=2, memory_limit_gib=limit_gib)
    found = largest_predicted(asked, 2**16)
    assert traced == list(TRACED)

    def fits(size):
        return (
            peak_memory(asked.model_copy(update={"micro_batch_size": size}), of_size(size)).peak_allocated_gib
            < limit_gib
        )

    assert fits(found)
    assert not fits(found + 1)


def test_nothing_is_larger_than_the_most(traced):
    assert largest_predicted(given(memory_limit_gib=1000), 64) == 64
    assert largest_predicted(given(memory_limit_gib=1), 64) == 0


def test_sizes_on_the_line_are_the_sums_of_what_grows_and_what_does_not():
    assert on_the_line(of_size(10), of_size(18), TRACED[1]).kept == of_size(18).kept
    middle = on_the_line(of_size(10), of_size(18), sum(TRACED) // 2)
    assert middle == of_size(14)


def test_what_cannot_be_predicted(traced, monkeypatch):
    assert largest_predicted(given(), 64) is None  # no GPU, no limit
    assert largest_predicted(given(memory_limit_gib=20, zero_stage=3, gpus=2, zeropp="weights"), 64) is None
    assert largest_predicted(given(memory_limit_gib=20, device="cpu", precision="fp32"), 64) is None
    assert traced == []
    monkeypatch.setattr(largest_batch, "attempts", lambda asked: [TRACE, SettingsError("no")])
    assert largest_predicted(given(memory_limit_gib=20), 64) is None

    def no_torch(asked):
        raise SettingsError("torch is missing")

    monkeypatch.setattr(largest_batch, "attempts", no_torch)
    assert largest_predicted(given(memory_limit_gib=20), 64) is None
