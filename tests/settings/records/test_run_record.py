"""When a run is finished: each status once, and each file that may be missing; problems of files and folders."""

import os
from pathlib import Path

import pytest

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.sweep.params import Run
from dsnb.measure.sweep.run import is_finished
from dsnb.settings.records import columns, paths, record_schema
from dsnb.settings.records.paths import RunPaths, SweepPaths
from dsnb.settings.records.result import Result, last_line, last_lines
from dsnb.settings.records.run_record import RunRecord
from tests.support import whole

REPEATED = {
    "ok": False,
    "oom": False,
    "nan": False,
    "untrained": False,
    "failed": False,
    "timeout": False,  # the next one would take as long
    "interrupted": True,
}
"""Each status of a run -> whether the next call makes it again."""


def ended(folder, experiment, status="ok"):
    """Write the whole record of a run with three steps; return its paths."""
    run = RunPaths(folder / "out" / experiment.name / "run1")
    whole.leave(run, experiment.steps)
    json_files.write_json(run.experiment, experiment.model_dump())
    Result(status, None, {0: 0}, {"wall": 1.0}, {"tokens_per_s": 64.0}, run.dir).write()
    return run


def test_every_status_has_a_case():
    assert [*REPEATED] == [*columns.STATUSES]


@pytest.mark.parametrize(("status", "repeated"), REPEATED.items())
def test_which_runs_are_made_again(small, tmp_path, status, repeated):
    experiment = small(steps=3)
    run = ended(tmp_path, experiment, status)
    record = RunRecord(run)
    assert (record.status, record.is_finished()) == (status, not repeated)
    of_sweep = Run(experiment.name, experiment, 1, run)
    assert is_finished(of_sweep) is not repeated
    assert is_finished(of_sweep, retry=True) is (status == "ok")


def test_a_run_without_a_result_is_interrupted(small, tmp_path):
    run = ended(tmp_path, small(steps=3))
    run.result.unlink()
    record = RunRecord(run)
    assert (record.status, record.is_finished()) == ("interrupted", False)
    assert record.unfinished() == "it was cut off before its end"
    assert Result.of(record) is None


@pytest.mark.parametrize(
    ("status", "file", "missing"),
    [
        ("ok", "experiment", "experiment.json is missing or empty"),
        ("ok", "environment", "environment.json is missing or empty"),
        ("ok", "steps", "steps.jsonl is missing"),
        ("oom", "experiment", "experiment.json is missing or empty"),
        ("oom", "environment", None),  # it may have ended before
        ("oom", "steps", None),
    ],
)
def test_what_a_finished_run_must_have(small, tmp_path, status, file, missing):
    run = ended(tmp_path, small(steps=3), status)
    assert RunRecord(run).unfinished() is None
    getattr(run, file).unlink()
    assert RunRecord(run).unfinished() == missing


@pytest.mark.parametrize(("count", "has_all"), [(3, True), (2, False), (4, False), (0, False)])
def test_all_timed_steps_must_be_there_and_no_more(small, tmp_path, count, has_all):
    run = ended(tmp_path, small(steps=3))
    rows = [{"step": step, "phase": "timed"} for step in range(2, 2 + count)]
    json_files.write_lines(run.steps, [{"step": 1, "phase": "warmup"}, *rows])
    record = RunRecord(run)
    assert (len(record.timed_steps), record.has_all_steps) == (count, has_all)
    json_files.write_json(run.bandwidth_plan, {})  # a test of the links trains nothing
    assert RunRecord(run).expected_steps == 0


def test_a_result_is_read_as_it_was_written(small, tmp_path):
    run = ended(tmp_path, small(steps=3))
    result = Result("oom", "x", {0: 1, 1: -9}, {"wall": 2.5}, {"tokens_per_s": 64.0}, run.dir)
    result.write()
    assert Result.of(RunRecord(run)) == result
    assert json_files.read_json(run.result)["steps_bytes"] == run.steps.stat().st_size


def test_a_file_that_cannot_be_read_may_be_of_a_finished_run(small, tmp_path, monkeypatch):
    run = ended(tmp_path, small(steps=3))
    RunRecord(run).check_readable()
    run.steps.unlink()
    run.environment.write_text("{")
    RunRecord(run).check_readable()  # damaged: made again
    read = json_files.read_file

    def refuse(path):
        if path == run.result:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr("dsnb.base.files.json_files.read_file", refuse)
    with pytest.raises(
        LaunchError, match=r"result\.json cannot be read \(Permission denied\), and"
    ):
        RunRecord(run).check_readable()


def test_the_last_lines_of_a_log_are_short_and_not_blank(tmp_path):
    log = tmp_path / "console.log"
    log.write_bytes(b"first\n" + 20 * b"line\n\n" + b"\xff" + 500 * b"x" + b"\n  \n")
    lines = last_lines(log)
    assert (len(lines), set(lines[:-1])) == (15, {"line"})
    assert lines[-1] == "\ufffd" + 399 * "x"
    assert (last_lines(log, 2), last_line(log)) == (lines[-2:], lines[-1])
    assert last_line(tmp_path / "none") == "it printed nothing"


def test_steps_are_read_once_and_whole(tmp_path):
    path = tmp_path / "steps.jsonl"
    tail = json_files.Tail(path)
    assert list(record_schema.steps(tail)) == []
    path.write_text('{"step": 1, "loss": 2.5}\n{"note": 1}\n{"step": 2, "lo')
    assert list(record_schema.steps(tail)) == [{"step": 1, "loss": 2.5}]
    with open(path, "a") as file:
        file.write('ss": "x"}\n')
    assert list(record_schema.steps(tail)) == [{"step": 2}]


@pytest.mark.parametrize(
    ("folder", "number"),
    [("run1", 1), ("run12", 12), ("run", None), ("1", None), ("run1x", None), ("run1234567890", None)],
)  # fmt: skip
def test_the_repeat_is_in_the_name_of_a_folder(folder, number):
    assert paths.repeat(folder) == number
    assert RunPaths(Path(folder)).repeat == number


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a"])
def test_an_experiment_is_a_folder_in_that_of_its_sweep(tmp_path, name):
    with pytest.raises(SettingsError, match=r"is not a plain folder name: leave out '/' and '..'$"):
        SweepPaths(tmp_path).run(name, 1)
    assert SweepPaths(tmp_path).run("a", 2).steps == tmp_path / "a" / "run2" / "steps.jsonl"


def test_outputs_lie_beside_the_nearest_notebooks_or_where_the_variable_says(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.delenv("DSNB_OUTPUTS", raising=False)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert (paths.outputs_root(), paths.params_root()) == (
        tmp_path / "outputs",
        tmp_path / "params",
    )
    monkeypatch.setenv("DSNB_OUTPUTS", os.fspath(tmp_path / "x"))
    assert paths.outputs_root() == tmp_path / "x"
