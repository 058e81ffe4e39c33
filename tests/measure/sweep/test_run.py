"""Sweeps through papermill with real runs: what they leave, resuming, failing; `test_run_stopped` stops them."""

import json
import os
import shutil
from types import SimpleNamespace

import nbformat
import pytest

from dsnb.base.errors import KernelDiedError, LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.launcher.run import launch
from dsnb.measure.sweep import job
from dsnb.measure.sweep.job import execute
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import is_finished, locked, run_sweep
from dsnb.results.runs.load import load_runs
from dsnb.results.runs.sweeps import planned_runs
from dsnb.settings.records import paths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from tests.support.small_sweep import NAMES


def test_a_sweep_leaves_complete_folders_and_a_table(swept):
    runs = load_runs(swept)
    assert list(runs["status"]) == ["ok"] * 4
    assert list(runs["experiment"]) == [NAMES[0]] * 2 + [NAMES[1]] * 2
    assert list(runs["repeat"]) == [1, 2, 1, 2]
    assert (runs["loss_last"] < runs["loss_first"]).all()
    assert sorted(planned_runs(swept)) == [
        (name, repeat) for name in sorted(NAMES) for repeat in (1, 2)
    ]
    folder = swept / NAMES[1] / "run2"
    files = {
        "experiment.json",
        "deepspeed.json",
        "environment.json",
        "steps.jsonl",
        "console.log",
        "worker.json",
    }
    assert {file.name for file in folder.iterdir()} == {*files, "result.json", "run.ipynb"}
    notebook = nbformat.read(folder / "run.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "tokens/s" in html
    (injected,) = [
        cell for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", [])
    ]
    given = dict(line.split(" = ") for line in injected.source.splitlines() if " = " in line)
    assert given.pop("run_dir") == f'"{folder}"'
    shown = {
        "model",
        "zero_stage",
        "precision",
        "micro_batch_size",
        "seq_len",
        "data",
        "device",
        "steps",
    }
    assert given.keys() == shown | {
        "time_limit_s",
        "warmup_steps",
    }  # what differs from the defaults
    assert 'alt="Loss and step time of one run' in html
    assert "%|" not in json.dumps(outputs)  # the progress bar is gone, not frozen at 0 %


def test_a_second_sweep_repeats_nothing_and_failed_runs_only_on_demand(
    params, swept, tmp_path, monkeypatch
):
    sweep = load_sweep(params, only="zs0*", output=shutil.copytree(swept, tmp_path / "out"))
    record = json.loads(sweep.runs[1].paths.result.read_text())
    json_files.write_json(
        sweep.runs[1].paths.result, {**record, "status": "failed", "cause": "by hand"}
    )
    executed = []
    monkeypatch.setattr(
        job, "execute", lambda run: executed.append(run.repeat) or Result.of(RunRecord(run.paths))
    )
    assert [result.status for result in run_sweep(sweep, progress=False)] == ["ok", "failed"]
    assert executed == []
    run_sweep(sweep, retry=True, progress=False)
    assert executed == [2]


def test_other_settings_under_the_same_name_are_refused(params, swept, tmp_path):
    out = shutil.copytree(swept, tmp_path / "out")
    with pytest.raises(SettingsError) as caught:
        run_sweep(
            params, only="zs0*", overrides={"repeats": 1, "steps": 5}, output=out, progress=False
        )
    assert str(caught.value) == (
        f"{out / NAMES[0] / 'run1'} is finished with other settings (steps was 4 and is 5): choose another --output"
    )


@pytest.mark.process
def test_a_failed_run_is_a_row_with_its_notebook(params, tmp_path):
    overrides = {"repeats": 1, "zero_stage": 0, "micro_batch_size": 10**9, "data": "synthetic"}
    (result,) = run_sweep(params, overrides=overrides, output=tmp_path / "out", progress=False)
    assert (result.status, result.cause[:35]) == ("oom", "rank 0: out of memory in building t")
    notebook = (result.run_dir / "run.ipynb").read_text()
    assert "LaunchError" in notebook
    assert "lower micro_batch_size" in notebook


@pytest.mark.parametrize(
    ("error", "begun", "status", "cause"),
    [
        (
            ValueError("Invalid Signature\nand more"),
            False,
            "interrupted",
            "ValueError: Invalid Signature",
        ),
        (
            SettingsError("gpus is 9: there are 2"),
            False,
            "failed",
            "SettingsError: gpus is 9: there are 2",
        ),
        (KernelDiedError("the kernel failed"), False, "interrupted", "the kernel failed"),
        (KernelDiedError("the kernel failed"), True, "interrupted", "the kernel failed"),
    ],
)
def test_a_run_whose_notebook_fails_is_a_row_and_made_again_unless_its_settings_are_refused(
    params, monkeypatch, error, begun, status, cause
):
    (run,) = load_sweep(
        params, only="zs0*", overrides={"repeats": 1}, output=params.parent / "out"
    ).runs
    run.paths.dir.mkdir(parents=True)
    run.paths.console.touch()  # of an earlier attempt

    def fail(*_):
        if begun:
            run.paths.console.touch()
        raise error

    monkeypatch.setattr("dsnb.measure.execute.notebook.execute", fail)
    execute(run)
    (row,) = load_runs(params.parent / "out").to_dict("records")
    assert (row["status"], row["cause"], row["seq_len"]) == (status, cause, 32)
    assert is_finished(run) == (status == "failed")


def test_a_run_has_the_settings_of_its_sweep_whatever_the_notebook_lists(
    params, tmp_path, monkeypatch
):
    template = tmp_path / "10_run.ipynb"
    text = paths.notebook_template("10_run").read_text()
    template.write_text(text.replace("zero_stage: int = 0", "zero_stage: int = 2"))
    monkeypatch.setattr(paths, "notebook_template", lambda _: template)
    passed = []
    monkeypatch.setattr(
        "dsnb.measure.execute.notebook.execute", lambda *words: passed.append(words[2])
    )
    (run,) = load_sweep(params, only="zs0*", overrides={"repeats": 1}, output=tmp_path / "out").runs
    execute(run)
    assert passed[0]["zero_stage"] == 0
    assert "dropout" not in passed[0]  # neither listed nor other than its default
    template.write_text(text.replace('"parameters"', '"params"'))
    with pytest.raises(
        SettingsError, match="has no cell tagged 'parameters' with 'run_dir': restore the tag"
    ):
        run_sweep(params, output=tmp_path / "other", progress=False)


def test_two_sweeps_do_not_share_a_folder(params, tmp_path):
    sweep = load_sweep(params, output=tmp_path / "out")
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    with locked(sweep.paths), pytest.raises(SettingsError) as caught:
        run_sweep(sweep, progress=False)
    assert str(caught.value) == (
        f"{tmp_path / 'out'} is in use by another sweep ({holder}): wait for it, or choose another --output"
    )


def test_a_full_disk_stops_the_sweep_in_one_sentence(params, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(
        LaunchError, match=r"the disk is full \(1 MiB free\); free 64 MiB and start again"
    ):
        run_sweep(params, output=tmp_path / "out", progress=False)


def test_what_cannot_be_read_or_written_is_refused_before_any_run(params, swept, tmp_path):
    """A finished run is not repeated, and its records are not removed, because they cannot be read for now."""
    out = shutil.copytree(swept, tmp_path / "out")
    result = out / NAMES[1] / "run2" / "result.json"
    result.rename(out / "kept")
    result.symlink_to(
        result
    )  # as a stale file handle does, it gives an error that is not "missing"
    with pytest.raises(LaunchError) as caught:
        run_sweep(params, output=out, progress=False)
    assert str(caught.value) == (
        f"{result} cannot be read (Too many levels of symbolic links), and its run may be finished: "
        "make it readable, or choose another folder"
    )
    assert (result.parent / "steps.jsonl").exists()
    with pytest.raises(LaunchError, match="cannot be read"):
        launch(load_sweep(params).runs[0].experiment, result.parent, progress=False)
    shutil.rmtree(out / NAMES[1])
    (out / NAMES[1]).touch()
    shutil.rmtree(out / NAMES[0])
    with pytest.raises(LaunchError) as caught:
        run_sweep(params, output=out, progress=False)
    folder = out / NAMES[1]
    assert (
        str(caught.value)
        == f"{folder / 'run1'} cannot be written: {folder} is no folder; choose another --output"
    )
    assert not (out / NAMES[0]).exists()  # the first run has not been started
