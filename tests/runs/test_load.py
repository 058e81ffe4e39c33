"""Folders of many runs."""

import json
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.errors import DsnbWarning
from dsnb.files import records
from dsnb.run_folder.columns import STEP_COLUMNS
from dsnb.run_folder.paths import RunPaths
from tests.support import foreign_logs, made_up


@pytest.fixture
def folder(tmp_path):
    """Give a folder of runs and logs."""
    made_up.write_folders(made_up.runs(12), tmp_path / "out", steps=8)
    foreign_logs.write_all(tmp_path / "out" / "logs")
    return tmp_path / "out"


def test_a_run_that_goes_on_is_read_as_far_as_it_is(folder):
    run = RunPaths(folder / "going" / "run1")
    run.dir.mkdir(parents=True)
    records.write_json(run.experiment, {"model": "gpt2"})
    run.steps.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3')
    with pytest.warns(DsnbWarning, match="1 line"):
        assert list(dsnb.load_steps(run.dir)["loss"]) == [3, 2]
    assert list(dsnb.load_runs(run.dir)["status"]) == ["interrupted"]


def test_steps_are_the_same_with_and_without_damage(tmp_path):
    """Files are parsed together; one damaged line must cost that line only, and no file its neighbours' names."""
    made_up.write_folders(made_up.runs(6, gpus=[1], seq_len=[128]), tmp_path, steps=8)
    whole = dsnb.load_steps(tmp_path)
    files = sorted(tmp_path.rglob("steps.jsonl"))
    assert len(whole) == 8 * len(files)
    lines = files[1].read_text().splitlines(keepends=True)
    files[1].write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:7], lines[7][:-5]]))
    with pytest.warns(DsnbWarning, match="2 line"):
        damaged = dsnb.load_steps(tmp_path)
    run = files[1].parent
    gone = (
        (whole["experiment"] == run.parent.name) & (whole["repeat"] == int(run.name[3:])) & whole["step"].isin([4, 8])
    )
    pd.testing.assert_frame_equal(damaged, whole[~gone].reset_index(drop=True), check_dtype=False)


def test_steps_of_other_types_are_read_one_by_one(tmp_path):
    made_up.write_folders(made_up.runs(1), tmp_path, steps=3)
    file = next(tmp_path.rglob("steps.jsonl"))
    file.write_text('{"step": 1, "loss": "high"}\n{"step": 2, "loss": 2.5, "new": {"x": 1}}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = dsnb.load_steps(tmp_path)
    assert list(steps["step"]) == [1, 2]
    assert steps["loss"].isna().tolist() == [True, False]
    assert set(STEP_COLUMNS) <= set(steps.columns)


def test_the_notebooks_seconds_come_from_its_end(tmp_path):
    made_up.write_folders(made_up.runs(1), tmp_path, steps=3)
    (path,) = tmp_path.rglob("run.ipynb")
    told = {"cells": [{"metadata": {"papermill": {"duration": 1.0}}, "source": "x" * 40_000}]}
    parameters = {
        "default_parameters": {},
        "duration": 12.5,
        "parameters": {"x" * 30: "y" * 30} | dict.fromkeys(range(99)),
    }
    path.write_text(json.dumps(told | {"metadata": {"papermill": parameters}}))
    assert list(dsnb.load_runs(tmp_path)["notebook_s"]) == [12.5]


def test_runs_from_before_a_setting_have_what_it_was_then(tmp_path):
    """Their gradients were accumulated in bf16; no record says so."""
    made_up.write_folders(made_up.runs(12, precision=["bf16"]), tmp_path, steps=3)
    for path in tmp_path.rglob("experiment.json"):
        record = records.read_json(path)
        del record["grad_accum_dtype"]
        path.write_text(records.line(record))
    runs = dsnb.load_runs(tmp_path)
    older = (runs["precision"] == "bf16") & (runs["grad_accum"] > 1)
    assert older.any()
    assert list(runs["grad_accum_dtype"]) == ["bf16" if one else "auto" for one in older]


def test_keys_of_deepspeeds_configuration_are_columns_of_their_runs_only(tmp_path):
    made_up.write_folders(made_up.runs(4), tmp_path, steps=3)
    key = {"zero_optimization.round_robin_gradients": True}
    for setting in sorted(tmp_path.rglob("experiment.json"))[:2]:
        setting.write_text(records.line({**records.read_json(setting), "deepspeed": key}))
    loaded = dsnb.load_runs(tmp_path)
    assert sorted(loaded["deepspeed.zero_optimization.round_robin_gradients"].notna()) == [False, False, True, True]


def test_names_of_hosts_are_printable_and_separable(tmp_path):
    made_up.write_groups(tmp_path, ["a,b\x1b c", "d"], sizes=(2,))
    assert list(dsnb.load_runs(tmp_path)["hosts"]) == ["a?b??c,d"]
