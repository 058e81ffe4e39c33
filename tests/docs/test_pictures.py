"""The pictures of the site show all of their data."""

import pandas as pd
import pytest

from docs import pictures


def test_host_times_are_those_of_the_table():
    times = pictures.host_times()
    assert list(times.columns) == ["forward", "backward", "optimizer"]
    assert times.loc["ZeRO 0, native bf16", "optimizer"] > 10 * times.iloc[0]["optimizer"]


def test_trainers_are_compared_on_one_kind_of_gpu():
    speeds = pictures.trainer_speeds()
    assert list(speeds.columns) == list(pictures.WAYS.values())
    assert speeds.loc["gpt2"].isna().tolist() == [False, False, True, False, False]  # no Liger
    # As benchmarks/trainers.jsonl has it: one run on an H100, while others ran on an H200.
    assert speeds.loc["olmo2-1b", "dsnb's recommendation"] == pytest.approx(62_475, abs=1)


def test_every_measured_setting_is_a_point():
    runs = pd.read_csv(pictures.MEASURED)
    axis = pictures.predicted().figure.axes[0]
    assert sum(len(points.get_offsets()) for points in axis.collections) == len(runs)


def test_shares_within_a_quarter_are_of_factors(tmp_path, monkeypatch):
    table = "is_own,tokens_per_s,predicted\n1,80,100\n1,79,100\n0,125,100\n0,126,100\n0,100,100\n0,1,100\n"
    (tmp_path / "runs.csv").write_text(table)
    monkeypatch.setattr(pictures, "MEASURED", tmp_path / "runs.csv")
    assert pictures.within_a_quarter() == {"own": 50.0, "others": 50.0}
