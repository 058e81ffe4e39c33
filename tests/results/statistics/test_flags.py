"""What is unusual about runs is flagged with its number, and nothing is dropped."""

import math

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.results.literature import tables
from dsnb.results.runs.number_text import MINUS
from dsnb.results.runs.run import assignments
from dsnb.results.statistics.flags import (
    Flag,
    changed_conditions,
    clock_drop_pct,
    drift,
    flags,
    loss_gaps_pct,
    parsed,
    repeat_gaps_pct,
)
from dsnb.settings.records.columns import GPU_COLUMNS, RUN_COLUMNS, STEP_COLUMNS

CALM = 1 + 0.01 * np.sin(np.arange(40) * 2.4)
STALLS = np.where(
    np.arange(40) % 20 == 3, 4.0, 1.0
)  # 2 of 40 steps take four times as long: mean 1.15


def a_run(repeat=1, times=CALM, experiment="e", **columns):
    """Give a run's row and its steps, two steps of warm-up first."""
    key = {"sweep": "s", "experiment": experiment, "repeat": repeat}
    row = {**key, "status": "ok", "tokens_per_s": 1000 / np.mean(times), **columns}
    steps = [
        {**key, "step": number, "phase": "warmup" if number <= 2 else "timed", "t_s": number, "step_time_s": time}
        for number, time in enumerate([9.0, 5.0, *times], 1)
    ]  # fmt: skip
    return row, steps


def flagged(*parts, **more):
    runs = pd.DataFrame([row for row, _ in parts]).reindex(columns=RUN_COLUMNS)
    steps = pd.DataFrame([step for _, own in parts for step in own])
    return flags(
        runs, steps.reindex(columns=["sweep", "experiment", "repeat", *STEP_COLUMNS]), **more
    )


@pytest.mark.parametrize(
    ("parts", "reasons"),
    [
        ([a_run()], [((), "")]),
        (
            [a_run(times=STALLS)],
            [((Flag.STALLED, Flag.SLOW_STEPS),
              "mean step 1.15 times the median; 2 timed steps of more than twice the median")],
        ),
        (
            [a_run(step_time_median_s=0.3, attention_kernel="cudnn, masked",
                   attention_kernels_s=0.0564, attention_needed_s=0.0105)],
            [((Flag.SLOW_KERNELS,),
              "attention kernels took 56.4 ms a step, and their FLOPs and bytes need 10.5 ms at the GPU's "
              "nominal rates: a mask probably makes them compute what a causal kernel skips (cudnn, masked)")],
        ),
        (
            [a_run(step_time_median_s=0.3, attention_kernel="cudnn",
                   attention_kernels_s=0.0184, attention_needed_s=0.0105)],
            [((), "")],
        ),
        ([a_run(times=np.linspace(1, 1.1, 40))], [((Flag.DRIFT,), "step time drifted by +9.3 %")]),
        (
            [a_run(1, recompilations=3, sm_clock_mhz=1980), a_run(2, recompilations=0, sm_clock_mhz=1700)],
            [((Flag.RECOMPILED,), "3 graphs compiled during the timed steps"),
             ((Flag.THROTTLED,), "clock 14.1 % below that of another run of the setting")],
        ),
        (
            [a_run(1, alloc_retries=12), a_run(2, alloc_retries=0), a_run(3, alloc_retries=math.nan)],
            [((Flag.MEMORY_FULL,),
              "memory was returned to the GPU 12 times in the timed steps: it was nearly full"),
             ((), ""), ((), "")],
        ),
    ],
)  # fmt: skip
def test_flags_and_their_words(parts, reasons):
    assert list(flagged(*parts)[["flags", "words"]].itertuples(index=False, name=None)) == reasons


