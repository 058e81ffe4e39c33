"""The registry: what is declared once about a setting or a column is what every table and record says; paths."""

from pathlib import Path

import pytest

from dsnb.run_folder import columns, paths
from dsnb.run_folder.record_schema import cleaned
from dsnb.runs import labels
from dsnb.settings.experiment import DECLARED, DEFAULTS, SUPERVISION, Experiment


def test_a_setting_is_everywhere_what_its_declaration_says():
    lora = DECLARED["lora_rank"]
    assert (lora.title, lora.usual, lora.is_axis) == ("LoRA rank", 0, True)
    assert labels.axis("lora_rank").describe(8) == "LoRA rank 8"
    assert Experiment(device="cpu", lora_rank=8).name.endswith("_lora8")
    assert "lora_rank" in columns.RUN_NUMBERS
    assert cleaned("experiment.json", {"lora_rank": 8, "device": "cpu"}) == ({"lora_rank": 8, "device": "cpu"}, None)
    said = "experiment.json: lora_rank is -1: it must be at least 0"
    assert cleaned("experiment.json", {"lora_rank": -1}) == ({}, said)
    assert set(DEFAULTS) == {*columns.SETTINGS, "device", "deepspeed", *SUPERVISION}


def test_units_are_those_of_the_stored_values():
    units = [columns.RUNS[name].stored_unit() for name in ("step_time_s", "mfu", "run_energy_kwh")]
    assert units == ["s", "fraction", "kWh"]
    step_time = columns.METRIC_LABELS["step_time_s"]
    assert (step_time.heading, step_time.factor, step_time.better) == ("step time (ms)", 1000, "lower")


def test_values_are_in_the_order_of_their_type():
    values = ["all-cpu", None, "none", "odd", "optimizer-cpu"]
    assert sorted(values, key=labels.axis("offload").sort_key) == ["none", "optimizer-cpu", "all-cpu", "odd", None]
    assert sorted([8, None, 1], key=labels.axis("gpus").sort_key) == [1, 8, None]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(None, Path("/caches/dsnb")), ("", None), ("off", None), ("/x/y", Path("/x/y")), ("~nosuchuser/x", None)],
)
def test_the_cache_is_where_the_environment_says(monkeypatch, chosen, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("DSNB_CACHE", raising=False)
    if chosen is not None:
        monkeypatch.setenv("DSNB_CACHE", chosen)
    assert paths.cache_home() == expected
