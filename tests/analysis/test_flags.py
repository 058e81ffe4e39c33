"""What is unusual about runs is flagged with its number, and nothing is dropped."""

import math

import numpy as np
import pandas as pd
import pytest

from dsnb.analysis.flags import Flag, clock_drop_pct, drift, flags, single_run_words
from dsnb.run_folder.columns import GPU_COLUMNS, RUN_COLUMNS, STEP_COLUMNS

CALM = 1 + 0.01 * np.sin(np.arange(40) * 2.4)
STALLS = np.where(np.arange(40) % 20 == 3, 4.0, 1.0)  # 2 of 40 steps take four times as long: mean 1.15


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
    return flags(runs, steps.reindex(columns=["sweep", "experiment", "repeat", *STEP_COLUMNS]), **more)


@pytest.mark.parametrize(
    ("parts", "reasons"),
    [
        ([a_run()], [((), "")]),
        (
            [a_run(times=STALLS)],
            [((Flag.STALLED, Flag.SLOW_STEPS),
              "mean step 1.15 times the median; 2 timed steps of more than twice the median")],
        ),
        ([a_run(times=np.linspace(1, 1.1, 40))], [((Flag.DRIFT,), "step time drifted by +9.3 %")]),
        (
            [a_run(1, recompilations=3, sm_clock_mhz=1980), a_run(2, recompilations=0, sm_clock_mhz=1700)],
            [((Flag.RECOMPILED,), "3 graphs compiled during the timed steps"),
             ((Flag.THROTTLED,), "clock 14.1 % below that of another run of the setting")],
        ),
    ],
)  # fmt: skip
def test_flags_and_their_words(parts, reasons):
    assert list(flagged(*parts)[["flags", "words"]].itertuples(index=False, name=None)) == reasons


def test_a_calm_run_has_a_spread_within_it():
    (row,) = flagged(a_run()).to_dict("records")
    assert (row["slow_steps"], row["step_spread_pct"]) == (0, pytest.approx(100 * CALM.std(ddof=1) / CALM.mean()))
    assert single_run_words(row["step_spread_pct"]) == (
        "one run: its steps vary by 0.7 % (standard deviation within the run, not between runs)"
    )


def test_columns_say_what_steps_would():
    row = a_run(step_time_s=1.15, step_time_median_s=1.0, slow_steps=2)[0]
    (found,) = flags(pd.DataFrame([row])).to_dict("records")
    assert (found["words"], found["step_spread_pct"]) == (
        flagged(a_run(times=STALLS))["words"][0], pytest.approx(math.nan, nan_ok=True)
    )  # fmt: skip
    nothing = flags(pd.DataFrame([{"sweep": "s", "experiment": "e", "repeat": 1, "status": "oom"}]))
    assert list(nothing["flags"]) == [()]
    assert flags(pd.DataFrame(columns=RUN_COLUMNS)).empty


def test_drift_by_hand():
    """A rise of a tenth from the first block to the last, each of two steps."""
    drift_pct, p = drift(np.repeat(np.linspace(1, 1.1, 20), 2))
    assert drift_pct == pytest.approx(10 / 1.05)
    score, variance = 20 * 19 / 2, 20 * 19 * 45 / 18
    assert p == pytest.approx(math.erfc((score - 1) / math.sqrt(variance) / math.sqrt(2)))
    assert drift(np.ones(40)) == (0, 1)
    assert all(map(math.isnan, drift(np.ones(9))))


def samples(clock, busy=100.0, gpu=0):
    rows = [{"t_s": 2.0 + t_s, "gpu": gpu, "util_pct": busy, "sm_clock_mhz": mhz} for t_s, mhz in enumerate(clock)]
    return pd.DataFrame(rows).reindex(columns=GPU_COLUMNS)


def test_a_clock_that_falls_during_the_timed_steps():
    falls = pd.concat([samples([1900] * 9), samples([2000] * 3 + [1900] * 3 + [1500] * 3, gpu=1)])
    assert clock_drop_pct(falls, None) == 25
    found = flagged(a_run(), samples={0: falls})
    assert found["words"][0] == "clock 25.0 % lower at the end than at the beginning"
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