def test_columns_say_what_steps_would():
    row = a_run(step_time_mean_s=1.15, step_time_median_s=1.0, slow_steps=2)[0]
    (found,) = flags(pd.DataFrame([row])).to_dict("records")
    assert (found["words"], found["step_spread_pct"]) == (
        flagged(a_run(times=STALLS))["words"][0], pytest.approx(math.nan, nan_ok=True)
    )  # fmt: skip
    nothing = flags(pd.DataFrame([{"sweep": "s", "experiment": "e", "repeat": 1, "status": "oom"}]))
    assert list(nothing["flags"]) == [()]
    assert flags(pd.DataFrame(columns=RUN_COLUMNS)).empty


def test_the_spread_of_steps_by_hand():
    """Eight steps of 1 s, one of 3 and one of 13: mean 2.4, median 1, squares of deviations 128.4, divisor 9."""
    (found,) = flagged(a_run(times=np.array([1.0] * 8 + [3.0, 13.0]))).to_dict("records")
    assert found["step_spread_pct"] == pytest.approx(100 * math.sqrt(128.4 / 9) / 2.4)
    assert found["mean_over_median"] == pytest.approx(2.4)
    assert found["slow_steps"] == 2  # 3 s is more than twice the median, though not the mean


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"step_time_mean_s": 1.09}, ""),
        ({"step_time_mean_s": 1.11}, "mean step 1.11 times the median"),
        ({"recompilations": 1}, "1 graph compiled during the timed steps"),
        ({"alloc_retries": 1},
         "memory was returned to the GPU 1 time in the timed steps: it was nearly full"),
        ({"sm_clock_mhz": 1910}, ""),
        ({"sm_clock_mhz": 1890}, "clock 5.5 % below that of another run of the setting"),
        ({"slow_steps": 1}, "1 timed step of more than twice the median"),
    ],
)  # fmt: skip
def test_a_flag_begins_at_its_limit(columns, words):
    usual = {"step_time_median_s": 1.0, "step_time_mean_s": 1.0, "sm_clock_mhz": 2000}
    runs = [a_run(1, **usual | columns)[0], a_run(2, **usual)[0]]
    assert list(flags(pd.DataFrame(runs))["words"]) == [words, ""]


@pytest.mark.parametrize(
    ("last", "words"),
    [(1.015, ""), (1.03, "step time drifted by +2.9 %"), (0.9, f"step time drifted by {MINUS}10.3 %")],
)  # fmt: skip
def test_a_drift_is_two_per_cent_in_either_direction(last, words):
    """Between the medians of the first and the last two steps: 38 / 39 of the rise, over the median."""
    assert flagged(a_run(times=np.linspace(1, last, 40)))["words"][0] == words


def test_drift_by_hand():
    """A rise of a tenth from the first block to the last, each of two steps."""
    drift_pct, p = drift(np.repeat(np.linspace(1, 1.1, 20), 2))
    assert drift_pct == pytest.approx(10 / 1.05)
    score, variance = 20 * 19 / 2, 20 * 19 * 45 / 18
    assert p == pytest.approx(math.erfc((score - 1) / math.sqrt(variance) / math.sqrt(2)))
    assert drift(np.ones(40)) == (0, 1)
    assert all(map(math.isnan, drift(np.ones(9))))
    assert drift(np.array([1.0] * 9 + [10.0]))[0] == 0  # 36 of 45 pairs have no slope


def test_single_slow_steps_are_no_drift():
    times = np.ones(60)
    times[30::3] = 10.0  # one step of three in the last ten of twenty blocks
    assert drift(times) == (0, 1)


def samples(clock, busy=100.0, gpu=0):
    rows = [
        {"t_s": 2.0 + t_s, "gpu": gpu, "util_pct": busy, "sm_clock_mhz": mhz}
        for t_s, mhz in enumerate(clock)
    ]
    return pd.DataFrame(rows).reindex(columns=GPU_COLUMNS)


