"""The table of settings that no data set has: runs are added once, without the names of hosts and folders."""

import pandas as pd
import pytest

from benchmarks import new_settings


def test_runs_are_kept_once_and_without_hosts(tmp_path, monkeypatch, trained):
    monkeypatch.setattr(new_settings, "TABLE", tmp_path / "table.csv")
    _, paths = trained(model="gpt2-tiny", steps=2)
    for _ in range(2):
        assert new_settings.add(paths.dir, "H200") == 1
    [row] = new_settings.known().to_dict("records")
    assert row["gpu"] == "H200"
    assert row["tokens_per_s"] > 0
    assert not {"host", "run_dir", "source"} & set(row)


def test_figures_are_compared_with_predictions(monkeypatch):
    [first, *_] = new_settings.known().to_dict("records")
    monkeypatch.setattr(new_settings, "known", lambda: pd.DataFrame([first]))
    predicted = {"tokens_per_s": 1.1 * first["tokens_per_s"], "peak_allocated_gib": 16.0}
    monkeypatch.setattr(new_settings.dsnb, "predict", lambda *_: pd.DataFrame([predicted]))
    [row] = new_settings.rows()
    assert row.split(" | ")[4] == "+10.0"
    assert row.split(" | ")[6] == "16.00"
    assert new_settings.compared()["tokens_per_s"].item() == pytest.approx(first["tokens_per_s"])
