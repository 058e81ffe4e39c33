"""Folders of many runs, and what their sweeps planned."""

import json
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.errors import DsnbWarning
from dsnb.files import records
from dsnb.render import by_task
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.load import left_out, planned_runs, still_to_come
from tests.support import made_up


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path):
    run = RunPaths(tmp_path / "going" / "run1")
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
    path = str(files[1].parent.relative_to(tmp_path))
    gone = (whole["experiment"] + "/run" + whole["repeat"].astype(str) == path) & whole["step"].isin([4, 8])
    pd.testing.assert_frame_equal(damaged, whole[~gone].reset_index(drop=True), check_dtype=False)
    files[0].write_text('{"step": 1, "loss": "high"}\n{"step": 2, "loss": 2.5, "new": {"x": 1}}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # values of other types are missing, without a warning
        assert dsnb.load_steps(files[0].parent)["loss"].isna().tolist() == [True, False]


def test_the_notebooks_seconds_come_from_its_end(tmp_path):
    made_up.write_folders(made_up.runs(1), tmp_path, steps=3)
    (path,) = tmp_path.rglob("run.ipynb")
    cells = [{"metadata": {"papermill": {"duration": 1.0}}, "source": "x" * 40_000}]
    told = {"default_parameters": {}, "duration": 12.5, "parameters": {"x" * 30: "y" * 30}}
    path.write_text(json.dumps({"cells": cells, "metadata": {"papermill": told}}))
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


def plan(folder, content):
    (folder / "planned.json").write_text(json.dumps(content))


def ended(*rows):
    return pd.DataFrame(rows, columns=["experiment", "repeat", "status"])


def test_what_has_not_ended_is_to_come_first_repeats_first(tmp_path):
    plan(tmp_path, {"runs": {"a": [1, 2], "b": [1, 2]}})
    runs = ended(("a", 1, "ok"), ("b", 1, "oom"), ("a", 2, "interrupted"))
    assert still_to_come(runs, tmp_path) == ([("a", 2), ("b", 2)], 4)
    assert still_to_come(runs.head(0), tmp_path)[0] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    text = str(by_task.to_come(runs, tmp_path))
    assert "2 of 4 runs of this sweep are still to come: <code>a</code> run 2; <code>b</code> run 2." in text
    plan(tmp_path, {"runs": {"<script>": list(range(1, 9))}})
    text = str(by_task.to_come(runs, tmp_path))
    assert "<script>" not in text
    assert "run 5; and 3 more" in text


def test_what_was_left_out_is_not_to_come_and_is_said_with_its_reason(tmp_path):
    left = {"b": "needs 149.0 GiB of 140.0", "<b>": "needs <i>", "a": "needs 5", "odd": 3}
    plan(tmp_path, {"runs": {"a": [1]}, "left_out": left})
    assert str(by_task.to_come(ended(("a", 1, "ok")), tmp_path)) == (
        "<p>Not run, because of the memory that is predicted (2 settings): "
        "<code>b</code> needs 149.0 GiB of 140.0; <code>&lt;b&gt;</code> needs &lt;i&gt;.</p>"
    )


def test_a_plan_of_something_else_has_no_runs(tmp_path):
    for content in ({}, {"runs": [1]}, {"runs": {"a": 1}}, {"runs": {"a": ["x", True, None, [1]]}}, {"left_out": [1]}):
        plan(tmp_path, content)
        assert (planned_runs(tmp_path), left_out(tmp_path)) == ([], {})
