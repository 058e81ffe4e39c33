"""The share of the plain loop's speed: of the fastest one that does the same work, and only of that."""

import math

import pandas as pd
import pytest

from dsnb.analysis.summary import summarize
from dsnb.runs.yardstick import with_plain_ratio

COLUMNS = ["sweep", "experiment", "repeat", "status", "strategy", "model", "micro_batch_size", "seq_len", "precision"]


def table(*rows):
    made = [
        ("s", name, repeat, status, strategy, "gpt2", 8, length, "bf16")
        for name, repeat, status, strategy, length, _ in rows
    ]
    runs = pd.DataFrame(made, columns=COLUMNS)
    return runs.assign(tokens_per_s_per_gpu=[float(row[-1]) for row in rows])


def test_the_fastest_plain_setting_is_the_yardstick():
    runs = table(
        ("eager", 1, "ok", "plain", 128, 50),
        ("graphs", 1, "ok", "plain", 128, 99),
        ("graphs", 2, "ok", "plain", 128, 101),
        ("graphs", 3, "failed", "plain", 128, 900),
        ("zs0", 1, "ok", "deepspeed", 128, 80),
        ("zs0 long", 1, "ok", "deepspeed", 256, 80),
        ("zs1", 1, "oom", "deepspeed", 128, math.nan),
    )
    found = with_plain_ratio(runs)["of_plain"]
    assert found.tolist()[:6] == pytest.approx([0.5, 0.99, 1.01, 9.0, 0.8, math.nan], nan_ok=True)
    assert math.isnan(found.iloc[6])
    assert summarize(runs).loc["zs0", "of_plain_median"] == pytest.approx(0.8)
    assert "of_plain" not in runs
    kept = with_plain_ratio(runs)
    kept = with_plain_ratio(kept[kept["strategy"] != "plain"])
    assert kept["of_plain"].tolist()[0] == pytest.approx(0.8)


def test_without_a_plain_run_or_its_columns_it_is_missing():
    assert with_plain_ratio(table(("zs0", 1, "ok", "deepspeed", 128, 80)))["of_plain"].isna().all()
    assert with_plain_ratio(pd.DataFrame({"experiment": ["a"], "status": ["ok"]}))["of_plain"].isna().all()
    assert list(with_plain_ratio(pd.DataFrame())["of_plain"]) == []


def test_ranks_on_a_cpu_share_the_cores_of_the_plain_process():
    runs = table(("plain", 1, "ok", "plain", 128, 100), ("zs1", 1, "ok", "deepspeed", 128, 45))
    runs = runs.assign(device="cpu", tokens_per_s=[100.0, 90.0])
    assert with_plain_ratio(runs)["of_plain"].tolist() == pytest.approx([1.0, 0.9])
    assert with_plain_ratio(runs.assign(device="cuda"))["of_plain"].tolist() == pytest.approx([1.0, 0.45])
