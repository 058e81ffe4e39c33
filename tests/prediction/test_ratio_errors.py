"""Errors of predicted ratios: by hand, and those that the code states against the measured runs."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from benchmarks import ratio_errors as benchmark
from dsnb.prediction import ratio_errors
from dsnb.prediction.ratio_errors import (
    ALL,
    BY_CPU,
    DEFAULT_RATIOS,
    ELSEWHERE,
    RatioError,
    by_limit,
    doubt,
)
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import runs


def test_errors_of_ratios_by_hand():
    """A ratio is 1.21 / 1.1 = 1.1 off, another one 1.1 x 1.25 = 1.375, and the third 1.21 x 1.25 = 1.5125."""
    size = {"micro_batch_size": 64}  # the GPU limits these steps
    made = runs(
        size, {"micro_batch_size": 128}, {"micro_batch_size": 1, "seq_len": 512, "zero_stage": 3}
    )
    assert by_limit(made, [10, 21, -20], [0, 0, 0]) == {
        BY_CPU[0]: RatioError(1, 10.0, 10.0),
        BY_CPU[1]: RatioError(2, 44.2, 51.2),  # (1.375 x 1.5125) ** (1 / 2) = 1.4421
        ALL: RatioError(3, 31.8, 51.2),  # (1.1 x 1.375 x 1.5125) ** (1 / 3) = 1.3177
    }
    assert by_limit(made, [-30, -30, -30], [0, 0, 0])[ALL] == RatioError(
        3, 0.0, 0.0
    )  # they share their error


def test_other_tasks_other_hosts_other_gpus_and_repeats_are_no_pairs():
    made = runs(
        {}, {"model": "opt-350m"}, {"lora_rank": 8}, {"seq_len": 256}, {"micro_batch_size": 16}, {}
    )
    elsewhere = replace(made[4], gpu_name="NVIDIA A100")
    assert by_limit([*made[:4], elsewhere, made[0]], [1, 2, 3, 4, 5, 6], [0] * 6) == {}
    assert by_limit([made[0], made[4]], [1, 2], [0, 1]) == {}
    assert by_limit([], [], []) == {}


@pytest.mark.parametrize(
    ("settings", "by_cpu", "kind"),
    [
        ({"zero_stage": 3}, (False, False), BY_CPU[0]),
        ({"zero_stage": 3}, (False, True), BY_CPU[1]),
        ({"zero_stage": 3}, (True, True), BY_CPU[2]),
        ({"zero_stage": 3, "offload": "optimizer-cpu"}, (True, True), ALL),
    ],
)
def test_the_kind_of_a_pair_is_what_limits_it_unless_too_few_were_measured(settings, by_cpu, kind):
    common = {"model": "opt-1.3b", "precision": "bf16", "device": "cuda", "gpus": 2}
    pair = [Experiment(**common), Experiment(**common, **settings)]
    known = {**dict.fromkeys(BY_CPU, RatioError(99, 1.0, 9.0)), ALL: RatioError(1010, 7.0, 9.0)}
    known[kind] = RatioError(10, 5.0, 9.0)
    words = "the mean error of predicted ratios of two settings"
    assert doubt(pair, by_cpu, known) == (5.0, f"5.0 %, {words} {kind} (10 pairs)")
    if kind != ALL:
        known[kind] = RatioError(9, 5.0, 9.0)
        assert doubt(pair, by_cpu, known) == (7.0, f"7.0 %, {words} of one task (1,010 pairs)")


def test_which_errors_hold_for_a_gpu_and_for_ones_own_runs(monkeypatch):
    for module in (ratio_errors.calibration, ratio_errors.loop):
        monkeypatch.setattr(module, "left_out", lambda runs, *_, **__: [0.0] * len(runs))
    assert ratio_errors.errors_for("H200", "nvlink") is DEFAULT_RATIOS
    assert ratio_errors.errors_for("A100", "nvlink") is ELSEWHERE
    own = dsnb.published("h100").head(60)
    found = ratio_errors.errors_for("H100", "nvlink", own)
    assert found[ALL].pairs > 5
    assert found not in (DEFAULT_RATIOS, ELSEWHERE)
    assert ratio_errors.errors_for("A100", "nvlink", own) is ELSEWHERE
    assert ratio_errors.errors_for("H100", "nvlink", own.head(1)) is ELSEWHERE


@pytest.mark.docs
@pytest.mark.parametrize(
    ("measured", "stated"), [(benchmark.h200, DEFAULT_RATIOS), (benchmark.elsewhere, ELSEWHERE)]
)
def test_the_stated_errors_are_those_of_the_measured_runs(measured, stated):
    """Another machine's linear algebra may round the last digit to the other side."""
    found = measured()
    assert found.keys() == stated.keys()
    for name, error in found.items():
        assert error == pytest.approx(stated[name], abs=0.11)


def test_the_median_run_of_each_setting_on_each_host_counts():
    rows = [
        {
            "experiment": "a",
            "host": host,
            "gpu_name": "NVIDIA H200",
            "model": "opt-1.3b",
            "step_time_mean_s": seconds,
        }
        for host, times in {"x": (3.0, 1.0, 2.0), "y": (5.0,)}.items()
        for seconds in times
    ]
    found, hosts = ratio_errors.of_hosts(pd.DataFrame(rows))
    assert sorted(zip([run.step_time_s for run in found], hosts, strict=True)) == [
        (2.0, "x"),
        (5.0, "y"),
    ]
