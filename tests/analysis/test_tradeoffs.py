"""The Pareto front and what one change costs, with figures that can be done in the head."""

import math

import pandas as pd
import pytest

from dsnb.analysis.comparison_table import MINUS
from dsnb.analysis.differences import differences
from dsnb.analysis.tradeoffs import effects, pareto_front
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


def test_the_front_is_what_nothing_else_beats():
    speed = pd.Series({"slow": 1.0, "light": 2.0, "good": 5.0, "heavy": 5.0, "fast": 6.0, "unknown": float("nan")})
    memory = pd.Series({"slow": 3.0, "light": 1.0, "good": 2.0, "heavy": 4.0, "fast": 5.0, "unknown": 0.0})
    assert pareto_front(memory, speed, "lower", "higher") == ["light", "good", "fast"]
    assert pareto_front(memory, speed, "lower", "lower") == ["light", "slow"]
    assert pareto_front(speed, memory, "higher", "lower") == ["fast", "good", "light"]
    assert pareto_front(speed.head(0), memory.head(0), "lower", "higher") == []


def test_the_front_leaves_out_what_is_hardly_better():
    memory = pd.Series({"a": 10.0, "b": 10.1, "c": 10.15, "d": 20.0, "e": 20.1})
    speed = pd.Series({"a": 100.0, "b": 101.0, "c": 110.0, "d": 111.0, "e": 130.0})
    assert pareto_front(memory, speed, "lower", "higher", tolerance=0) == ["a", "b", "c", "d", "e"]
    # c takes 1.5 % more than a and is 10 % faster; d is 0.9 % faster than c for twice the memory
    assert pareto_front(memory, speed, "lower", "higher", tolerance=0.02) == ["c", "e"]
    assert pareto_front(memory - 10, speed, "lower", "higher", tolerance=0.02) == ["a", "b", "c", "d", "e"]


def test_a_front_in_small_steps_keeps_entries_all_along():
    steps = pd.Series(range(40))
    memory, speed = 1.015**steps, 1.03**steps  # each beats the one before
    front = pareto_front(memory, speed, "lower", "higher", tolerance=0.02)
    assert front == list(range(1, 40, 2))


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
    changes = found["tokens_per_s_per_gpu_change"]
    assert changes.isna().tolist() == [True, False, False]
    assert changes[1] == pytest.approx((50 + 54) / (100 + 104) - 1)  # of medians
    assert changes[2] == pytest.approx(99 / 102 - 1)
    assert found["peak_allocated_gib_change"][1] == pytest.approx(-0.3)
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
    two = runs[runs["experiment"] != "c"]
    selected = effects(two, "a", ["zero_stage"], figures, task_runs=runs).set_index("experiment")
    pd.testing.assert_frame_equal(selected[bounds], alone[bounds].loc[["b"]])
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
