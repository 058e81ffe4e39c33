"""Many runs: read quickly, kept for the next time, and never taken from what was kept once something changed."""

import json
import os
import shutil
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.files import records
from dsnb.run_folder.columns import STEP_COLUMNS
from dsnb.run_folder.paths import RunPaths
from dsnb.runs import cache, load
from tests.support import foreign_logs, made_up


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    """Keep whatever is loaded."""
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SLOW_S", 0.0)
    monkeypatch.setattr(cache, "SETTLED_S", -60.0)


@pytest.fixture
def folder(keeping, tmp_path):
    """Give a folder of runs and logs."""
    made_up.write_folders(made_up.runs(12), tmp_path / "out", steps=8)
    foreign_logs.write_all(tmp_path / "out" / "logs")
    return tmp_path / "out"


@pytest.fixture
def few(keeping, tmp_path):
    """Give a folder of two runs."""
    made_up.write_folders(made_up.runs(2), tmp_path / "out", steps=3)
    return tmp_path / "out"


@pytest.fixture
def loads(monkeypatch):
    """Count how often tables are really made."""
    made = []
    for name in ("_runs", "_steps"):
        make = getattr(load, name)
        monkeypatch.setattr(load, name, lambda found, make=make, name=name: made.append(name) or make(found))
    return made


def test_an_unchanged_folder_is_loaded_once(folder, loads):
    first, steps = dsnb.load_runs(folder), dsnb.load_steps(folder)
    pd.testing.assert_frame_equal(dsnb.load_runs(folder), first)
    pd.testing.assert_frame_equal(dsnb.load_steps(str(folder)), steps)
    assert loads == ["_runs", "_steps"]
    assert set(steps["experiment"]) <= set(first["experiment"])


def change_in_place(folder):
    result = next(folder.rglob("result.json"))
    result.write_text(result.read_text().replace('"status": "ok"', '"status": "nan"'))


def run_again(folder):
    run = RunPaths(next(folder.rglob("result.json")).parent)
    run.result.unlink()
    assert (dsnb.load_runs(folder)["status"] == "interrupted").sum() == 1
    records.write_json(run.result, {"status": "timeout", "cause": "late", "summary": {}})


def add_a_run(folder):
    run = next(folder.rglob("run1"))
    shutil.copytree(run, run.with_name("run77"))


def remove_a_run(folder):
    shutil.rmtree(next(folder.rglob("run2")))


def rename_an_experiment(folder):
    first = next(folder.rglob("run1")).parent
    first.rename(first.with_name("another"))


def add_a_log(folder):
    (folder / "logs" / "chat" / "another.log").write_text(foreign_logs.chat())


def change_a_log(folder):
    (folder / "logs" / "megatron" / "old").write_text(foreign_logs.megatron(new=False, iterations=3))


@pytest.mark.parametrize(
    "change",
    [change_in_place, run_again, add_a_run, remove_a_run, rename_an_experiment, add_a_log, change_a_log],
    ids=lambda change: change.__name__,
)
def test_what_changed_is_seen(folder, loads, change):
    before = dsnb.load_runs(folder)
    change(folder)
    after = dsnb.load_runs(folder)
    assert not after.equals(before)
    os.environ["DSNB_CACHE"] = "off"
    pd.testing.assert_frame_equal(after, dsnb.load_runs(folder))


def test_a_run_that_goes_on_is_looked_at_again(folder, loads):
    run = RunPaths(folder / "going" / "run1")
    run.dir.mkdir(parents=True)
    records.write_json(run.experiment, {"model": "gpt2"})
    run.steps.write_text('{"step": 1, "loss": 3.0}\n')
    assert len(dsnb.load_steps(run.dir)) == 1
    with open(run.steps, "a") as file:
        file.write('{"step": 2, "loss": 2.0}\n')
    assert len(dsnb.load_steps(run.dir)) == 2


@pytest.mark.parametrize("damage", [b"", b"ARROW", None])
def test_a_damaged_cache_is_no_trouble(folder, damage, tmp_path):
    first = dsnb.load_runs(folder)
    (kept,) = (tmp_path / "cache").glob("*.arrow")
    kept.write_bytes(kept.read_bytes()[:-200] if damage is None else damage)
    pd.testing.assert_frame_equal(dsnb.load_runs(folder), first)


def test_no_cache_can_be_written(folder, monkeypatch):
    monkeypatch.setenv("DSNB_CACHE", "/proc/none")
    assert len(dsnb.load_runs(folder)) == len(dsnb.load_runs(folder))


@pytest.mark.parametrize(
    "place", ["file", "file/below", "~nosuchuser/cache", "/proc/none", "/sys/none", "a\0b", "no_home", "", "off"]
)
def test_a_cache_that_cannot_be_is_none(few, monkeypatch, tmp_path, place):
    """A file in its place, a folder that nobody may write to, nobody's home: a load is the same without one."""
    (tmp_path / "file").write_text("kept")
    monkeypatch.chdir(tmp_path)
    if "\0" in place:
        monkeypatch.setattr(cache.paths, "cache_home", lambda: tmp_path / place)
    elif place == "no_home":
        monkeypatch.delenv("DSNB_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as it is for a user without a home
    else:
        monkeypatch.setenv("DSNB_CACHE", place if place[:1] in {"/", "~", "", "o"} else str(tmp_path / place))
    before = sorted(path.name for path in tmp_path.iterdir())
    for loader in (dsnb.load_runs, dsnb.load_steps):
        pd.testing.assert_frame_equal(loader(few), loader(few))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_a_cache_that_can_only_be_read_is_read(folder, loads, monkeypatch):
    """On a read-only file system even the note that it was used cannot be written."""
    first = dsnb.load_runs(folder)

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    pd.testing.assert_frame_equal(dsnb.load_runs(folder), first)
    assert loads == ["_runs"]


def test_code_that_changed_reads_anew(folder, loads, monkeypatch):
    dsnb.load_runs(folder)
    monkeypatch.setattr(cache, "_code", lambda: b"later")
    dsnb.load_runs(folder)
    assert loads == ["_runs", "_runs"]


def test_quick_loads_are_not_kept(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "SLOW_S", 60.0)
    dsnb.load_runs(folder)
    assert not (tmp_path / "cache").exists()


def test_steps_are_the_same_with_and_without_damage(tmp_path):
    """Files are parsed together; one damaged line must cost that line only, and no file its neighbours' names."""
    made_up.write_folders(made_up.runs(6, gpus=[1], seq_len=[128]), tmp_path, steps=8)
    whole = dsnb.load_steps(tmp_path)
    files = sorted(tmp_path.rglob("steps.jsonl"))
    assert len(whole) == 8 * len(files)
    lines = files[1].read_text().splitlines(keepends=True)
    files[1].write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:7], lines[7][:-5]]))
    with pytest.warns(dsnb.errors.DsnbWarning, match="2 line"):
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
    made_up.write_folders(made_up.runs(2), tmp_path, steps=3)
    first, second = sorted(tmp_path.rglob("run.ipynb"))
    told = {"cells": [{"metadata": {"papermill": {"duration": 1.0}}, "source": "x" * 40_000}]}
    first.write_text(json.dumps(told | {"metadata": {"papermill": {"default_parameters": {}, "duration": 12.5}}}))
    second.write_text(json.dumps(told | {"metadata": {"papermill": {"duration": 7.25, "version": "x" * 40_000}}}))
    assert list(dsnb.load_runs(tmp_path)["notebook_s"]) == [12.5, 7.25]
