"""The sentences of an answer: true for one run, one setting, failed runs and published rows."""

import re

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.results.answers.card import card, confirmed, cost_amount, within_range
from dsnb.results.answers.decide import Question, of_runs
from dsnb.results.runs.number_text import MINUS
from dsnb.results.statistics.tasks import tasks
from dsnb.show.render.predictions import predicted_figures
from tests.support import made_up

ONE_TASK = {
    "gpus": [1],
    "micro_batch_size": [8],
    "grad_accum": [1],
    "activation_checkpointing": [False],
}
TWO = {"precision": ["bf16"], "zero_stage": [1, 2]}


def text(runs, **question):
    """Give the sentences of the card of one task as plain text."""
    said = card(of_runs(runs, Question(**{"assumed_price": 2.5, "tokens": 10e9, **question})))
    return " ".join(said.values())


def runs(count, repeats=1, **other):
    """Give ok runs of one task at 1,000 tokens/s a GPU, 10 % less for each setting after the first."""
    table = made_up.runs(count, repeats=repeats, **{**ONE_TASK, **other}).assign(
        status="ok", cause=None
    )
    place = table.groupby("experiment", sort=False).ngroup()
    rates = 1000.0 * 0.9**place * (1 + 0.002 * (table["repeat"] - 1)) * table["gpus"]
    return table.assign(
        tokens_per_s=rates,
        tokens_per_s_per_gpu=rates / table["gpus"],
        peak_allocated_gib=8.0 + place,
    )


def test_no_figure_is_beyond_the_end_of_its_range():
    """1,000 tokens/s, where nothing was ever faster than 800."""
    option = {"tokens_per_s": 1000.0, "tokens_per_s_high": 800.0, "gpus": 2, "memory_gib": 5.0}
    option |= {"step_time_s": 4.0, "days": 10.0, "gpu_hours": 480.0, "energy_kwh": 240.0}
    shown = within_range(pd.Series(option | {"cost": 960.0}))
    assert shown["tokens_per_s"] == 800
    assert shown["step_time_s"] == 5
    assert shown["days"] == 12.5
    assert shown["gpu_hours"] == 600
    assert shown["energy_kwh"] == 300
    assert shown["cost"] == 1200
    assert (shown["gpus"], shown["memory_gib"]) == (2, 5)


def test_a_cost_has_the_digits_that_its_error_supports():
    predicted = {"cost": 10412.5, "tokens_per_s_error_pct": 11.0}
    assert cost_amount(predicted) == "10,400"
    assert cost_amount(predicted | {"tokens_per_s_error_pct": 60.0}) == "10,000"
    assert cost_amount({"cost": 10412.5}) == "10,413"  # measured


def test_the_numbers_can_be_done_in_the_head():
    own = runs(1, precision=["bf16"], zero_stage=[1]).assign(
        gpu_name="H200", power_w=500.0, gpu_memory_gib=140.0
    )
    found = text(own, tokens=3.6e9, prices={"H200": 2.0}, currency="€")
    # 3.6e9 tokens at 1,000 a second are 3.6e6 s, 1,000 hours
    start = "No advice below 5 measured settings, and there is 1. Best so far: "
    assert f"{start}ZeRO 1, bf16, micro-batch 8, on 1 H200." in found
    assert "Measured: ZeRO 1, bf16, micro-batch 8, on 1 H200: 1,000 tokens/s (1 run). " in found
    untried = "parallelism or precision or micro-batch or activation checkpointing"
    assert (
        f"Measure next: 4 more settings, such as other values of {untried}, with 4 runs of each."
        in found
    )
    assert (
        "1,000 tokens/s; 3.6 billion tokens: 41.7 days, 1,000 GPU-hours, 500 kWh, €2,000 at €2.00 a GPU-hour; "
        "GPU memory 8 of 140 GiB." in found
    )
    assert "Only one setting was measured, so there is nothing to compare." in found
    assert "Speed and memory: measured, one run." in found
    for word in (
        "Fastest",
        "Runner-up",
        "lightest",
        "repeat",
        "noise",
    ):  # one run is not the fastest of anything
        assert word not in found


def test_five_settings_are_enough_for_advice_and_four_are_not():
    five = runs(5, precision=["bf16"], zero_stage=[0, 1, 2, 3], gpus=[1, 2])
    five = five.assign(experiment=list("abcde"))
    assert "Train gpt2 with " in text(five)
    assert "Measure next" not in text(five)
    four = text(five[five["experiment"] != "e"])
    assert "Train gpt2 with " not in four
    assert "No advice below 5 measured settings, and there are 4. Best so far: " in four
    assert "Measure next: 1 more setting, such as" in four


def test_settings_that_ran_once_are_too_few_to_be_sure():
    found = text(runs(2, **TWO))
    assert (
        "10 % slower (1 and 1 runs, too few to be sure: 4 of each are needed), 1 GiB more." in found
    )
    assert "Fastest of 2 measured settings" in found
    assert "Fastest of 2 settings" in text(
        runs(2, **TWO).assign(source=["dsnb", "published: elsewhere"])
    )


