"""What to train with: the published tables have a known answer to each question."""

import math

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.results.answers.decide import (
    Question,
    candidates,
    decide,
    default_objective,
    of_runs,
)
from dsnb.results.statistics.comparisons import differences
from dsnb.results.statistics.summary import repeat_ratios, unstable
from dsnb.results.statistics.tasks import tasks
from tests.results.statistics.test_comparisons import runs_of
from tests.support import made_up


@pytest.fixture(scope="module")
def opt():
    """The published OPT-350M on 1 to 512 GPUs."""
    return tasks(dsnb.published("lambda_1cc_opt"))[0].runs


def best(runs, **question):
    return of_runs(runs, Question(**question)).options.iloc[0]


def test_only_the_gpus_at_hand_count_and_figures_are_those_by_hand(opt):
    decision = of_runs(opt, Question(gpus=16))
    assert (set(decision.options["gpus"]), decision.gpus) == ({1, 8, 16}, [1, 8, 16])
    assert set(
        of_runs(opt, Question(gpus=np.int64(7), tokens=np.float64(1e9))).options["gpus"]
    ) == {1}
    # 512 GPUs train 30,327,296 tokens/s: 1e12 tokens take 32,973.6 s.
    row = best(opt, tokens=1e12, prices={"": 3.0})
    assert row["days"] == pytest.approx(0.38164, abs=5e-6)
    assert row["gpu_hours"] == pytest.approx(4689.578, abs=5e-4)
    assert row["cost"] == pytest.approx(14068.73, abs=5e-3)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            {"objective": "speed"},
            "objective is 'speed': choose one of time, gpu_hours, cost, memory",
        ),
        ({"tokens": "many"}, "tokens is 'many': give a finite number of more than 0"),
        ({"gpus": -1}, "gpus is -1: give the number of GPUs at hand, or 0 for any"),
        ({"relevance": 1}, "relevance is 1: give 0 or more and less than 1, such as 0.02 for 2 %"),
        (
            {"prices": 2.5},
            "prices is 2.5: give the price of a GPU-hour by GPU, as in {'H200': 2.5}",
        ),
    ],
)
def test_what_has_no_answer_is_refused(question, message):
    with pytest.raises(SettingsError) as caught:
        Question(**question)
    assert str(caught.value).startswith(message)


def one_and_two_gpus(*rates):
    """Give two settings of one task at these tokens/s, the first on one GPU, the second on two."""
    runs = made_up.runs(2, repeats=1, gpus=[1]).assign(
        status="ok", cause=None, gpu_memory_gib=80.0, gpus=[1, 2]
    )
    return runs.assign(
        tokens_per_s=rates,
        gpu_name="H200",
        experiment=["one", "two"],
        peak_allocated_gib=[9.0, 8.0],
    )


@pytest.mark.parametrize(
    ("known", "tokens"),
    [
        ({"model": "opt-1.3b"}, 26e9),  # 1,316 million, to two digits
        ({"model": "unheard of"}, 100e9),
    ],
)
def test_without_a_number_a_model_is_trained_on_20_tokens_per_parameter(known, tokens):
    made = of_runs(one_and_two_gpus(1000.0, 2000.0).assign(**known), Question(objective="time"))
    assert made.question.tokens == tokens
    assert made.options["days"].tolist() == pytest.approx(
        [tokens / 2000 / 86400, tokens / 1000 / 86400]
    )


def test_the_best_of_several_sweeps_is_named_by_its_sweep():
    runs = one_and_two_gpus(1000.0, 2000.0).assign(sweep=["first", "second"], experiment="zs0")
    decision = of_runs(runs, Question(objective="gpu_hours", tokens=1e9))
    assert list(decision.options.index) == ["second/zs0", "first/zs0"]  # equal hours, fewer days
    assert decision.difference["change_pct"] == 0


def test_an_unstable_setting_is_no_base():
    """Its fastest ok run is more than 1.5 times as fast as its slowest."""
    ratios = repeat_ratios(
        runs_of(a=[100.0, 150], b=[100.0, 150.5], c=[100.0], d=[100.0, None, 120])
    )
    assert ratios.tolist() == pytest.approx([1.5, 1.505, math.nan, 1.2], nan_ok=True)
    assert unstable(runs_of(a=[100.0, 150], b=[100.0, 150.5], c=[100.0], e=[None])) == ["b"]
    runs = runs_of(odd=[21097.0, 2296], steady=[9000.0, 9100], slower=[8000.0, 7900])
    assert set(differences(runs)["base"]) == {"steady"}
    assert set(differences(runs[runs["experiment"] == "odd"])["base"]) == set()


def repeated_and_single(single_rate, objective="time", relevance=0.02):
    """Return the order of a setting of four runs at 1,000 tokens/s, and one that ran once."""
    rates = {"repeated": [1000.0] * 4, "single": [single_rate], "slow": [500.0] * 4}
    table = runs_of(**rates).assign(gpus=1, peak_allocated_gib=8.0)
    decision = of_runs(
        table, Question(tokens=1e9, objective=objective, relevance=relevance, prices={"": 1.0})
    )
    return list(decision.options.index), decision.is_by_repeats