def test_a_clock_that_falls_during_the_timed_steps():
    falls = pd.concat([samples([1900] * 9), samples([2000] * 3 + [1900] * 3 + [1500] * 3, gpu=1)])
    assert clock_drop_pct(falls, None) == 25
    found = flagged(a_run(), samples={0: falls})
    assert found["words"][0] == "clock 25.0 % lower at the end than at the beginning"
    thirds = samples([2000, 1900, 1900, 1500, 1500, 1500])  # two samples each
    assert clock_drop_pct(thirds, None) == pytest.approx(100 * (1 - 1500 / 1950))
    # The first timed step ends at 10 s and began at 4 s; before that, the clock was higher.
    timed = pd.DataFrame({"t_s": [10.0, 12.0], "step_time_s": [6.0, 2.0]})
    early = samples([2500] * 2 + [2000] * 3 + [1900] * 3 + [1500] * 3)
    assert clock_drop_pct(early, timed) == 25
    # GPU 0 of another host becomes faster.
    rises = samples([1500] * 3 + [1900] * 3 + [2000] * 3).assign(host="b")
    assert clock_drop_pct(pd.concat([falls.assign(host="a"), rises.assign(gpu=1)]), None) == 25
    late = pd.DataFrame(a_run()[1][2:]).assign(t_s=lambda t: t["t_s"] + 100)
    for own, timed in (
        (samples([2000] * 3 + [1000] * 3, busy=10), None), (samples([2000] * 5), None), (None, None), (falls, late),
    ):  # fmt: skip
        assert math.isnan(clock_drop_pct(own, timed))


def test_a_run_far_from_its_repeats_is_an_outlier_and_stays():
    parts = [a_run(repeat, CALM * factor) for repeat, factor in enumerate((1, 1.01, 0.99, 1.3), 1)]
    parts += [a_run(repeat, CALM * factor, "two") for repeat, factor in enumerate((1, 2), 1)]
    parts += [a_run(3, CALM, "two", status="failed")]
    found = flagged(*parts)
    assert [Flag.OUTLIER in one for one in found["flags"]] == [False] * 3 + [True] + [False] * 3
    assert found["words"][3].endswith("% from the median of the setting's runs")
    assert found["off_pct"][4:].isna().all()  # which of two is the odd one is unknown


@pytest.mark.parametrize(("odd_pct", "is_outlier"), [(9, False), (11, True)])
def test_an_outlier_is_three_and_a_half_deviations_from_the_median(odd_pct, is_outlier):
    """The median of 2, 2, 2 and `odd_pct` is 2, which is a deviation of 2 x 1.4826: 3.5 of them are 10.4 %."""
    rates = [100.0, 98, 98, 102, 100 + odd_pct]
    found = flags(pd.DataFrame([a_run(tokens_per_s=rate)[0] for rate in rates]))
    assert list(found["off_pct"]) == pytest.approx([0, -2, -2, 2, odd_pct])
    assert [Flag.OUTLIER in one for one in found["flags"]] == [False] * 4 + [is_outlier]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([100.0, 101, 99, 100, 70], [4]),  # below, too
        ([100.0, 100.1, 99.9, 100, 104], []),  # less than 5 %, however alike the others are
        ([100.0, 100, 100, 102, 109], []),  # 3.5 x 1.4826 x the median of 2 and 9, without zeros
    ],
)
def test_deviations_are_compared_with_those_of_all_repeats(rates, expected):
    found = flags(pd.DataFrame([a_run(tokens_per_s=rate)[0] for rate in rates]))
    assert list(np.flatnonzero([Flag.OUTLIER in one for one in found["flags"]])) == expected


SETTING = {
    "sweep": "s", "repeat": 1, "status": "ok", "model": "gpt2", "seq_len": 128, "data": "synthetic", "seed": 0,
    "global_batch_size": 32, "dropout": 0.0, "optimizer": "adamw", "learning_rate": 1e-4, "warmup_steps": 10,
    "steps": 40,
}  # fmt: skip


def table(*runs):
    return pd.DataFrame(
        [{**SETTING, "experiment": f"e{number}", **run} for number, run in enumerate(runs)]
    )


