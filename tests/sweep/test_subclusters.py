"""Two real hosts that train at once, each a group, and what is said of them."""

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
from tests.support.hosts import lab


@pytest.mark.process
def test_groups_train_at_once_and_alike_and_are_reported(tmp_path, losses):
    """One experiment of two ranks on each of two hosts, by the command line."""
    params, folder = tmp_path / "groups.yaml", tmp_path / "hosts"
    folder.mkdir()
    defaults = {**{key: value for key, value in SMALL.items() if key != "device"}, "forward_env": "OMP_*"}
    params.write_text(yaml.safe_dump({"name": "groups", "defaults": defaults, "expect_samples_per_s": 1e6}))
    with lab(folder, count=2) as hosts:
        words = ["--hostfile", str(hosts.hostfile), "--sub-cluster", "1", "--output", str(tmp_path / "out")]
        command = [sys.executable, "-m", "dsnb", "sweep", str(params), *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert hosts.left() == []
    assert done.returncode == 0, done.stderr
    first, second = (RunPaths(path.parent) for path in sorted((tmp_path / "out").glob("*/run*/result.json")))
    used = [[node["host"] for node in records.read_json(run.nodes)["nodes"]] for run in (first, second)]
    assert used == [["mnhost1"], ["mnhost2"]]
    spans = [(run.experiment.stat().st_mtime, run.result.stat().st_mtime) for run in (first, second)]
    assert max(begin for begin, _ in spans) < min(end for _, end in spans)
    alone = losses(gpus=2)
    for run in (first, second):
        assert [step["loss"] for step in records.read_lines(run.steps)] == pytest.approx(alone, abs=2e-6)
    assert "on mnhost1: ok" in done.stderr
    assert "on mnhost2: ok" in done.stderr
    runs = dsnb.load_runs(tmp_path / "out")
    table, _, sentences = node_report.compare_groups(runs)
    assert list(table["verdict"]) == ["fail", "fail"]  # no host makes a million samples/s
    assert all(text in done.stdout for text in ("mnhost1", "mnhost2", sentences[0][:60]))
    assert "Spread between groups" in "".join(str(part) for part in node_report.section(runs))
