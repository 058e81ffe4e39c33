"""The utilization of a short run is missing, wherever its runs were recorded."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.formulas.metrics import UTILIZATION_S
from dsnb.runs.literature import measured
from dsnb.runs.table import without_noise
from tests.support import made_up


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"timed_s": 4.99}, math.nan),
        ({"timed_s": 5.0}, 80.0),
        ({"timed_steps": 20, "step_time_s": 0.02}, math.nan),  # 0.4 s
        ({"timed_steps": 20, "step_time_s": 0.25}, 80.0),
        ({"timed_s": 6.0, "timed_steps": 20, "step_time_s": 0.02}, 80.0),
        ({"timed_steps": 20}, 80.0),  # nothing says that it was short
    ],
)
def test_less_than_five_seconds_of_timed_steps_have_no_utilization(known, expected):
    assert UTILIZATION_S == 5
    found = without_noise(pd.DataFrame([{"gpu_util_pct": 80.0, "sm_clock_mhz": 1980.0, **known}]))
    assert found["gpu_util_pct"].iloc[0] == pytest.approx(expected, nan_ok=True)
    assert found["sm_clock_mhz"].iloc[0] == 1980  # a clock is a momentary reading


def test_run_folders_of_an_earlier_version_do_not_show_it(tmp_path):
    table = made_up.runs(4, repeats=1).assign(status="ok", cause=None, gpu_util_pct=80.0, step_time_s=0.1)
    made_up.write_folders(table.assign(timed_steps=[4, 40, 49, 50]), tmp_path / "s")
    found = dsnb.load_runs(tmp_path).set_index("timed_steps")["gpu_util_pct"]
    assert found[[4, 40, 49]].isna().all()
    assert found[50] == 80
    again = dsnb.load_runs(tmp_path).set_index("timed_steps")["gpu_util_pct"]
    pd.testing.assert_series_equal(again, found)


@pytest.mark.parametrize("name", ["h200", "h100", "h200_memory", "h200_gpt2_zero_precision"])
def test_published_runs_do_not_show_it(name):
    raw, runs = measured.table(name), dsnb.published(name)
    timed_s = runs["timed_s"].fillna(runs["timed_steps"] * runs["step_time_s"])
    assert raw["gpu_util_pct"][timed_s < 5].notna().any()
    assert runs["gpu_util_pct"][timed_s < 5].isna().all()
    pd.testing.assert_series_equal(runs["gpu_util_pct"][timed_s >= 5], raw["gpu_util_pct"][timed_s >= 5])
    pd.testing.assert_series_equal(runs["power_w"], raw["power_w"])