def losses(first, last=7.0, **more):
    return {"loss_first": first, "loss_last": last, **more}


def test_gaps_by_hand_and_in_words():
    runs = table(losses(10.0, 5.0), losses(10.0001, 5.1), losses(11.0, 6.0))
    found = loss_gaps_pct(runs)
    assert list(found["first_loss_gap_pct"]) == pytest.approx(
        [-0.001, 0.001, 100 * (11 / 10.0001 - 1)], rel=1e-3
    )
    nearer = [
        100 * (5 - 5.1) / 10,
        100 * (5.1 - 5) / 10.0001,
        100 * (6 - 5.1) / 11,
    ]  # of the first loss
    assert list(found["last_loss_gap_pct"]) == pytest.approx(nearer)
    assert list(
        flags(table(losses(10.0), losses(10.0001), losses(10.02), losses(10.0, 7.6)))["words"]
    ) == [
        "",
        "",
        "first loss +0.2 % from that of settings that compute the same",
        "last loss +6.0 % of the first loss from that of settings that train alike",
    ]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (losses(10.009), ""),
        (losses(10.02), "first loss +0.2 % from that of settings that compute the same"),
        (losses(9.98), f"first loss {MINUS}0.2 % from that of settings that compute the same"),
        (losses(10.0, 7.45), ""),
        (losses(10.0, 7.55), "last loss +5.5 % of the first loss from that of settings that train alike"),
        (losses(10.0, 6.4), f"last loss {MINUS}6.0 % of the first loss from that of settings that train alike"),
    ],
)  # fmt: skip
def test_a_loss_is_odd_from_its_limit_on_in_either_direction(odd, words):
    assert list(flags(table(losses(10.0), losses(10.0), odd))["words"]) == ["", "", words]


def test_repeats_of_a_setting_count_once_with_their_median():
    """Medians: 10 of 10, 10 and 11, 10.1 and 10.2; from 10, the nearer of the others is 10.1."""
    own = [
        losses(loss, experiment="a", repeat=repeat) for repeat, loss in enumerate((11.0, 10, 10), 1)
    ]
    found = loss_gaps_pct(table(*own, losses(10.1), losses(10.2)))["first_loss_gap_pct"]
    gaps = [
        100 * (11 - 10.1) / 10.1,
        *[100 * (10 - 10.1) / 10.1] * 2,
        1.0,
        100 * (10.2 - 10.1) / 10.1,
    ]
    assert list(found) == pytest.approx(gaps)


@pytest.mark.parametrize(
    ("step", "loss", "is_odd"), [(4, 9.004, False), (4, 9.006, True), (5, 9.9, False)]
)
def test_repeats_may_differ_after_four_steps_and_by_rounding(step, loss, is_odd):
    """0.05 % of 9 is 0.0045."""
    runs = table(losses(9, experiment="a"), losses(9, experiment="a", repeat=2))
    steps = pd.DataFrame(
        {"sweep": "s", "experiment": "a", "repeat": repeat, "step": step, "phase": "timed", "t_s": 1.0,
         "step_time_s": 1.0, "loss": own}
        for repeat, own in ((1, 9.0), (2, loss))
    )  # fmt: skip
    assert [Flag.LOSS in own for own in flags(runs, steps)["flags"]] == [is_odd] * 2


def test_what_starts_elsewhere_is_not_compared():
    for other in (
        {"model": "opt-350m"}, {"seq_len": 256}, {"global_batch_size": 64}, {"seed": 1}, {"seed": None},
        {"dropout": 0.1}, {"tokenizer": "bytes"}, {"weights": "pretrained"}, {"lora_rank": 8},
    ):  # fmt: skip
        assert loss_gaps_pct(table(losses(10.0), losses(11.0, **other))).isna().all(axis=None), (
            other
        )