def test_a_setting_of_many_runs_comes_before_a_faster_one_of_a_few():
    """The second setting has four runs at 900 tokens/s; the first has one at 1,000, which are 11 % more."""
    table = runs(8, repeats=4, **TWO).drop(index=[1, 2, 3])
    found = card(of_runs(table.assign(gpus=1), Question(10e9)))
    assert found["kicker"] == "Confirmed by 4 runs"
    assert "Best so far: ZeRO 2, bf16, micro-batch 8, on 1 GPU." in found["headline"]
    assert found["following"] == "Perhaps 11 % faster: ZeRO 1 (one run), 1 GiB less."
    assert "too few" not in " ".join(found.values())
    two = runs(12, repeats=4, precision=["bf16"], zero_stage=[1, 2, 3]).drop(index=[2, 3])
    found = card(of_runs(two, Question(10e9)))
    assert found["kicker"] == "Confirmed by 4 runs. Fastest of 2 settings with 4 runs or more"
    assert re.match(r"Perhaps 11 % faster: ZeRO \d \(2 runs\)", found["following"])


def test_a_summary_says_the_confirmed_setting_and_the_doubted_one():
    table = runs(20, repeats=4, precision=["bf16"], zero_stage=[0, 1, 2, 3], gpus=[1, 2])
    table = table.assign(gpus=1, experiment=[name for name in "abcde" for _ in range(4)])
    sizes = {"a": 1, "b": 2, "c": 4, "d": 8, "e": 16}
    table["micro_batch_size"] = table["experiment"].map(sizes)
    table = table.assign(zero_stage=1, tokens_per_s=1000.0 - 10 * table["micro_batch_size"])
    assert confirmed(table) == ""
    doubted = confirmed(table.drop(index=[1, 2, 3]))
    said = "Confirmed by 4 runs: ZeRO 1, bf16, micro-batch 2, on 1 GPU. Perhaps 1 % faster: micro-batch 1 (one run)"
    assert doubted.startswith(said)


def test_verdicts_say_what_is_certain():
    four = runs(8, repeats=4, **TWO)
    # logarithms of 1.000 to 1.006 deviate by 0.0026: 0.9 exp(+-2.969 sqrt(2 / 4) 0.0026), 6 degrees of freedom
    assert "10 % slower on average (95 % interval 9.5 to 10.5), 1 GiB more." in text(four)
    found = text(four, relevance=0.2)
    assert (
        "about the same (10 % slower on average, 95 % interval 9.5 to 10.5), 1 GiB more." in found
    )
    assert "Speed and memory: measured, the median of 4 runs, spread ±0.3 %." in found
    equal = four.assign(tokens_per_s=1000.0 + four["repeat"])  # the same with a deviation of 0.0013
    assert f"about the same (no slower on average, 95 % interval {MINUS}0.3 to 0.3)" in text(equal)
    noisy = four.assign(tokens_per_s=[1000, 1200, 850, 1100, 900, 1150, 830, 950])
    assert f", which may be chance (95 % interval {MINUS}" in text(noisy)
    # The first setting has the better median, and a slow run that makes its mean the worse one:
    # (1000^3 x 750)^(1/4) = 930.6; 950.25 / 930.6 = 1.021
    odd = four.assign(tokens_per_s=[1000.0, 1000, 1000, 750, 950, 950, 950, 951])
    assert (
        "2.1 % faster on average, though not by the median, which may be chance (95 % interval"
        in text(odd)
    )


def test_other_gpus_alone_are_the_same_setting():
    opt = next(
        task.runs for task in tasks(dsnb.published("lambda_1cc_opt")) if "350m" in task.title
    )
    found = text(opt)
    assert (
        "Train opt-350m with ZeRO 0, fp16, eager attention, micro-batch 24, on 512 H100-SXM-80GB."
        in found
    )
    assert (
        "50 % slower (changes the training: global batch 6,144 instead of 12,288)." in found
    )  # half needs no doubt
    basis = "Speed: published by Lambda, not measured here, one run. Time and costs: extrapolated"
    assert basis in found
    assert "at an assumed $2.50 a GPU-hour" in found
    cheapest = text(opt, objective="cost", prices={"": 2.5})
    assert "micro-batch 24, on 1 H100-SXM-80GB." in cheapest
    assert "assumed" not in cheapest
    own = text(tasks(dsnb.published("h200_memory"))[0].runs)
    assert " measured settings" in own
    title = "Memory of OPT on NVIDIA H200"
    assert f"Speed and memory: measured with dsnb and published with it ({title}), " in own


