"""Errors of predicted ratios: by hand, and those that the code states against the measured runs."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from benchmarks import ratio_errors as benchmark
from dsnb.analysis import ratio_errors
from dsnb.analysis.ratio_errors import (
    ALL,
    BOTH_BY_CPU,
    DEFAULT_RATIOS,
    ELSEWHERE,
    OFFLOADED,
    ONE_BY_CPU,
    ONE_PART,
    OTHER,
    SEVERAL,
    RatioError,
    by_difference,
    expected,
)
from dsnb.settings.experiment import Experiment
from tests import ROOT
from tests.prediction.made_up import runs


def test_errors_of_ratios_by_hand():
    """A ratio is 1.21 / 1.1 = 1.1 off, another one 1.1 x 1.25 = 1.375, and the third 1.21 x 1.25 = 1.5125."""
    size = {"micro_batch_size": 64}  # the GPU limits all steps
    made = runs(size, {"micro_batch_size": 128}, {**size, "compile": "default"})
    found = by_difference(made, [10, 21, -20], [0, 0, 0])
    assert found == {
        ONE_PART.format("batch sizes"): RatioError(1, 10.0, 10.0),
        ONE_PART.format("compilation"): RatioError(1, 37.5, 37.5),
        SEVERAL: RatioError(1, 51.2, 51.2),
        ALL: RatioError(3, 31.8, 51.2),  # (1.1 x 1.375 x 1.5125) ** (1 / 3) = 1.3177
    }


def test_settings_that_share_their_error_are_told_apart():
    made = runs({}, {"zero_stage": 1}, {"zero_stage": 2})
    assert by_difference(made, [-30, -30, -30], [0, 0, 0])[ALL] == RatioError(3, 0.0, 0.0)


def test_other_tasks_other_hosts_other_gpus_and_repeats_are_no_pairs():
    made = runs({}, {"model": "opt-350m"}, {"lora_rank": 8}, {"seq_len": 256}, {"micro_batch_size": 16}, {})
    elsewhere = replace(made[4], gpu_name="NVIDIA A100")
    assert by_difference([*made[:4], elsewhere, made[0]], [1, 2, 3, 4, 5, 6], [0] * 6) == {}
    assert by_difference([made[0], made[4]], [1, 2], [0, 1]) == {}
    assert by_difference([], [], []) == {}


def one(**settings):
    return Experiment(**{"model": "opt-1.3b", "precision": "bf16", "device": "cuda", "gpus": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "by_cpu", "name"),
    [
        ({"micro_batch_size": 4, "grad_accum": 2}, (False, False), ONE_PART.format("batch sizes")),
        ({"zero_stage": 3}, (False, False), ONE_PART.format("strategy")),
        ({"strategy": "ddp"}, (False, False), ONE_PART.format("strategy")),
        ({"gpus": 4}, (False, False), ONE_PART.format("GPUs")),
        ({"activation_checkpointing": True, "checkpoint_every": 2}, (False, False), ONE_PART.format("recomputation")),
        ({"loss": "chunked"}, (False, False), ONE_PART.format(OTHER)),
        ({"loss": "chunked", "attention": "eager"}, (False, False), SEVERAL),
        ({"zero_stage": 3}, (False, True), ONE_BY_CPU),
        ({"zero_stage": 3}, (True, True), BOTH_BY_CPU),
        ({"zero_stage": 3, "offload": "optimizer-cpu"}, (True, True), OFFLOADED),
        ({"steps": 5}, (False, False), ALL),
    ],
)
def test_what_two_settings_differ_in(settings, by_cpu, name):
    known = {every: RatioError(10, 5.0, 9.0) for every in (*ratio_errors.NAMES, ALL)}
    assert expected([one(), one(**settings)], by_cpu, known)[0] == name
    few = {**known, name: RatioError(9, 5.0, 9.0)}
    assert expected([one(), one(**settings)], by_cpu, few)[0] == ALL


def test_which_errors_hold_for_a_gpu_and_for_ones_own_runs():
    assert ratio_errors.known_for("H200", "nvlink") is DEFAULT_RATIOS
    assert ratio_errors.known_for("A100", "nvlink") is ELSEWHERE
    own = dsnb.published("h100")
    found = ratio_errors.known_for("H100", "nvlink", own)
    assert found[ALL].pairs > 5
    assert found not in (DEFAULT_RATIOS, ELSEWHERE)
    assert ratio_errors.known_for("A100", "nvlink", own) is ELSEWHERE
    assert ratio_errors.known_for("H100", "nvlink", own.head(1)) is ELSEWHERE


def test_the_median_run_of_each_setting_on_each_host_counts():
    rows = [
        {"experiment": "a", "host": host, "gpu_name": "NVIDIA H200", "model": "opt-1.3b", "step_time_s": seconds}
        for host, times in {"x": (3.0, 1.0, 2.0), "y": (5.0,)}.items()
        for seconds in times
    ]
    found, hosts = ratio_errors.of_hosts(pd.DataFrame(rows))
    assert sorted(zip([run.step_time_s for run in found], hosts, strict=True)) == [(2.0, 0), (5.0, 1)]


@pytest.mark.parametrize(("measured", "stated"), [(benchmark.h200, DEFAULT_RATIOS), (benchmark.elsewhere, ELSEWHERE)])
def test_the_stated_errors_are_those_of_the_measured_runs(measured, stated):
    """Another machine's linear algebra may round the last digit to the other side."""
    found = measured()
    assert found.keys() == stated.keys()
    for name, error in found.items():
        assert error == pytest.approx(stated[name], abs=0.11)
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    assert "\n".join(benchmark.lines(stated)) in page
