"""Runs on real hosts: they train what one host trains, and what befalls hosts and launchers leaves nothing anywhere."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from dsnb import Experiment
from dsnb.base.files import json_files
from dsnb.measure.launcher import run as launcher
from dsnb.measure.launcher.run import launch
from dsnb.measure.sweep.run import run_sweep
from dsnb.settings.records.paths import RunPaths
from tests import ROOT
from tests.conftest import SMALL
from tests.support.hosts import INTERFACE, NETWORK, Run, lab
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.process
LIMIT_S = 75.0
"""Ends of runs take 5 s on a quiet machine; without supervision it would be many minutes, or for ever."""
SILENT = "the connection to mnhost{} broke: Timeout, server 10.77.0.{} not responding."


@pytest.fixture(scope="module")
def _three(tmp_path_factory):
    with lab(tmp_path_factory.mktemp("hosts")) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "GRACE_PERIOD_S", 1.0)
        yield made


@pytest.fixture
def three(_three):
    yield _three
    _three.mend()


def test_two_hosts_train_what_one_trains(three, losses):
    run = RunPaths(three.folder_of_next())
    here = {
        **SMALL,
        "hostfile": str(three.hostfile),
        "forward_env": "OMP_*",
        "zero_stage": 3,
        "gpus": 2,
        "nodes": 2,
    }
    result = launch(Experiment(**here), run.dir, progress=False)
    assert result.status == "ok", result.message()
    trained = [step["loss"] for step in json_files.read_lines(run.steps)]
    assert trained == pytest.approx(losses(gpus=2, zero_stage=3), abs=2e-6)
    nodes = json_files.read_json(run.nodes)
    assert nodes["differences"] == []
    for rank, node in enumerate(nodes["nodes"]):
        assert (node["host"], node["address"]) == (f"mnhost{rank + 1}", f"10.77.0.{rank + 1}")
        assert (node["interface"], node["ranks"], node["devices"]) == (INTERFACE, [rank], [0])
        assert (node["exit_codes"], node["lost"], node["oom_kills"]) == ({str(rank): 0}, None, 0)
        assert abs(node["clock_offset_s"]) < 0.5
        assert node["environment"]["host"] == node["host"]
        assert node["environment"]["torch"]
    assert json_files.read_json(run.environment)["host"] == "mnhost1"
    assert all(re.match(r"mnhost[12]: ", line) for line in run.console.read_text().splitlines())
    assert three.left() == []


def test_a_rank_is_killed(three):
    run = three.begin(gpus=4)
    three.run_on(2, ["kill", "-9", (run.paths.dir / "pids2").read_text().split()[0]], check=True)
    assert run.end(LIMIT_S) == ("failed", "rank 2 on mnhost2 was killed by signal 9 (SIGKILL)")
    assert (run.of_nodes("exit_codes")["mnhost2"], run.of_nodes("lost")) == ({"2": -9}, {})


def test_torchrun_is_killed(three):
    run = three.begin()
    os.kill(
        next(pid for pid, line in three.left(2) if "dsnb.measure.launcher.on_host" in line),
        signal.SIGKILL,
    )
    cause = "the connection to mnhost2 broke: it ended without a message (exit code 255)"
    assert run.end(LIMIT_S) == ("failed", cause)
    assert run.of_nodes("lost") == {"mnhost2": cause}


def test_a_link_is_cut(three):
    run = three.begin()
    three.ip("link set mnhost2 down")
    assert run.end(LIMIT_S, 1) == ("failed", SILENT.format(2, 2))
    run.end(LIMIT_S)  # on the other, too, although it cannot be reached


def test_hosts_that_cannot_be_reached_are_all_named(three, tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(
        "".join(f"{name} slots=1\n" for name in ("mnhost1", "nobody", "10.77.0.99"))
    )
    status, cause = Run(three, hostfile=str(hostfile), nodes=3, gpus=3).end(2 * LIMIT_S)
    name, address = cause.split("; ")
    assert status == "failed"
    assert name.startswith("nobody was not reached: ssh: Could not resolve hostname nobody")
    assert address.startswith(
        "10.77.0.99 was not reached: ssh: connect to host 10.77.0.99 port 22: "
    )


def test_a_killed_launcher_leaves_an_unfinished_run_and_nothing_on_hosts(three):
    run = three.begin()
    run.process.kill()
    assert run.end(LIMIT_S) == (None, None)


def test_the_launcher_is_interrupted_while_a_host_does_not_answer(three, tmp_path):
    silent = f"{NETWORK}.254"
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"mnhost1 slots=1\n{silent} slots=1\n")
    with socket.create_server((silent, 22)) as listener:  # takes connections, and never says a word
        run = Run(three, hostfile=str(hostfile), gpus=2)
        connection, _ = listener.accept()
        os.kill(run.process.pid, signal.SIGINT)
        assert run.end(LIMIT_S) == ("interrupted", "stopped by the user")
        connection.close()


def test_a_host_that_does_not_see_the_outputs(three):
    three.run_on(2, ["mount", "-t", "tmpfs", "-o", "size=64m", "none", three.outputs], check=True)
    run = Run(three)
    cause = f"mnhost2 does not see {run.paths.dir}: choose outputs on a file system that all hosts share"
    assert run.end(LIMIT_S) == ("failed", cause)
    words = [sys.executable, "-m", "dsnb", "doctor", "--hostfile", str(three.hostfile)]
    env = {**os.environ, "DSNB_OUTPUTS": str(three.outputs)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert f"mnhost2 does not see {three.outputs}" in done.stdout
    assert f"10.77.0.3 on {INTERFACE}; no GPU" in done.stdout
    assert three.left() == []


def test_a_sweep_goes_on_when_a_host_dies(three, monkeypatch):
    wait, out, params = three.folder / "wait", three.folder / "out", three.folder / "two.yaml"
    wait.write_text("0")
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    monkeypatch.setenv(
        "PYTHONPATH", f"{ROOT / 'tests' / 'light'}:{ROOT}"
    )  # the real worker would train
    defaults = three.settings()
    params.write_text(
        json.dumps(
            {"name": "two", "order": "listed", "defaults": defaults, "include": [{"seed": [0, 1]}]}
        )
    )
    results = []
    sweep = threading.Thread(
        target=lambda: results.extend(run_sweep(params, output=out, progress=False))
    )
    sweep.start()
    first = out / Experiment(**defaults, seed=0).name / "run1"
    wait_until(lambda: len(list(first.glob("pids*"))) == 2, "the first run is under way")
    three.kill(2)
    three.ip("neigh flush all")  # the next run finds no route at once, instead of trying for 10 s
    sweep.join(WAIT_S)
    assert not sweep.is_alive()
    assert [result.status for result in results] == ["failed"] * 2, [
        result.cause for result in results
    ]
    assert results[0].cause == SILENT.format(2, 2)
    assert results[1].cause.startswith("mnhost2 was not reached: ssh: connect to host 10.77.0.2")
    assert three.left() == []
    three.mend()
    again = run_sweep(params, output=out, progress=False, retry=True, only="*seed1*")
    assert [result.status for result in again] == ["ok"], [result.cause for result in again]