def test_losses_of_runs_that_did_not_end_well_are_not_compared():
    """Those of a run on several ranks that was cut short are rank 0's: 11 beside a mean of 10 is no fault."""
    for status in ("interrupted", "failed", "timeout", "oom", "nan", "untrained"):
        runs = table(losses(10.0), losses(10.0, repeat=2), losses(11.0, status=status, repeat=3))
        steps = pd.DataFrame(
            {**key, "step": 1, "phase": "warmup", "t_s": 1.0, "step_time_s": 1.0, "loss": loss}
            for key, loss in zip(
                runs[["sweep", "experiment", "repeat"]].to_dict("records"),
                (10, 10, 11),
                strict=True,
            )
        )
        found = flags(runs.assign(experiment="a"), steps.assign(experiment="a"))
        assert [Flag.LOSS in own for own in found["flags"]] == [False] * 3, status
        assert (
            found.loc[2, ["first_loss_gap_pct", "last_loss_gap_pct", "repeat_loss_gap_pct"]]
            .isna()
            .all()
        )
        assert loss_gaps_pct(runs).loc[2].isna().all()


@pytest.mark.parametrize("unknown", ["seed", "global_batch_size", "dropout"])
def test_losses_are_not_compared_where_nobody_knows_whether_they_started_alike(unknown):
    runs = table(losses(10.0), losses(11.0)).assign(**{unknown: None})
    assert loss_gaps_pct(runs).isna().all(axis=None)


@pytest.mark.parametrize("column", ["skipped_steps", "skipped_warmup_steps"])
def test_a_run_that_skipped_steps_trained_less(column):
    found = loss_gaps_pct(table(losses(10.0, 5.0), losses(10.0, 8.0, **{column: 2})))
    assert list(found["first_loss_gap_pct"]) == [0, 0]
    assert found["last_loss_gap_pct"].isna().all()


def test_repeats_train_alike_or_are_flagged():
    """A range by hand; a single run, another seed's and a later step's have none."""
    runs = table(
        losses(9, experiment="a"),
        losses(9, experiment="a", repeat=2),
        losses(9),
        losses(9, experiment="a", repeat=3),
    )
    late = [9.0] * 4
    by_run = [[*late, 8.0], [9, 9.009, *late[2:], 9.0], [9.0], [9, 8.991, *late[2:], 9.0]]
    keys = runs[["sweep", "experiment", "repeat"]].to_dict("records")
    rows = [
        {**key, "step": number, "phase": "warmup", "t_s": 1.0, "step_time_s": 1.0, "loss": loss}
        for key, own in zip(keys, by_run, strict=True)
        for number, loss in enumerate(own, 1)
    ]
    steps, gap = pd.DataFrame(rows), 100 * (9.009 / 8.991 - 1)
    assert list(repeat_gaps_pct(runs, steps)) == pytest.approx([gap, gap, np.nan, gap], nan_ok=True)
    words = (
        "losses of the setting's runs differ by up to 0.20 % in the first steps, with the same seed"
    )
    assert list(flags(runs, steps)["words"]) == [words, words, "", words]
    for own, own_steps in (
        (runs.assign(seed=None), steps), (runs.assign(dropout=0.1), steps), (runs, None),
        (runs, steps.assign(loss=np.nan)),
    ):  # fmt: skip
        assert repeat_gaps_pct(own, own_steps).isna().all()


@pytest.mark.parametrize(
    ("run", "is_compared"),
    [
        ({"status": "timeout", "data_parallel": 2}, False),
        ({"status": "interrupted"}, False),  # on an unknown number of ranks
        ({"status": "oom", "data_parallel": 1}, False),  # only runs that are ok are compared
        ({"status": "ok", "data_parallel": 2}, True),
    ],
)
def test_losses_of_rank_0_alone_flag_no_other_run(run, is_compared):
    """Of two ranks' losses, 9 and 10, the mean is 9.5; the run that did not end has recorded the first rank's."""
    runs = table(
        losses(9.5, experiment="a"), losses(9.0, experiment="a", repeat=2, **run), losses(9.5)
    )
    keys = runs[["sweep", "experiment", "repeat"]].to_dict("records")
    steps = pd.DataFrame([{**key, "step": 1, "phase": "warmup"} for key in keys])
    steps = steps.assign(t_s=1.0, step_time_s=1.0, loss=[9.5, 9.0, 9.5])
    gap = 100 * (9.5 / 9.0 - 1) if is_compared else 0.0
    assert repeat_gaps_pct(runs, steps).fillna(0)[0] == pytest.approx(gap)
    assert (flags(runs, steps)["words"][0] != "") == is_compared


