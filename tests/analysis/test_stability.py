"""Settings whose repeats do not agree: which they are, and that nothing ranks them."""

import math

import pandas as pd
import pytest

from dsnb.analysis.comparisons import differences
from dsnb.analysis.decide import Question
from dsnb.analysis.decide import of_runs as decide
from dsnb.analysis.flags import Flag, flags
from dsnb.analysis.summary import repeat_ratios as ratios
from dsnb.analysis.summary import unstable
from dsnb.run_folder.columns import RUN_COLUMNS


def runs_of(**rates):
    """Give a run for each rate of each experiment, with as many GiB as letters in its name; None is a failed run."""
    rows = [
        {"sweep": "s", "experiment": name, "repeat": place, "status": "failed" if rate is None else "ok",
         "tokens_per_s": rate, "tokens_per_s_per_gpu": rate, "gpus": 1, "zero_stage": stage, "model": "gpt2",
         "peak_allocated_gib": float(len(name))}
        for stage, (name, own) in enumerate(rates.items()) for place, rate in enumerate(own, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=RUN_COLUMNS)


SHAKY = {"odd": [21097.0, 2296], "steady": [9000.0, 9100], "slower": [8000.0, 7900]}


def test_highest_over_lowest_of_the_ok_runs():
    found = ratios(runs_of(a=[100.0, 150], b=[100.0, 150.5], c=[100.0], d=[100.0, None, 120], e=[None]))
    assert found[["a", "b", "d"]].tolist() == pytest.approx([1.5, 1.505, 1.2])
    assert found[["c", "e"]].isna().all()
    assert unstable(runs_of(a=[100.0, 150], b=[100.0, 150.5], c=[100.0], e=[None])) == ["b"]  # more than 1.5 times


def test_all_ok_runs_of_an_unstable_setting_have_the_flag():
    found = flags(runs_of(odd=[21097.0, 2296, None], steady=[9000.0, 9100]))
    assert [Flag.UNSTABLE in own for own in found["flags"]] == [True, True, False, False, False]
    assert found["words"].iloc[0] == "the setting's runs differ by 9.2 times in tokens/s"
    assert found["repeat_ratio"].iloc[0] == pytest.approx(21097 / 2296)
    assert math.isnan(found["repeat_ratio"].iloc[2])


@pytest.mark.parametrize("objective", ["time", "gpu_hours", "memory"])
def test_an_unstable_setting_is_no_answer(objective):
    decision = decide(runs_of(**SHAKY), Question(objective=objective, tokens=1e9))
    assert list(decision.options.index) == ["steady", "slower"]
    assert decision.unstable == 1


def test_where_all_are_unstable_there_is_no_answer():
    decision = decide(runs_of(odd=[21097.0, 2296]), Question(tokens=1e9))
    assert (len(decision.options), decision.unstable) == (0, 1)


def test_it_is_no_base():
    runs = runs_of(**SHAKY)
    assert set(differences(runs)["base"]) == {"steady"}
    assert set(differences(runs[runs["experiment"] == "odd"])["base"]) == set()