@pytest.mark.parametrize("objective", ["time", "gpu_hours", "cost"])
def test_a_repeated_setting_comes_before_a_single_run_unless_that_is_clearly_better(objective):
    confirmed = ["repeated", "single", "slow"]
    assert repeated_and_single(1015.0, objective) == (confirmed, True)
    assert repeated_and_single(1890.0, objective) == (confirmed, True)
    assert repeated_and_single(1910.0, objective) == (["single", "repeated", "slow"], False)
    assert repeated_and_single(1910.0, objective, relevance=0.5) == (confirmed, True)
    assert repeated_and_single(990.0, objective) == (confirmed, False)


def test_a_single_run_is_enough_for_the_least_memory():
    rates = {"repeated": [1000.0] * 4, "single": [900.0]}
    table = runs_of(**rates).assign(gpus=1)
    table["peak_allocated_gib"] = table["experiment"].map({"repeated": 8.0, "single": 7.0})
    options = of_runs(table, Question(tokens=1e9, objective="memory")).options
    assert list(options.index) == ["single", "repeated"]


def test_a_setting_that_comes_first_for_its_room_does_not_come_first_for_its_repeats():
    """The fastest is tight, and another that takes 3 % longer has room: no reason to speak of repeats."""
    table = candidates(
        runs_of(fast=[1000.0], roomy=[970.0], slow=[500.0]).assign(gpus=1, peak_allocated_gib=8.0)
    )
    made = decide(table.assign(tight=[True, False, False], n=math.nan), Question(1e9))
    assert list(made.options.index) == ["roomy", "slow", "fast"]
    assert not made.is_by_repeats


def test_what_a_candidate_is_known_by():
    """Two ok runs and one out of memory: medians of the former, half their range, the smaller capacity."""
    runs = pd.DataFrame(
        {"sweep": "s", "experiment": "a", "status": ["ok", "ok", "oom"], "model": "gpt2"}
    )
    runs = runs.assign(
        gpus=4, gpu_name="H200", tokens_per_s=[100.0, 110.0, 900.0], peak_allocated_gib=[10.0, 12.0, 99.0],
        gpu_memory_gib=[80.0, 79.0, 78.5], power_w=[400.0, None, 10.0], host=["h1", "h2", "h3"],
        timed_s=[4.0, 6.0, 0.0], steps=[10, 20, 30],
    )  # fmt: skip
    (row,) = candidates(runs).to_dict("records")
    assert (row["n"], row["n_failed"], row["hosts"]) == (2, 1, 2)
    assert (row["tokens_per_s"], row["memory_gib"], row["gpu_memory_gib"]) == (105, 11, 78.5)
    assert row["spread_pct"] == pytest.approx(100 * 5 / 105)
    assert (row["power_w"], row["timed_s"], row["steps"]) == (400, 5, 15)
    unknown = candidates(runs.assign(power_w=None, host=["h1", None, "h3"]), power_w=600.0)
    assert (unknown["power_w"]["a"], math.isnan(unknown["hosts"]["a"])) == (600, True)
    three = candidates(runs.assign(status="ok", tokens_per_s=[100.0, 101.0, 110.0]))
    assert three["spread_pct"]["a"] == pytest.approx(
        100 * 5 / 101
    )  # not yet the standard deviation
    four = pd.concat(
        [
            runs.assign(status="ok", tokens_per_s=[90.0, 90, 110]),
            runs.head(1).assign(tokens_per_s=110.0),
        ]
    )
    assert candidates(four)["spread_pct"]["a"] == pytest.approx((400 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("columns", "objective"),
    [
        ({}, "gpu_hours"),
        ({"gpus": 2}, "time"),
        ({"status": ["ok", "oom"]}, "time"),
        ({"device": "cpu", "gpu_name": None}, "time"),  # ranks share the cores of a machine
    ],
)
def test_the_usual_objective_is_gpu_hours_where_their_number_differs(columns, objective):
    assert default_objective(one_and_two_gpus(100.0, 180.0).assign(**columns)) == objective


def test_the_second_option_has_the_interval_that_all_settings_of_the_task_give_it():
    """Also settings that are no options, such as one whose repeats disagree."""
    noise = np.array([0.99, 1, 1, 1.01])
    runs = runs_of(a=list(1000 * noise), b=list(900 * noise), wild=[500.0, 900, 900, 900])
    row = of_runs(runs.assign(gpus=1), Question()).difference
    known = differences(runs, baseline="a").loc["b"]
    for name in ("change_pct", "low_pct", "high_pct"):
        assert row[name] == pytest.approx(known[name])


def test_adapters_are_trained_on_fewer_tokens_unless_a_number_is_given():
    runs = runs_of(a=[1000.0]).assign(gpus=1, lora_rank=8, model="gpt2")
    assert of_runs(runs, Question()).question.tokens == 50e6
    assert of_runs(runs, Question(1e9)).question.tokens == 1e9
