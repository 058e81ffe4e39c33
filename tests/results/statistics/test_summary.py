"""Summaries: the columns that are chosen, the settings that differ, and names that do not exist."""

import re

import pandas as pd
import pytest

from dsnb.base.errors import SettingsError
from dsnb.results.runs.labels import METRIC_LABELS
from dsnb.results.statistics.comparisons import differences
from dsnb.results.statistics.summary import (
    STATISTICS,
    repeat_ratios,
    summarize,
    timing,
    unstable,
)

RUNS = pd.DataFrame(
    {
        "sweep": "s",
        "experiment": ["a", "a", "b"],
        "status": "ok",
        "gpu_name": "H100",
        "zero_stage": [1, 1, 3],
        "grad_accum": [1, 2, 4],
        "tokens_per_s": [90.0, 110.0, 80.0],
        "mfu": [0.2, 0.4, None],
    }
)


def test_by_default_a_summary_has_the_settings_that_differ_and_what_was_measured_of_the_usual_figures():
    table = summarize(RUNS)
    assert list(table.columns) == [
        "n", "n_failed", "parallelism", "grad_accum", "tokens_per_s_median", "tokens_per_s_std", "mfu_median", "varies",
    ]  # fmt: skip
    assert table["parallelism"].to_dict() == {"a": "ZeRO 1", "b": "ZeRO 3"}
    assert table["grad_accum"].isna().to_dict() == {"a": True, "b": False}  # a has both 1 and 2
    assert table["varies"].to_dict() == {"a": "grad_accum", "b": ""}
    assert list(summarize(RUNS.head(2)).columns) == [
        "n", "n_failed", "tokens_per_s_median", "tokens_per_s_std", "mfu_median", "varies",
    ]  # fmt: skip


def test_other_figures_and_single_columns_are_chosen_by_name():
    table = summarize(RUNS, metrics=["mfu", "tokens_per_s_max"])
    assert table.loc["a"].drop(["parallelism", "grad_accum"]).to_dict() == {
        "n": 2, "n_failed": 0, "mfu_median": pytest.approx(0.3), "mfu_std": pytest.approx(0.02**0.5), "mfu_min": 0.2,
        "mfu_max": 0.4, "mfu_n": 2, "tokens_per_s_max": 110.0, "varies": "grad_accum",
    }  # fmt: skip
    assert table["mfu_n"].to_dict() == {"a": 2, "b": 0}
    every = [f"{metric}_{name}" for metric in METRIC_LABELS for name in STATISTICS]
    assert list(summarize(RUNS, metrics="all").columns) == ["n", "n_failed", *every, "varies"]


def test_the_figures_of_a_run_that_is_not_ok_are_in_no_statistic():
    """A run that diverged has a speed and memory, too."""
    runs = RUNS.assign(status=["ok", "nan", "ok"])
    assert summarize(runs)["tokens_per_s_median"].to_dict() == {"a": 90.0, "b": 80.0}
    assert summarize(runs, metrics=["tokens_per_s"])["tokens_per_s_n"].to_dict() == {"a": 1, "b": 1}


def test_what_is_no_step_is_the_notebook_less_warm_up_and_timed_steps():
    phases = {"start_s": 1.0, "build_s": 2.0, "warmup_s": 4.0, "timed_s": 8.0, "stop_s": 1.0}
    runs = RUNS.assign(**phases, wall_s=16.0, notebook_s=[20.0, 22.0, None])
    table = timing(runs)
    assert table["outside_steps"].to_dict() == {"a": 21 - 4 - 8, "b": 16 - 4 - 8}
    assert table["build"].to_dict() == {"a": 2, "b": 2}
    repeated = pd.concat([runs.head(1)] * 4).assign(
        build_s=[1.0, 2.0, 6.0, 900.0], status=["ok", "ok", "ok", "failed"]
    )
    assert timing(repeated)["build"].to_dict() == {"a": 2}


def test_repeats_that_differ_by_more_than_half_are_unstable():
    rates = {"a": [100.0, 149.0], "b": [100.0, 151.0], "c": [100.0, 0.0], "d": [100.0, 900.0]}
    rows = [(name, rate) for name, own in rates.items() for rate in own]
    runs = pd.DataFrame(rows, columns=["experiment", "tokens_per_s"]).assign(status="ok")
    runs.loc[7, "status"] = "nan"
    assert repeat_ratios(runs).dropna().to_dict() == {"a": 1.49, "b": 1.51}
    assert unstable(runs) == ["b"]


def test_runs_vary_in_settings_and_hardware_and_not_in_how_they_were_measured():
    """A run that was cut short may not have recorded its GPU, and counts only if it ended."""
    runs = pd.DataFrame(
        {"sweep": "s", "experiment": "a", "steps": [10, 20, 30], "tokens_per_s": 1.0}
    )
    runs = runs.assign(status=["ok", "ok", "interrupted"], gpu_name=["H100", "H100", None])
    assert summarize(runs)["varies"]["a"] == ""
    assert summarize(runs.assign(status="ok"))["varies"]["a"] == "gpu_name"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "zero_stag"}, "runs have no column 'zero_stag': did you mean 'zero_stage'?"),
        ({"by": ["gpu_name", "x"]}, "runs have no column 'x'"),
        ({"metrics": ["mfu_mx"]}, "there is no figure 'mfu_mx': did you mean 'mfu_max'?"),
        ({"metrics": ["tokens_per_sec"]}, "there is no figure 'tokens_per_sec': did you mean 'tokens_per_s'?"),
    ],
)  # fmt: skip
def test_unknown_columns_are_refused_with_the_closest_name(options, message):
    with pytest.raises(SettingsError) as refused:
        summarize(RUNS, **options)
    assert str(refused.value) == message
    if "by" in options:
        with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
            differences(RUNS, **options)


def test_a_former_name_groups_too():
    assert list(summarize(RUNS, by="gpu").index) == ["H100"]
