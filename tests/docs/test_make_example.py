"""The open example: real, complete, and without the names of the machine that it was made on."""

import json
import re

import nbformat
import pytest

from docs import make_example
from dsnb.runs.load import load_runs, load_steps

RUNS = make_example.TARGET
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var|mnt|opt|srv)/[\w.-]+")


def test_the_example_is_the_whole_quickstart():
    runs = load_runs(RUNS)
    assert len(runs) == 22
    assert set(runs["status"]) == {"ok"}
    assert set(runs["device"]) == {"cpu"}
    assert sorted(set(runs["zero_stage"])) == [0, 1, 2, 3]
    steps = load_steps(RUNS)
    assert len(steps) == 22 * 45
    assert runs.groupby("precision")["loss_last"].nunique().max() <= 14
    assert runs["of_plain"].notna().all()


def test_the_example_names_no_machine_user_or_path():
    files = [path for path in RUNS.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len(files) == 22 * len(make_example.RECORDS) + 4
    for path in files:
        assert not PRIVATE.search(path.read_text()), path
        if path.name == "environment.json":
            machine = json.loads(path.read_text())
            assert (machine["host"], machine["os"]) == (make_example.HOST, "Linux")
    assert make_example.HOST in (RUNS / "report.html").read_text()


def test_records_are_kept_without_host_and_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(make_example, "TARGET", tmp_path / "kept")
    run = tmp_path / "made" / "zs0" / "run1"
    run.mkdir(parents=True)
    (run.parents[1] / "params.yaml").write_text("name: made\n")
    for name in make_example.RECORDS:
        (run / name).write_text('{"host": "secret", "os": "Linux-6.1-secret", "cores": 2}')
    (tmp_path / "kept").mkdir()
    make_example.keep_records(tmp_path / "made")
    kept = json.loads((tmp_path / "kept" / "zs0" / "run1" / "environment.json").read_text())
    assert kept == {"host": "example-host", "os": "Linux", "cores": 2}
    assert (tmp_path / "kept" / "zs0" / "run1" / "steps.jsonl").read_text() == (run / "steps.jsonl").read_text()


@pytest.mark.parametrize("name", ["one_run", "compare"])
def test_notebooks_are_executed_and_light(name):
    notebook = nbformat.read(RUNS / f"{name}.ipynb", as_version=4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert (RUNS / f"{name}.ipynb").stat().st_size < 300_000
