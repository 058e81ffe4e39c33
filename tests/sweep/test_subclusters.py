"""Two real hosts that train at once, each a group, and what is said of them."""

import os
import subprocess
import sys

import pytest
import yaml

import dsnb
from dsnb.files import records
from dsnb.render import node_report
from dsnb.run_folder.paths import RunPaths
from tests import ROOT
from tests.conftest import SMALL
from tests.support import hosts

SETTINGS = {key: value for key, value in SMALL.items() if key != "device"}
STEPS = 100
"""Enough for both groups to train at once, although one starts a second later."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Make one experiment of two ranks on each of two hosts, by the command line; give what it said and its folder."""
    home = tmp_path_factory.mktemp("groups")
    params = home / "groups.yaml"
    file = {
        "name": "groups",
        "defaults": {**SETTINGS, "steps": STEPS, "forward_env": "OMP_*"},
        "expect_samples_per_s": 1e6,
    }
    params.write_text(yaml.safe_dump(file))
    with hosts.cluster(2, slots=2, folder=home / "hosts") as made:
        command = [sys.executable, "-m", "dsnb", "sweep", str(params), "--hostfile", str(made.hostfile)]
        command += ["--sub-cluster", "1", "--output", str(home / "out")]
        env = {**os.environ, **made.env}
        process = made.inside(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, troubles = process.communicate(timeout=200)
        left = [made.processes(name) for name in made.names]
    assert process.returncode == 0, troubles
    assert left == [[], []]
    return said, troubles, home / "out"


def runs_of(folder):
    return [RunPaths(path.parent) for path in sorted(folder.glob("*/run*/result.json"))]


def test_groups_train_at_once_and_alike(swept, losses):
    _, troubles, folder = swept
    first, second = runs_of(folder)
    told = [[node["host"] for node in records.read_json(run.nodes)["nodes"]] for run in (first, second)]
    assert told == [["mnhost1"], ["mnhost2"]]
    spans = [(run.experiment.stat().st_mtime, run.result.stat().st_mtime) for run in (first, second)]
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)
    alone = losses(gpus=2, steps=STEPS)
    for run in (first, second):
        assert [step["loss"] for step in records.read_lines(run.steps)] == pytest.approx(alone, abs=2e-6)
    assert "on mnhost1: ok" in troubles
    assert "on mnhost2: ok" in troubles


def test_every_group_is_reported(swept):
    said, _, folder = swept
    runs = dsnb.load_runs(folder)
    assert list(runs["hosts"]) == ["mnhost1", "mnhost2"]
    table, _, words = node_report.compare_groups(runs)
    assert list(table["verdict"]) == ["fail", "fail"]  # nobody makes a million samples/s
    for each in ("mnhost1", "mnhost2", words[0][:60]):
        assert each in said
    shown = "".join(str(part) for part in node_report.section(runs))
    assert "Spread between groups" in shown
