"""What a training costs, and which settings may be the best: known answers, computed by hand beside the call."""

import math

import pandas as pd
import pytest

from dsnb.base.formulas import planning
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
    """A speed of 1,000 that may be 800 or 1,250."""
    ends = {"tokens_per_s_low": [800.0], "tokens_per_s_high": [1250.0]}
    table = pd.DataFrame({"gpus": [1], "tokens_per_s": [1000.0], **ends})
    (row,) = costed(table.assign(kind="H200"), Question(10 * DAY_S * 1000)).to_dict("records")
    assert row["days_low"] == 8
    assert row["days"] == 10
    assert row["days_high"] == 12.5
    (tight,) = costed(table.assign(kind="H200", tight=True), Question(1e9)).to_dict("records")
    assert math.isnan(tight["days_high"])  # little memory may make it any slower


def test_a_price_is_that_of_the_hardware_or_of_all_others_or_assumed():
    table = pd.DataFrame({"gpus": 1, "tokens_per_s": [2.0, 1.0], "kind": ["H200", "CPU"]})
    prices = costed(table, Question(1e9, prices={"H200": 3.0}, assumed_price=2.5))["price"]
    assert prices.fillna(0).tolist() == [3, 0]  # none is assumed for a CPU
    assert costed(table, Question(1e9, prices={"": 1.5}))["price"].tolist() == [1.5, 1.5]
    assert costed(table, Question(1e9, assumed_price=2.5))["price"].fillna(0).tolist() == [2.5, 0]


def test_tokens_and_gpus_of_a_plan_by_hand():
    assert planning.usual_tokens(1_316e6) == 26e9  # 26.32 billion, to two digits
    assert planning.usual_tokens(0) == 100e9
    assert planning.usual_tokens(1_316e6, fine_tuning=True) == 50e6
    assert planning.gpus_needed(10 * 24 * 30) == 10  # for 30 days
    assert planning.gpus_needed(10 * 24 * 30 + 1) == 11
    assert planning.gpus_needed(48, days=1) == 2
    for adapts in ({"lora_rank": 8}, {"lora_rank": 0, "weights": "pretrained"}):
        assert planning.is_fine_tuning(adapts)
    for trains in ({}, {"lora_rank": 0}, {"lora_rank": math.nan}, {"weights": "random"}):
        assert not planning.is_fine_tuning(trains)


def test_settings_are_compared_by_memory_among_those_with_as_many_gpus():
    table = pd.DataFrame(
        {
            "gpus": [1, 2, 2, 2],
            "tokens_per_s": [100.0, 200.0, 150.0, 140.0],
            "memory_gib": [10.0, 5.0, 7.0, 4.0],
        },
        index=["alone", "fast", "slower and larger", "slowest and smallest"],
    ).assign(kind="H200", global_batch=8, is_unstable=False, n=4)
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
    larger = runs.assign(gpus=[1, 1, 2, 2])  # what needs more GPUs than are at hand is not counted
    assert of_runs(larger, Question(1e9, gpus=1)).unstable == 1


def test_less_speed_is_worse_and_costs_more():
    assert worsening(-20.0, "time") == 20
    assert worsening(-20.0, "cost") == pytest.approx(25)  # 1 / 0.8
