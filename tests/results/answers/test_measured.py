"""The lines of measured settings: bad news first, and beside each figure how sure it is."""

import re

from dsnb.results.answers import measured
from dsnb.results.answers.decide import Question, of_runs
from dsnb.results.answers.lines import text
from tests.results.answers.test_card import TWO, runs


def lines(table, width=100, **question):
    asked = Question(**{"tokens": 3.6e9, "assumed_price": None, **question})
    decided = of_runs(table, asked)
    return text(measured.lines(decided, "gpt2, sequence 512"), width).splitlines()


def test_one_setting_is_no_advice_and_that_comes_first():
    """3.6 billion tokens at 1,000 a second are 3.6 million seconds, 1,000 hours."""
    own = runs(1, precision=["bf16"], zero_stage=[1])
    own = own.assign(gpu_name="H200", power_w=500.0, gpu_memory_gib=140.0)
    assert lines(own, 80, prices={"H200": 2.0}, currency="€") == [
        "gpt2, sequence 512 on 1 H200: 3.6 billion tokens",
        "1 setting was measured: no advice below 5.",
        "Best so far  ZeRO 1, bf16, micro-batch 8",
        "  time       41.7 days       1,000 GPU-hours, 500 kWh, €2,000 at €2.00 a",
        "                             GPU-hour",
        "  speed      1,000 tokens/s",
        "  memory     8 of 140 GiB    132 GiB left",
        "Speed and memory: measured, one run. Time and costs: extrapolated to all tokens",
        "without restarts, checkpoints and evaluation.",
        "Measure next: 4 more settings, such as other values of parallelism or precision",
        "or micro-batch or activation checkpointing, 4 runs of each.",
    ]


def five():
    """Return five settings of four runs each, 10 % slower one after the other."""
    table = runs(20, repeats=4, precision=["bf16"], zero_stage=[0, 1, 2, 3, 1])
    names = [f"{name}{place // 4}" for place, name in enumerate(table["experiment"])]
    rates = [1000.0 * 0.9 ** (place // 4) * (1 + 0.002 * (place % 4)) for place in range(20)]
    return table.assign(experiment=names, tokens_per_s=rates, gpu_memory_gib=140.0)


def test_figures_have_the_spread_of_their_runs_and_the_runner_up_its_interval():
    found = lines(five())
    assert found[0] == "gpt2, sequence 512 on 1 GPU: 3.6 billion tokens"
    assert found[1].startswith("Train with  ZeRO ")
    assert found[3].startswith(
        "  speed     1,000 tokens/s  ± 0.3 %  1.4 times as fast as ZeRO 0 in "
    )
    assert "10 % slower on average" in found[5]
    assert re.search(r"  95 % interval 9\.\d to 10\.\d$", found[5])
    assert (
        "Fastest of 5 measured settings. Speed and memory: measured, the median of 4" in found[-2]
    )
    assert len(found) <= 10


def test_two_settings_with_one_run_each_are_too_few_to_be_sure():
    found = lines(runs(2, **TWO))
    assert found[6].endswith("ZeRO 2  10 % slower  9 GiB  too few runs to be sure")


def test_short_and_failed_runs_are_told_before_the_setting():
    table = runs(2, repeats=2, **TWO)
    table.loc[1, "status"] = "oom"
    said = lines(table.assign(timed_steps=4, step_time_mean_s=0.5))[1]
    assert said.startswith("1 setting was measured: no advice below 5. Only 2 s were timed: ")
    failed = runs(2, repeats=2, zero_stage=[1])
    failed.loc[1, "status"] = "oom"
    assert "5. 1 more run of this setting failed." in lines(failed)[1]


def test_no_runs_that_succeeded_are_one_sentence():
    assert lines(runs(2, **TWO).assign(status="oom", tokens_per_s=float("nan"))) == [
        "gpt2, sequence 512",
        "No setting can be recommended: all 2 runs failed.",
    ]
