"""Two sets of runs compared, setting by setting."""

import math

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.analysis.comparisons import differences
from dsnb.errors import SettingsError
from dsnb.run_folder.columns import RUN_COLUMNS

NOISE = np.array([1, 1.004, 0.996, 1.002, 0.998])


def sweep(rates, name="old", **columns):
    """Give five runs for each ZeRO stage at the given tokens/s."""
    rows = [
        {"sweep": name, "experiment": f"{name}_zs{stage}", "repeat": place, "status": "ok", "model": "gpt2",
         "zero_stage": stage, "tokens_per_s": rate * factor, "host": "h", **columns}
        for stage, rate in rates.items() for place, factor in enumerate(NOISE, 1)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table.reindex(columns=[*RUN_COLUMNS, *(column for column in columns if column not in RUN_COLUMNS)])


def test_settings_match_whatever_they_are_called():
    found = dsnb.compare(sweep({0: 1000, 1: 900, 2: 800}), sweep({1: 990.0, 0: 1001, 3: 700}, "new", deepspeed="0.20"))
    assert list(found.index) == ["new_zs0", "new_zs1", "old_zs2", "new_zs3"]
    assert list(found["verdict"]) == ["no larger difference", "likely", "too few runs", "too few runs"]
    assert list(found["n"]) == [5, 5, 0, 5]
    assert list(found["base_n"]) == [5, 5, 5, 0]
    assert found["change_pct"]["new_zs1"] == pytest.approx(10)
    assert found["better"]["new_zs1"]
    assert found["words"]["new_zs0"].startswith("no difference larger than 0.9 %")


def test_a_pair_has_the_interval_that_it_has_among_all_settings_of_its_task():
    before, after = sweep({0: 1000, 1: 1000, 2: 1000}), sweep({0: 1015, 1: 1012, 2: 1000}, "new")
    other = sweep({0: 300, 1: 290}, "elsewhere", seq_len=4096)  # another task, which shares no error rate
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


def test_another_host_cannot_be_told_from_another_version():
    old, new = sweep({0: 1000}), sweep({0: 1100}, host="h2")
    assert list(dsnb.compare(old, new)["verdict"]) == ["too few runs"]
    assert list(dsnb.compare(old, new, hosts_alike=True)["verdict"]) == ["likely"]


def test_a_missing_figure_is_refused():
    with pytest.raises(SettingsError, match="runs have no column 'speed'"):
        dsnb.compare(sweep({0: 1}), sweep({0: 1}), figure="speed")
    assert dsnb.compare(sweep({0: 1}), sweep({0: 1}).iloc[:0])["n"].tolist() == [0]