def test_what_was_not_measured_is_said():
    jean_zay = dsnb.published("jean_zay_bloom7b").query("seq_len == 1024 and gpus > 8")
    assert "No setting was measured on 4 GPUs or fewer: the smallest ran on 16." in text(
        jean_zay, gpus=4
    )
    failed = made_up.runs(3).assign(status="oom", tokens_per_s=np.nan)
    assert "No setting can be recommended: all 3 runs failed." in text(failed)
    assert "No setting can be recommended: the run failed." in text(failed.head(1))
    for unknown in ("tokens_per_s", "gpus"):
        said = text(runs(3).assign(**{unknown: np.nan}))
        assert (
            "No setting can be recommended: no run measured speed on a known number of GPUs."
            in said
        )
    assert "The cheapest setting is unknown: give a price." in text(
        runs(3), objective="cost", assumed_price=None
    )
    without = runs(3).drop(columns=["peak_allocated_gib", "device_memory_gib"])
    assert "The setting with the least memory is unknown" in text(without, objective="memory")


def test_a_machine_without_gpus_has_ranks():
    cpu = runs(2, precision=["bf16"], zero_stage=[1], gpus=[1, 2]).assign(
        device="cpu", gpu_name=None
    )
    found = text(cpu)
    assert "on 2 CPU ranks." in found
    assert "rank-hours" in found
    assert "GPU" not in found.replace("GPU memory", "")
    assert "$" not in found


def test_unstable_settings_are_counted_and_not_recommended():
    table = runs(6, repeats=2, precision=["bf16"], zero_stage=[1, 2, 3])
    table["tokens_per_s"] = [21097.0, 2296, 9000, 9100, 500, 2000]
    found = text(table)
    assert "2 settings are not ranked (repeats differ over 1.5-fold)." in found
    assert "9,050 tokens/s" in found
    assert "Fastest" not in found  # of one setting
    said = "No setting can be recommended: 1 setting is not ranked (repeats differ over 1.5-fold)."
    assert said in text(table[table["experiment"] == table["experiment"].iloc[0]])


def slow(**other):
    """Give two settings on 1 and 2 GPUs at 50 and 80 tokens/s: the first has more tokens/s a GPU."""
    own = runs(2, **TWO).assign(gpus=[1, 2], gpu_name="H200")
    rates = {
        "tokens_per_s": [50.0, 80.0],
        "tokens_per_s_per_gpu": [50.0, 40.0],
        "experiment": ["one", "two"],
    }
    return own.assign(**{"zero_stage": 1, "micro_batch_size": 8, **rates, **other})


def test_a_training_of_years_is_no_answer():
    """86.4e9 tokens at 80 tokens/s take 12,500 days; one GPU at 50 needs 480,000 hours: 666.7 GPUs for 30 days."""
    said = text(slow(), tokens=86.4e9)
    assert "No measured setting trains gpt2 in reasonable time on 2 H200." in said
    assert (
        "667 GPUs would train on 86.4 billion tokens in 30 days if each sustained 50 tokens/s, as with ZeRO 1, bf16, "
        "micro-batch 8: $1,200,000 at an assumed $2.50 a GPU-hour. This extrapolates beyond what was measured."
        in said
    )
    assert "12,500" not in said
    assert "Train gpt2" not in said
    assert "would train" not in text(slow(), tokens=365 * 86400 * 80)


@pytest.mark.parametrize(
    ("other", "gpus", "objective", "sentence"),
    [
        ({}, 64, "time", "At most 2 of the 64 GPUs at hand were measured: this answer is for 2 GPUs. Measure on more: "
         "dsnb sweep PARAMS --set gpus=64."),
        ({"status": ["ok", "oom"]}, 8, "time", "At most 1 of the 8 GPUs at hand was measured"),
        ({"device": "cpu", "gpu_name": None}, 8, "time", "At most 2 of the 8 ranks at hand were measured"),
    ],
)  # fmt: skip
def test_more_gpus_at_hand_than_were_measured_are_said(other, gpus, objective, sentence):
    assert sentence in text(slow(**other), tokens=1e6, gpus=gpus, objective=objective)
    assert "at hand" not in text(slow(**other), tokens=1e6, gpus=0, objective=objective)


def test_measured_figures_of_a_table_have_no_error():
    nan = float("nan")
    table = pd.DataFrame(
        {
            "fits": True, "peak_allocated_gib": [29.91, 30.0], "peak_allocated_error_pct": [nan, 0.5], "moment": "loss",
            "tokens_per_s": [469430.0, 444466.0], "tokens_per_s_error_pct": [nan, 17.1], "step_time_s": 0.1,
            "tokens_per_s_low": [nan, 380000.0], "tokens_per_s_high": [nan, 500000.0],
            "days_low": 0.07, "days_high": 0.1, "cost": nan,
        }
    )  # fmt: skip
    shown = predicted_figures(table)
    assert shown["GiB"].tolist() == ["29.9", "30.0 ± 0.5 %"]
    assert shown["tokens/s"].tolist() == ["469,400", "444,000 (380,000 to 500,000)"]
