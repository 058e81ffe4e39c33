"""Runs on two real hosts train what one host trains, and leave what one host leaves."""

import os
import re
import signal

import pytest

from dsnb import Experiment
from dsnb.files import records
from dsnb.launcher.bandwidth import DEFAULTS, measure_bandwidth
from dsnb.launcher.hosts import servers
from dsnb.launcher.run import launch
from dsnb.render.all_reduce import section
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.all_reduce import load_bandwidth
from dsnb.runs.load import load_runs
from tests.conftest import SMALL
from tests.support.fault_lab import ROOT, lab

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with lab(tmp_path_factory.mktemp("two hosts")) as made:
        yield made


@pytest.fixture(scope="module")
def train(pair):
    """Train on both hosts, which have servers that have imported torch; give the run's folder."""
    asked = Experiment(**settings(pair))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DSNB_NODE_SERVERS")  # the light ones
        patch.chdir(ROOT)
        with servers.keep_servers([asked]):
            pair.keep()
            yield lambda **given: trained(pair, **given)


def settings(pair, **given):
    return {**SMALL, "hostfile": str(pair.hosts.hostfile), "gpus": 4, "forward_env": "OMP_*", **given}


def trained(pair, **given):
    run = RunPaths(pair.folder_of_next())
    result = launch(Experiment(**settings(pair, **given)), run.dir, progress=False)
    assert result.status == "ok", result.message()
    return run


def losses_of(run):
    return [step["loss"] for step in records.read_lines(run.steps)]


def test_two_hosts_train_what_one_trains(pair, train, losses):
    run = train(zero_stage=3)
    assert losses_of(run) == pytest.approx(losses(gpus=4, zero_stage=3), abs=2e-6)
    nodes = records.read_json(run.nodes)
    assert nodes["shared_storage"] is True
    assert nodes["differences"] == []
    for number, node in enumerate(nodes["nodes"]):
        ranks = [2 * number, 2 * number + 1]
        assert (node["host"], node["address"]) == (f"mnhost{number + 1}", f"10.77.0.{number + 1}")
        assert (node["interface"], node["ranks"], node["devices"]) == (pair.hosts.interface, ranks, [0, 1])
        assert node["exit_codes"] == {str(rank): 0 for rank in ranks}
        assert (node["lost"], node["oom_kills"]) == (None, 0)
        assert abs(node["clock_offset_s"]) < 0.5
        assert node["environment"]["host"] == node["host"]
        assert node["environment"]["torch"]
    assert records.read_json(run.environment)["host"] == "mnhost1"
    assert all(re.match(r"mnhost[12]: ", line) for line in run.console.read_text().splitlines())
    assert not list(run.dir.glob(".*"))
    assert records.read_json(run.result)["exit_codes"] == {str(rank): 0 for rank in range(4)}


def test_hosts_without_shared_storage_train_the_same(pair, train, losses):
    for which in (1, 2):
        pair.hosts.mount_tmpfs(which, pair.outputs)
    run = train(zero_stage=3)
    left = [list(pair.hosts.path_on(which, pair.outputs).iterdir()) for which in (1, 2)]
    for which in (1, 2):
        pair.hosts.unmount(which, pair.outputs)
    assert losses_of(run) == pytest.approx(losses(gpus=4, zero_stage=3), abs=2e-6)
    assert records.read_json(run.nodes)["shared_storage"] is False
    assert left == [[], []]
    assert all(len(pair.in_tmp(which)) == 1 for which in (1, 2))  # the kept server's socket
    assert records.read_json(run.worker)["phases_s"]
    assert not list(run.dir.glob(".*"))


def test_bandwidth_is_measured_over_hosts_that_share_no_folder(pair, train):
    output = pair.folder / "bandwidth"
    output.mkdir()
    for which in (1, 2):
        pair.hosts.mount_tmpfs(which, output)
    result = measure_bandwidth(Experiment(**DEFAULTS | settings(pair, gpus="auto")), output, most_bytes=64)
    for which in (1, 2):
        pair.hosts.unmount(which, output)
    assert result.status == "ok", result.message()
    table = load_bandwidth(output)
    assert list(table["bytes"]) == [8, 16, 32, 64]
    assert set(table["ranks"]) == {4}
    assert "In-place all-reduce over 4 ranks (gloo on CPUs) on mnhost1, mnhost2, 2" in next(section(output)).text
    assert load_runs(output).empty


def test_deepspeeds_launcher_ends_its_own_ranks_alone(pair, monkeypatch):
    wait = pair.folder / "wait"
    wait.write_text("0")
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    goes = pair.start(outside=True, launcher="deepspeed", gpus=2, nodes=2)
    stays = pair.start("tests.workers.stepper", launcher="deepspeed", gpus=2, nodes=2)
    for run in (goes, stays):
        run.until_ranks()
    lines = [line for _, line in pair.left() if "deepspeed.launcher.launch" in line]
    assert {which for which in (stays, goes) for line in lines if str(which.paths.dir) in line} == {stays, goes}
    os.kill(goes.process.pid, signal.SIGTERM)
    assert goes.wait().status == "interrupted"
    assert goes.recorded_s < 60
    assert not [line for _, line in pair.left() if str(goes.paths.dir) in line]
    for which in (1, 2):
        assert [
            line for _, line in pair.left(which) if "deepspeed.launcher.launch" in line and str(stays.paths.dir) in line
        ]
    wait.unlink()
    assert stays.wait().status == "ok", stays.cause
    stays.until_empty()
