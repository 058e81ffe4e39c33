"""The Pareto front and what one change costs, with figures that can be done in the head."""

import math

import pandas as pd
import pytest

from dsnb.analysis.comparisons import differences, effects
from dsnb.analysis.texts import MINUS
from dsnb.run_folder.columns import RUN_COLUMNS as COLUMNS
from dsnb.runs import labels


def table(*rows):
    """Give runs: experiment, repeat, ZeRO stage, precision, tokens/s/GPU (None: out of memory), GiB."""
    made = []
    for experiment, repeat, stage, precision, rate, memory in rows:
        status = "ok" if rate else "oom"
        made.append(
            {"sweep": "s", "experiment": experiment, "repeat": repeat, "status": status, "zero_stage": stage,
             "precision": precision, "tokens_per_s_per_gpu": rate, "peak_allocated_gib": memory, "model": "m"}
        )  # fmt: skip
    return pd.DataFrame(made, columns=COLUMNS).astype({"tokens_per_s_per_gpu": float, "peak_allocated_gib": float})


RUNS = table(
    ("a", 1, 1, "bf16", 100, 10),
    ("a", 2, 1, "bf16", 104, 10),  # median 102, standard deviation 2.83
    ("b", 1, 3, "bf16", 50, 7),
    ("b", 2, 3, "bf16", 54, 7),  # 52: 49 % less
    ("c", 1, 0, "bf16", None, None),
    ("c", 2, 0, "bf16", None, None),
    ("d", 1, 1, "fp32", 99, 20),  # one run: nothing is known about noise
    ("e", 1, 3, "fp32", 20, 14),  # differs from a in two settings
)


def test_one_change_alone_is_compared_and_ordered_by_axis_and_value():
    found = effects(RUNS, "a", ["zero_stage", "precision"], ["tokens_per_s_per_gpu", "peak_allocated_gib"])
    assert list(found["experiment"]) == ["c", "b", "d"]
    assert list(zip(found["axis"], found["before"], found["after"], strict=True)) == [
        ("zero_stage", 1, 0),
        ("zero_stage", 1, 3),
        ("precision", "bf16", "fp32"),
    ]
    assert list(found["n"]) == [0, 2, 1]
    assert list(found["n_failed"]) == [2, 0, 0]
    changes = found["tokens_per_s_per_gpu_change_pct"] / 100
    assert changes.isna().tolist() == [True, False, False]
    assert changes[1] == pytest.approx((50 + 54) / (100 + 104) - 1)  # of medians
    assert changes[2] == pytest.approx(99 / 102 - 1)
    assert found["peak_allocated_gib_change_pct"][1] == pytest.approx(-30)
    assert set(found["tokens_per_s_per_gpu_verdict"]) == {"too few runs"}
    assert found["tokens_per_s_per_gpu_words"][0] == "too few runs (0 and 2 runs; 4 of each are needed)"


def test_a_table_of_changes_is_one_family():
    """Three settings and two figures: every interval is that of all pairs of three, whatever is selected."""
    rates = {"a": [100, 101, 99, 100.5], "b": [80, 81, 79.5, 80.5], "c": [100.2, 99.8, 100.9, 99.1]}
    made = [
        (name, at, stage, "bf16", rate, 7)
        for stage, (name, own) in enumerate(rates.items())
        for at, rate in enumerate(own)
    ]
    runs = table(*made).assign(mfu=lambda t: t["tokens_per_s_per_gpu"] / 250)
    figures = ["tokens_per_s_per_gpu", "mfu"]
    both = effects(runs, "a", ["zero_stage"], figures).set_index("experiment")
    alone = effects(runs, "a", ["zero_stage"], figures[:1]).set_index("experiment")
    bounds = [f"{figures[0]}_low_pct", f"{figures[0]}_high_pct"]
    pd.testing.assert_frame_equal(both[bounds], alone[bounds])
    known = differences(runs, figure=figures[0])
    assert known["base"].unique() == ["a"]
    pd.testing.assert_frame_equal(alone[bounds], known[["low_pct", "high_pct"]].set_axis(bounds, axis=1))
    assert both[f"{figures[0]}_verdict"].tolist() == ["likely", "unclear"]
    assert both["mfu_words"]["b"] == f"likely: {MINUS}8.0 points ({MINUS}8.8 points to {MINUS}7.1 points)"
    relevant = effects(runs, "a", ["zero_stage"], figures, relevance=0.3).set_index("experiment")
    assert relevant["mfu_words"].tolist() == [
        f"no difference larger than 8.8 points ({MINUS}8.8 points to {MINUS}7.1 points)",
        f"no difference larger than 0.9 points ({MINUS}0.9 points to +0.8 points)",
    ]


def test_one_run_alone_says_nothing_about_differences():
    twins = table(("a", 1, 0, "bf16", 100, 7), ("b", 1, 1, "bf16", 100, 7), ("b", 2, 1, "bf16", 98, 7))
    (change,) = effects(twins, "a", ["zero_stage"], ["tokens_per_s_per_gpu"]).to_dict("records")
    assert change["tokens_per_s_per_gpu_verdict"] == "too few runs"
    assert math.isnan(change["tokens_per_s_per_gpu_low_pct"])


def test_what_goes_without_saying_is_not_mentioned():
    axis = labels.AXES["tensor_parallel"]
    assert [axis.describe_unusual(value) for value in (1, 2)] == ["", "TP 2"]
    assert labels.AXES["zero_stage"].describe_unusual(0) == "ZeRO 0"