def test_runs_on_h200_that_compute_something_else():
    """Found on 2026-11-23, -25 and -27 (docs/LOG.md): of four causes, and nothing else among 1,144 runs."""
    runs = dsnb.published("h200")
    flagged = runs[
        [Flag.LOSS in own for own in flags(runs, tables.steps("published: h200"))["flags"]]
    ]
    names = flagged["experiment"]
    raced = names.str.match(
        "gpt2-xl_plain_bf16_gpus1_bs2_sl1024"
    )  # its compiled runs, and the eager ones beside them
    begun = flagged["model"] == "bloom-7b1"  # in two formats
    diverged = names == "opt-1.3b_ddp_bf16_gpus2_bs8_sl1024"  # one of its runs
    rounded = flagged["matmul"] == "fp8"  # Llama 3.1 8B
    assert (raced | begun | diverged | rounded).all()
    assert (raced.sum(), begun.sum(), diverged.sum(), rounded.sum()) == (4, 8, 1, 2)


def with_conditions(*variables, **columns):
    table = pd.DataFrame({"variables": variables, "sweep": "s", "experiment": "a", "status": "ok"})
    return table.assign(repeat=range(1, len(table) + 1), tokens_per_s=100.0, **columns)


DEBUG, QUOTED = "NCCL_DEBUG=INFO", "TORCH_LOGS='a b=c' DS_X=1"


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (with_conditions("", DEBUG, ""), ["", "NCCL_DEBUG is INFO, in other runs of the setting unset", ""]),
        (with_conditions("", DEBUG, experiment=["a", "b"]), ["", ""]),  # other settings are not compared
        (with_conditions(None, DEBUG, float("nan")), ["", "", ""]),  # nor unknown variables
        (with_conditions(QUOTED, QUOTED, "DS_X=1"),
         ["", "", "TORCH_LOGS is unset, in other runs of the setting a b=c"]),
        (with_conditions("", "", "", inputs=["m.json=1a", "m.json=1a", "m.json=2b"]),
         ["", "", "version of m.json is 2b, in other runs of the setting 1a"]),
    ],
)  # fmt: skip
def test_the_odd_repeat_is_named_with_what_is_usual(runs, words):
    found = flags(runs)
    assert list(found["words"]) == list(found["conditions"]) == words
    assert list(found["flags"]) == [(Flag.CONDITIONS,) if text else () for text in words]


def test_names_with_spaces_and_quotes_survive_the_table_and_nonsense_is_unknown():
    files = {"bob's dir/l m.json": "abc", "x y.txt": "1", "z y.txt": "2=3"}
    assert parsed(assignments(files)) == files
    assert parsed("'unbalanced") is None


def test_conditions_of_two_sets_of_runs():
    before, after = (
        with_conditions("", "", inputs="m.json=1a"),
        with_conditions("X=1", "", inputs="m.json=2b"),
    )
    assert changed_conditions(before, after) == [
        "X was unset before and 1 or unset after, which may explain a difference.",
        "version of m.json was 1a before and 2b after, which may explain a difference.",
    ]
    assert changed_conditions(before, before) == []
    assert changed_conditions(before.drop(columns=["variables", "inputs"]), after) == []
    default, other = (with_conditions("", allocator=name) for name in (None, "expandable"))
    assert changed_conditions(default, other) == []  # on a CPU there was none
