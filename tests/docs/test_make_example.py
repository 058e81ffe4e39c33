"""The open example: real, complete, and without the names of the machine that it was made on."""

import json
import re

from docs import make_example
from dsnb.runs.load import load_runs, load_steps

RUNS = make_example.TARGET
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var|mnt|opt|srv)/[\w.-]+")


def test_the_example_is_the_whole_quickstart():
    runs = load_runs(RUNS)
    assert len(runs) == 22
    assert runs[["status", "device"]].drop_duplicates().to_numpy().tolist() == [["ok", "cpu"]]
    assert set(runs["zero_stage"]) == {0, 1, 2, 3}
    assert len(load_steps(RUNS)) == 22 * 45
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
