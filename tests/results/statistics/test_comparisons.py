"""Tables of runs compared: who is the base, what counts as a run, and the words."""

import math

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.results.runs.number_text import MINUS
from dsnb.results.statistics.comparisons import COLUMNS, differences
from dsnb.settings.records.columns import RUN_COLUMNS

FAST = [1000.0, 1010, 990, 1005, 995]


def runs_of(figure="tokens_per_s", hosts=None, **values):
    """Give a run for each value of each experiment; None is a run out of memory."""
    rows = [
        {"sweep": "s", "experiment": name, "repeat": place, "status": "oom" if value is None else "ok", figure: value,
         "host": (hosts or {}).get(name, ["h"] * len(own))[place - 1]}
        for name, own in values.items() for place, value in enumerate(own, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=RUN_COLUMNS).astype({figure: float})


def test_two_settings_by_hand():
    """Welch's t of the logarithms: 0.0953 apart, each with a variance of 6.25e-5 over 5 runs.

    Speed and memory share the error rate of 5 %: t(8, 98.75 %) = 2.7515.
    """
    found = differences(runs_of(fast=FAST, slow=[value / 1.1 for value in FAST]))
    assert list(found.columns) == ["base", *COLUMNS]
    (row,) = found.reset_index().to_dict("records")
    assert (row["experiment"], row["base"], row["n"], row["base_n"], row["n_failed"]) == (
        "slow",
        "fast",
        5,
        5,
        0,
    )
    margin = 2.7515 * math.sqrt(2 * np.log(FAST).var(ddof=1) / 5)
    assert row["change_pct"] == pytest.approx(100 * (1 / 1.1 - 1))
    assert row["low_pct"] == pytest.approx(100 * (math.exp(-margin) / 1.1 - 1), abs=1e-3)
    assert row["high_pct"] == pytest.approx(100 * (math.exp(margin) / 1.1 - 1), abs=1e-3)
    assert row["largest_pct"] == -row["low_pct"]
    assert row["p"] < 1e-6
    assert (
        row["words"] == "likely: \N{MINUS SIGN}9.1 % (\N{MINUS SIGN}10.3 % to \N{MINUS SIGN}7.8 %)"
    )
    assert row["base_value"] == pytest.approx(math.exp(np.log(FAST).mean()))
    assert row["value"] == pytest.approx(row["base_value"] / 1.1)
    assert (row["better"], row["note"]) == (False, "")


def test_a_p_value_is_for_speed_and_memory_together():
    """t(8) exceeds 2.306 in either direction with a probability of 5 %, for one of two figures with 10 %."""
    error = math.sqrt(2 * np.log(FAST).var(ddof=1) / 5)
    found = differences(runs_of(fast=FAST, slow=[rate * math.exp(-2.306 * error) for rate in FAST]))
    assert found["p"]["slow"] == pytest.approx(0.10, abs=1e-4)


def test_a_named_baseline_and_other_columns():
    found = differences(
        runs_of("step_time_mean_s", a=FAST, b=[value / 1.1 for value in FAST]), figure="step_time_s"
    )
    assert list(found["base"]) == ["b"]  # lower is better
    assert found["change_pct"]["a"] == pytest.approx(10)
    assert not found["better"]["a"]
    runs = runs_of(a=FAST, b=[1.1 * value for value in FAST], c=FAST).assign(
        zero_stage=lambda t: t["experiment"] == "b"
    )
    found = differences(runs, baseline="a")
    assert list(found["base"]) == ["a", "a"]
    assert list(found["better"].astype(object)) == [True, None]
    assert list(found["verdict"]) == ["likely", "no larger difference"]
    grouped = differences(runs, by="zero_stage")
    assert (list(grouped.index), grouped["n"][False], grouped["base_n"][False]) == ([False], 10, 5)
    both = differences(runs, by=["zero_stage", "precision"])
    assert both.index.names == ["zero_stage", "precision"]


def test_every_task_has_its_own_base():
    small, large = (
        runs_of(a=FAST, b=[value / 2 for value in FAST]),
        runs_of(c=[50.0] * 5, d=[40.0] * 5, e=[45.0] * 5),
    )
    runs = pd.concat(
        [small.assign(model="small"), large.assign(model="large")], ignore_index=True
    ).assign(gpus=1)
    found = differences(runs)
    assert found["base"].to_dict() == {
        "d": "c",
        "e": "c",
        "b": "a",
    }  # the task with the most runs first
    assert found["task"].to_dict() == {"d": "large", "e": "large", "b": "small"}
    assert found["change_pct"].to_dict() == pytest.approx(
        {"d": -20, "e": -10, "b": -50}
    )  # e of a would be -95.5 %
    for task in (small, large):  # the same interval as without the other task
        alone = differences(task)
        assert found.loc[alone.index, "high_pct"].tolist() == pytest.approx(
            alone["high_pct"].tolist()
        )

    named = differences(runs, baseline="d")
    assert named["base"].to_dict() == {
        "c": "d",
        "e": "d",
        "b": "a",
    }  # the other task has its best one
    assert named["change_pct"]["c"] == pytest.approx(25)
    unknown = "baseline 'z' is not among the settings: c, d, e, a, b"
    with pytest.raises(SettingsError, match=f"^{unknown}$"):
        differences(runs, baseline="z")
    with pytest.raises(
        SettingsError, match=r"^baseline 'd' is not in every task, and neither direction of 'power"
    ):
        differences(
            runs.rename(columns={"tokens_per_s": "power_x"}), figure="power_x", baseline="d"
        )
    runs["precision"] = runs["experiment"].map(
        {"a": "bf16", "b": "fp32", "c": "bf16", "d": "fp32", "e": "fp16"}
    )
    by_precision = differences(runs, by="precision", baseline="fp32")
    assert list(by_precision.index) == ["bf16", "fp16", "bf16"]
    assert by_precision["change_pct"].tolist() == pytest.approx([25, 12.5, 100])


def test_a_missing_stage_is_a_setting_of_its_own_and_may_be_the_base():
    runs = runs_of(plain=[100.0] * 4, zs0=[80.0] * 4, zs1=[50.0] * 4)
    runs = runs.assign(precision="bf16", tensor_parallel=1, pipeline_parallel=1)
    runs["strategy"] = ["plain"] * 4 + ["deepspeed"] * 8
    runs["zero_stage"] = [0] * 8 + [1] * 4
    for by in ("zero_stage", ["zero_stage", "precision"]):
        found = differences(runs, by=by)
        assert found["change_pct"].tolist() == pytest.approx(
            [-20, -50]
        )  # zs0 and zs1 of the plain loop
        stage = found["base"].iloc[0] if by == "zero_stage" else found["base"].iloc[0][0]
        assert math.isnan(stage)
    assert differences(runs, by="zero_stage", baseline=math.nan)[
        "change_pct"
    ].tolist() == pytest.approx([-20, -50])
    assert differences(runs, by="zero_stage", baseline=0)["change_pct"].tolist() == pytest.approx(
        [25, -37.5]
    )
    assert differences(runs, by="parallelism", baseline="ZeRO 1")["change_pct"][
        "plain"
    ] == pytest.approx(100)


def test_an_interval_allows_for_all_pairs_of_the_task_whatever_the_base_is():
    random = np.random.default_rng(0)
    runs = runs_of(
        **{
            f"e{number}": list(1000 * np.exp(0.02 * random.standard_normal(5)))
            for number in range(8)
        }
    )
    chosen = differences(runs)
    best = chosen["base"].iloc[0]
    alone = differences(runs[runs["experiment"].isin([best, "e0"])])
    assert chosen["high_pct"]["e0"] > alone["high_pct"]["e0"]
    named, turned = differences(runs, baseline=best), differences(runs, baseline="e0")
    ends = ["low_pct", "high_pct", "p", "verdict"]
    pd.testing.assert_frame_equal(named[ends], chosen[ends])
    mirrored = [
        100 * (1 / (1 + end / 100) - 1)
        for end in (turned["high_pct"][best], turned["low_pct"][best])
    ]
    assert list(chosen.loc["e0", ["low_pct", "high_pct"]]) == pytest.approx(mirrored)


def test_percentages_are_compared_as_they_are():
    """Utilization 51, 12 and so on: means 50 and 60 with variances of 8, error 2; t(6, 98.75 %) = 2.9687."""
    busy, idle = [48.0, 48, 52, 52], [58.0, 58, 62, 62]  # variances (4 x 4) / 3
    found = differences(
        runs_of("gpu_util_pct", busy=busy, idle=idle), figure="gpu_util_pct", baseline="busy"
    )
    (row,) = found.to_dict("records")
    assert (row["base_value"], row["value"], row["change_pct"]) == (50, 60, pytest.approx(20))
    margin = 2.9687 * math.sqrt(2 * (16 / 3) / 4)
    assert row["low_pct"] == pytest.approx(100 * (10 - margin) / 50, abs=1e-2)
    assert row["high_pct"] == pytest.approx(100 * (10 + margin) / 50, abs=1e-2)
    assert (
        row["words"]
        == f"likely: +10.0 points (+{10 - margin:.1f} points to +{10 + margin:.1f} points)"
    )
    idle = runs_of("gpu_util_pct", a=[0.0] * 4, b=[1.0] * 4 + [math.nan])
    zero = differences(idle, figure="gpu_util_pct", baseline="a")
    assert zero["n"]["b"] == zero["base_n"]["b"] == 4  # 0 % is a measurement
    assert zero["note"]["b"] == "1 ok run has no figure; the figure is the same in every run"
    assert zero["words"]["b"].endswith("(+1.0 points to +1.0 points)")
    assert zero[["change_pct", "low_pct", "high_pct"]].isna().all(axis=None)  # of 0, no percentage
    shares = runs_of("mfu", a=[0.48, 0.48, 0.52, 0.52], b=[0.58, 0.58, 0.62, 0.62])  # a hundredth
    assert differences(shares, figure="mfu", baseline="a")["words"]["b"] == row["words"]


def test_the_difference_is_that_of_the_values_shown():
    """Means of four runs, with their interval; medians of three, which one slow run does not change."""
    four = differences(runs_of(a=[1000.0, 1000, 1000, 700], b=[900.0, 900, 900, 901])).loc["b"]
    assert four["base_value"] == pytest.approx((1000**3 * 700) ** 0.25)
    assert four["change_pct"] == pytest.approx(100 * (four["value"] / four["base_value"] - 1))
    assert four["low_pct"] < four["change_pct"] < four["high_pct"]
    three = differences(runs_of(a=[1000.0, 1000, 700], b=[900.0, 900, 900])).loc["b"]
    assert (three["base_value"], three["value"], three["change_pct"]) == (
        1000,
        900,
        pytest.approx(-10),
    )
    assert math.isnan(three["low_pct"])
    assert math.isnan(three["p"])


def test_failed_and_unusable_runs_count_and_have_no_value():
    found = differences(
        runs_of(
            a=FAST, b=[*FAST, None, None], c=[*FAST, math.nan, 0.0, -1.0, math.inf], d=[None, None]
        )
    )
    assert list(found["n"]) == [5, 5, 0]
    assert list(found["n_failed"]) == [0 + 2, 0, 2]
    assert found["note"]["c"] == "4 ok runs have no positive figure"
    assert found["verdict"]["d"] == "too few runs"
    assert found["words"]["d"] == "too few runs (0 and 5 runs; 4 of each are needed)"
    (row,) = differences(
        runs_of(a=[*FAST, None, None, math.nan], b=[*(FAST[:4]), None, math.nan, 0.0]), baseline="a"
    ).to_dict("records")
    assert (row["n"], row["base_n"], row["n_failed"], row["base_n_failed"]) == (4, 5, 1, 2)
    assert row["note"] == "3 ok runs have no positive figure"
    few = differences(runs_of(a=[100.0], b=[50.0], c=[80.0, 81.0]))["words"]["b"]
    assert few == f"too few runs: {MINUS}50.0 % (1 and 1 runs; 4 of each are needed)"
    assert differences(runs_of(a=[None], b=[None])).empty
    assert differences(runs_of(a=FAST)).empty


def test_runs_on_a_host_of_their_own_count_as_one():
    slow = [value / 1.1 for value in FAST]
    found = differences(runs_of(hosts={"a": 5 * ["h1"], "b": 5 * ["h2"]}, a=FAST, b=slow))
    assert (found["n"]["b"], found["base_n"]["b"], found["verdict"]["b"]) == (1, 1, "too few runs")
    assert (
        found["note"]["b"]
        == "the settings ran on different hosts, so runs on one host count as one"
    )
    assert (
        found["words"]["b"]
        == "too few hosts: \N{MINUS SIGN}9.1 % (1 and 1 hosts; 4 of each are needed)"
    )
    three = differences(runs_of(hosts={"a": 5 * ["h1"], "b": 3 * ["h2"]}, a=FAST, b=slow[:3]))
    assert "(3 and 5 runs; 4 of each are needed)" in three["words"]["b"]
    apart = [f"h{number}" for number in range(10)]
    shared = ["h1", "h1", "h1", "h2", "h2"]
    for one, other in (
        (apart[:5], apart[5:]),
        (apart[:5], apart[1:6]),
        (shared, shared),
        ([None] * 5, ["h"] * 5),
    ):
        assert differences(runs_of(hosts={"a": one, "b": other}, a=FAST, b=slow))["n"]["b"] == 5
    mixed = {"a": ["h1", "h1", "h2", "h2"], "b": ["h1", "h2", "h2", "h2"]}
    assert differences(runs_of(hosts=mixed, a=FAST[:4], b=slow[:4]))["n"]["b"] == 4  # hardly differ
    alike = differences(
        runs_of(hosts={"a": 5 * ["h1"], "b": 5 * ["h2"]}, a=FAST, b=slow), hosts_alike=True
    )
    assert alike["verdict"]["b"] == "likely"


def test_means_of_hosts_vary_as_they_do_and_not_as_runs():
    """Two runs on each of four hosts, 0.05 apart from their mean; variance of the means 2e-5 / 3; t(6, 98.75 %)."""
    logarithms = [mean + off for mean in (-0.003, -0.001, 0.001, 0.003) for off in (-0.05, 0.05)]
    slow = [1000 * math.exp(value) for value in logarithms]
    fast = [1.1 * value for value in slow]
    hosts = {name: [f"{name}{place // 2}" for place in range(8)] for name in ("slow", "fast")}
    found = differences(runs_of(hosts=hosts, slow=slow, fast=fast), baseline="slow").loc["fast"]
    margin = 2.9687 * math.sqrt(2 * 2e-5 / 3 / 4)
    assert (found["n"], found["base_n"], found["verdict"]) == (4, 4, "likely")
    assert found["high_pct"] == pytest.approx(100 * (1.1 * math.exp(margin) - 1), abs=1e-3)


def test_no_difference_larger_than_the_end_that_is_farther_from_zero():
    """0.5 % less, and the margin of `test_two_settings_by_hand`: exp(-0.0138) and exp(0.0138) times 0.995."""
    found = differences(runs_of(a=FAST, b=[0.995 * value for value in FAST]), baseline="a")
    assert found["words"]["b"] == f"no difference larger than 1.9 % ({MINUS}1.9 % to +0.9 %)"


def test_a_setting_whose_repeats_disagree_is_no_base():
    found = differences(runs_of(wild=[1000.0, 2000, 2000, 2000], calm=[500.0] * 4))
    assert found["base"].to_dict() == {"wild": "calm"}


def test_a_table_without_sweeps_is_compared():
    table = runs_of(a=FAST, b=[value / 2 for value in FAST])
    bare = table[["experiment", "status", "tokens_per_s"]]
    assert differences(bare)["words"].to_dict() == differences(table)["words"].to_dict()
    assert dsnb.compare(bare, bare)["n"].to_dict() == {"b": 10}  # no column tells them apart


def test_wrong_questions_are_refused():
    runs = runs_of(a=FAST, b=FAST)
    neither = "neither direction of 'grad_norm_last' is better: give a baseline, or say which is (better=...)"
    unknown = "runs have no column 'speed': choose one such as 'tokens_per_s' or 'step_time_mean_s'"
    for wrong, message in (
        ({"figure": "speed"}, unknown),
        ({"figure": "grad_norm_last"}, neither),
        ({"baseline": "z"}, "baseline 'z' is not among the settings: a, b"),
        ({"relevance": 1}, "relevance is 1: must be 0 or more and less than 1 (0.02 is 2 %)"),
        ({"confidence": 95}, "confidence is 95: must be between 0 and 1 (0.95 is 95 %)"),
        ({"fewest_runs": 1}, "fewest_runs is 1: must be 2 or more, a single run has no spread"),
    ):  # fmt: skip
        with pytest.raises(SettingsError) as caught:
            differences(runs, **wrong)
        assert str(caught.value) == message


NOISE = np.array([1, 1.004, 0.996, 1.002, 0.998])


def sweep(rates, name="old", **columns):
    """Give five runs for each ZeRO stage at the given tokens/s."""
    rows = [
        {"sweep": name, "experiment": f"{name}_zs{stage}", "repeat": place, "status": "ok", "model": "gpt2",
         "zero_stage": stage, "tokens_per_s": rate * factor, "host": "h", **columns}
        for stage, rate in rates.items() for place, factor in enumerate(NOISE, 1)
    ]  # fmt: skip
    more = [column for column in columns if column not in RUN_COLUMNS]
    return pd.DataFrame(rows).reindex(columns=[*RUN_COLUMNS, *more])


def test_settings_match_whatever_they_are_called():
    found = dsnb.compare(
        sweep({0: 1000, 1: 900, 2: 800}),
        sweep({1: 990.0, 0: 1001, 3: 700}, "new", deepspeed="0.20"),
    )
    assert list(found.index) == ["new_zs0", "new_zs1", "old_zs2", "new_zs3"]
    assert list(found["verdict"]) == [
        "no larger difference",
        "likely",
        "too few runs",
        "too few runs",
    ]
    assert list(found["only_in"]) == ["", "", "before", "after"]
    assert list(found["n"]) == [5, 5, 0, 5]
    assert list(found["base_n"]) == [5, 5, 5, 0]
    assert found["change_pct"]["new_zs1"] == pytest.approx(10)
    assert found["better"]["new_zs1"]
    assert found["words"]["new_zs0"].startswith("no difference larger than 0.9 %")


def test_a_pair_has_the_interval_that_it_has_among_all_settings_of_its_task():
    before, after = sweep({0: 1000, 1: 1000, 2: 1000}), sweep({0: 1015, 1: 1012, 2: 1000}, "new")
    other = sweep(
        {0: 300, 1: 290}, "elsewhere", seq_len=4096
    )  # another task, which shares no error rate
    together = dsnb.compare(pd.concat([before, other]), pd.concat([after, other]))
    known = differences(pd.concat([before, after]), baseline="old/old_zs0")
    ends = ["change_pct", "low_pct", "high_pct", "p", "words"]
    assert list(together.loc["new_zs0", ends]) == list(known.loc["new/new_zs0", ends])
    alone = dsnb.compare(*(runs[runs["zero_stage"] == 0] for runs in (before, after)))
    assert together["high_pct"]["new_zs0"] > alone["high_pct"]["new_zs0"]


def test_keys_of_the_configuration_and_missing_ones_are_settings():
    key = "deepspeed.zero_optimization.overlap_comm"
    with_key = sweep({1: 1000}, **{key: True})
    assert list(dsnb.compare(sweep({1: 1000}), with_key)["n"]) == [0, 5]
    assert list(dsnb.compare(with_key, with_key)["n"]) == [5]
    read = with_key.assign(zero_stage=1.0, seq_len=math.nan)
    assert list(dsnb.compare(with_key.assign(seq_len=None), read)["base_n"]) == [5]


def test_runs_made_before_the_allocator_was_a_setting_are_compared_with_those_after():
    old, new = (
        sweep({0: 1000}, allocator="default"),
        sweep({0: 1100}, "new", allocator="expandable"),
    )
    assert list(dsnb.compare(old, new)["base_n"]) == [5]
    both = pd.concat([new, sweep({0: 1000}, "new_alloc-default", allocator="default")])
    found = dsnb.compare(old, both)
    assert list(found.index) == ["new_alloc-default_zs0", "new_zs0"]
    assert list(found["base_n"]) == [5, 0]


def test_a_single_run_that_is_hardly_better_is_no_base():
    repeated = [1000.0, 1001.0, 999.0, 1000.0]
    assert set(
        differences(runs_of(single=[1010.0], repeated=repeated, slow=[500.0] * 4))["base"]
    ) == {"repeated"}
    assert set(
        differences(runs_of(single=[1030.0], repeated=repeated, slow=[500.0] * 4))["base"]
    ) == {"single"}
    times = runs_of("step_time_mean_s", single=[0.99], repeated=[1.0] * 4, slow=[2.0] * 4)
    assert set(differences(times, figure="step_time_mean_s")["base"]) == {"repeated"}


def test_a_setting_counts_as_at_least_as_noisy_as_the_median_one():
    """Variances of logarithms are 0, v and 100 v: intervals of the quiet one allow for v."""
    quiet, usual = [1000.0] * 4, [1000.0 * math.exp(x) for x in (-0.03, -0.01, 0.01, 0.03)]
    noisy = [1000.0 * math.exp(10 * x) for x in (-0.03, -0.01, 0.01, 0.03)]
    table = differences(runs_of(quiet=quiet, usual=usual, noisy=noisy), baseline="quiet")
    # The studentized range of 3 groups with 3 degrees of freedom exceeds 7.66 in 2.5 %.
    # v = 0.002 / 3: error^2 = v / 4 + v / 4
    half = 7.6605 / math.sqrt(2) * math.sqrt(2 * 0.002 / 3 / 4)
    assert table.loc["usual", "high_pct"] == pytest.approx(100 * math.expm1(half), rel=1e-4)
    # 3 degrees of freedom again: error^2 = v / 4 + 100 v / 4
    half = 7.6605 / math.sqrt(2) * math.sqrt(101 * 0.002 / 3 / 4)
    assert table.loc["noisy", "high_pct"] == pytest.approx(100 * math.expm1(half), rel=1e-4)
    assert table["note"].tolist() == ["", ""]  # one of them varies
    # As far apart as the interval reaches: 5 % together with memory.
    half = 7.6605 / math.sqrt(2) * math.sqrt(2 * 0.002 / 3 / 4)
    apart = [1000.0 * math.exp(-half)] * 4
    table = differences(runs_of(quiet=apart, usual=usual, noisy=noisy), baseline="quiet")
    assert table["p"]["usual"] == pytest.approx(0.05, rel=1e-3)
