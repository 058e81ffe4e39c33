"""Two hosts that run at once, each a group, and what is said of them. Their ranks train nothing."""

import json
import os
import subprocess
import sys

import pytest

import dsnb
from dsnb.files import records
from dsnb.render import nodes
from dsnb.run_folder.paths import RunPaths
from tests import ROOT
from tests.support import hosts


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Make one experiment of two ranks on each of two hosts, by the command line; give what it said and its folder."""
    home = tmp_path_factory.mktemp("groups")
    params = home / "groups.yaml"
    with hosts.lab(home, count=2) as lab:
        defaults = {**hosts.SETTINGS, "forward_env": "DSNB_TEST_*", "steps": 60}
        params.write_text(json.dumps({"name": "groups", "defaults": defaults, "expect_samples_per_s": 1e6}))
        command = [sys.executable, "-m", "dsnb", "sweep", str(params), "--hostfile", str(lab.hostfile)]
        command += ["--sub-cluster", "1", "--output", str(home / "out")]
        light = {"PYTHONPATH": f"{ROOT / 'tests' / 'light'}:{ROOT}", "DSNB_TEST_STEP_S": "0.1"}
        done = subprocess.run(command, env={**os.environ, **light}, capture_output=True, text=True, timeout=200)
        assert lab.left() == []
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, home / "out"


@pytest.mark.process
def test_groups_run_at_once(swept):
    _, troubles, folder = swept
    first, second = (RunPaths(path.parent) for path in sorted(folder.glob("*/run*/result.json")))
    told = [[node["host"] for node in records.read_json(run.nodes)["nodes"]] for run in (first, second)]
    assert told == [["mnhost1"], ["mnhost2"]]
    spans = [(run.experiment.stat().st_mtime, run.result.stat().st_mtime) for run in (first, second)]
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)
    assert "on mnhost1: ok" in troubles
    assert "on mnhost2: ok" in troubles


@pytest.mark.process
def test_every_group_is_reported(swept):
    said, _, folder = swept
    runs = dsnb.load_runs(folder)
    assert list(runs["hosts"]) == ["mnhost1", "mnhost2"]
    table, _, words = nodes.compare_groups(runs)
    assert list(table["verdict"]) == ["fail", "fail"]  # nobody makes a million samples/s
    for each in ("mnhost1", "mnhost2", words[0][:60]):
        assert each in said
    shown = "".join(str(part) for part in nodes.section(runs))
    assert "Spread between groups" in shown
