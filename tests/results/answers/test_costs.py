"""What a training costs, and which settings may be the best: known answers, computed by hand beside the call."""

import pandas as pd
import pytest

from dsnb.results.answers.decide import Question, costed, may_be_best, of_runs, worsening
from tests.results.statistics.test_comparisons import runs_of

DAY_S = 24 * 3600


def test_days_energy_and_cost_by_hand():
    """1,000 tokens/s on two GPUs of 500 W at 3 an hour, for ten days."""
    table = pd.DataFrame(
        {"gpus": [2], "tokens_per_s": [1000.0], "power_w": [500.0], "kind": ["H200"]}
    )
    (row,) = costed(table, Question(10 * DAY_S * 1000, prices={"H200": 3.0})).to_dict("records")
    assert row["days"] == 10
    assert row["gpu_hours"] == 2 * 10 * 24
    assert row["energy_kwh"] == 480 * 0.5
    assert row["price"] == 3
    assert row["cost"] == 480 * 3


def test_the_range_of_days_is_that_of_the_predicted_speed():
    """A speed that may be 1.25 times higher or lower."""
    table = pd.DataFrame({"gpus": [1], "tokens_per_s": [1000.0], "tokens_per_s_error_pct": [25.0]})
    (row,) = costed(table.assign(kind="H200"), Question(10 * DAY_S * 1000)).to_dict("records")
    assert row["days_low"] == 8
    assert row["days"] == 10
    assert row["days_high"] == 12.5


def test_settings_are_compared_by_memory_among_those_with_as_many_gpus():
    table = pd.DataFrame(
        {
            "gpus": [1, 2, 2, 2],
            "tokens_per_s": [100.0, 200.0, 150.0, 140.0],
            "memory_gib": [10.0, 5.0, 7.0, 4.0],
        },
        index=["alone", "fast", "slower and larger", "slowest and smallest"],
    ).assign(kind="H200", global_batch=8, is_unstable=False)
    assert may_be_best(table) == ["fast", "slowest and smallest", "alone"]
    assert may_be_best(table.assign(is_unstable=[False, True, False, False])) == [
        "slower and larger", "slowest and smallest", "alone",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "best", "change_pct"),
    [
        ("time", "dear", 100 * (600 / 1000 - 1)),
        ("gpu_hours", "dear", 100 * (600 / 1000 - 1)),
        ("cost", "cheap", 100 * ((1000 / 2) / (600 / 1) - 1)),  # tokens for each unit of money
    ],
)
def test_the_second_setting_is_compared_with_the_best_by_the_objective(objective, best, change_pct):
    runs = runs_of(dear=[1000.0], cheap=[600.0]).assign(gpus=1, gpu_name=["H200", "A100"])
    prices = {"H200": 2.0, "A100": 1.0}
    decision = of_runs(runs, Question(1e9, objective=objective, prices=prices))
    assert decision.options.index[0] == best
    assert decision.difference["change_pct"] == pytest.approx(change_pct)


def test_a_setting_whose_repeats_disagree_is_no_option():
    runs = runs_of(odd=[2000.0, 1000.0], steady=[900.0, 910.0]).assign(gpus=1)
    decision = of_runs(runs, Question(1e9))
    assert list(decision.options.index) == ["steady"]
    assert decision.unstable == 1


def test_less_speed_is_worse_and_costs_more():
    assert worsening(-20.0, "time") == 20
    assert worsening(-20.0, "cost") == pytest.approx(25)  # 1 / 0.8
