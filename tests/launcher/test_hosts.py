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
from dsnb.files import records
from dsnb.launcher import run as launcher
from dsnb.launcher.bandwidth import DEFAULTS, measure_bandwidth
from dsnb.launcher.local import free_port
from dsnb.launcher.run import launch
from dsnb.render.all_reduce import section
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.all_reduce import load_bandwidth
from dsnb.runs.load import load_runs
from dsnb.sweep.run import run_sweep
from tests import ROOT
from tests.conftest import SMALL
from tests.support.fault_lab import SILENCE_S, Run, lab
from tests.support.hosts import NETWORK
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.process
STEPPER = "tests.workers.stepper"
SLACK = 5.0
"""How much longer than on a quiet machine everything may take; without supervision it would be minutes, or for ever."""
ENDED = "closed by remote host|Connection reset by|Broken pipe"
"""What ssh says when the other side ends a connection: the last two when it was just writing."""
SILENT = "the connection to mnhost{} broke: Timeout, server 10.77.0.{} not responding."


@pytest.fixture(scope="module")
def _three(tmp_path_factory):
    with lab(tmp_path_factory.mktemp("hosts"), count=3) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "GRACE_PERIOD_S", 1.0)
        yield made


@pytest.fixture
def three(_three):
    yield _three
    _three.mend()


def two(**settings):
    """Give the settings of a run on the first two hosts."""
    return {"gpus": 2, "nodes": 2, **settings}


def ends(run, within_s, on=()):
    """Expect a run to be recorded, and hosts to be empty, in time; give how it was recorded."""
    run.wait()
    assert run.recorded_s < SLACK * within_s
    assert run.until_empty(*on) < SLACK * within_s
    return run.status, run.cause


def settings(three, **given):
    return {**SMALL, "hostfile": str(three.hosts.hostfile), "forward_env": "OMP_*", **given}


def test_three_hosts_train_what_one_trains(three, losses):
    run = RunPaths(three.folder_of_next())
    result = launch(Experiment(**settings(three, gpus=3, nodes=3, zero_stage=3)), run.dir, progress=False)
    assert result.status == "ok", result.message()
    trained = [step["loss"] for step in records.read_lines(run.steps)]
    assert trained == pytest.approx(losses(gpus=3, zero_stage=3), abs=2e-6)
    nodes = records.read_json(run.nodes)
    assert nodes["differences"] == []
    for rank, node in enumerate(nodes["nodes"]):
        assert (node["host"], node["address"]) == (f"mnhost{rank + 1}", f"10.77.0.{rank + 1}")
        assert (node["interface"], node["ranks"], node["devices"]) == (three.hosts.interface, [rank], [0])
        assert (node["exit_codes"], node["lost"], node["oom_kills"]) == ({str(rank): 0}, None, 0)
        assert abs(node["clock_offset_s"]) < 0.5
        assert node["environment"]["host"] == node["host"]
        assert node["environment"]["torch"]
    assert records.read_json(run.environment)["host"] == "mnhost1"
    assert all(re.match(r"mnhost[123]: ", line) for line in run.console.read_text().splitlines())
    assert {path.name for path in run.dir.iterdir()} == {
        *("console.log", "deepspeed.json", "environment.json", "experiment.json", "nodes.json", "result.json"),
        *("steps.jsonl", "worker.json"),
    }
    assert result.exit_codes == dict.fromkeys(range(3), 0)
    assert three.left() == []


def test_bandwidth_over_hosts(three):
    output = three.folder / "bandwidth"
    result = measure_bandwidth(Experiment(**DEFAULTS | settings(three, gpus=2, nodes=2)), output, most_bytes=64)
    assert result.status == "ok", result.message()
    table = load_bandwidth(output)
    assert list(table["bytes"]) == [8, 16, 32, 64]
    assert "In-place all-reduce over 2 ranks (gloo on CPUs) on mnhost1, mnhost2, 2" in next(section(output)).text
    assert load_runs(output).empty


def test_a_rank_is_killed(three):
    run = three.begin(**two(gpus=4))
    run.kill_rank(2, 2)
    assert ends(run, 5) == ("failed", "rank 2 on mnhost2 was killed by signal 9 (SIGKILL)")
    assert (run.nodes["mnhost2"]["exit_codes"], run.lost) == ({"2": -9}, {})


def test_torchrun_is_killed(three):
    run = three.begin(**two())
    os.kill(run.torchrun(2)[0], signal.SIGKILL)
    cause = "the connection to mnhost2 broke: it ended without a message (exit code 255)"
    assert ends(run, 4) == ("failed", cause)
    assert run.lost == {"mnhost2": cause}


def test_a_host_is_switched_off(three):
    run = three.begin(**two())
    three.hosts.kill(1)
    assert ends(run, SILENCE_S + 4) == ("failed", SILENT.format(1, 1))
    assert run.lost == {"mnhost1": run.cause}


def test_a_link_is_cut(three):
    run = three.begin(**two())
    three.hosts.cut(2)
    assert ends(run, SILENCE_S + 4, on=[1]) == ("failed", SILENT.format(2, 2))
    assert run.until_empty(2) < SLACK * (SILENCE_S + 4)  # although it cannot be reached


def test_the_sshd_of_a_host_is_killed(three):
    run = three.begin(**two())
    three.hosts.kill_sshd(2)
    status, cause = ends(run, 4)
    assert status == "failed"
    assert re.match(f"the connection to mnhost2 broke: .*({ENDED})", cause), cause
    run = three.run(**two())
    cause = "mnhost2 was not reached: ssh: connect to host 10.77.0.2 port 22: Connection refused"
    assert ends(run, 6) == ("failed", cause)
    assert (run.lost, str(run.error)) == ({"mnhost2": cause}, cause)


def test_hosts_that_cannot_be_reached_are_all_named(three, tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in ("mnhost1", "nobody", "10.77.0.99")))
    status, cause = ends(three.run(hostfile=str(hostfile), gpus=3), 12 + 4)
    name, address = cause.split("; ")
    assert status == "failed"
    assert name.startswith("nobody was not reached: ssh: Could not resolve hostname nobody")
    assert address.startswith("10.77.0.99 was not reached: ssh: connect to host 10.77.0.99 port 22: ")


@pytest.mark.parametrize(
    ("number", "recorded"),
    [
        (signal.SIGKILL, (None, None)),  # an unfinished run: a sweep repeats it
        (signal.SIGINT, ("interrupted", "stopped by the user")),
    ],
)
def test_the_launcher_is_stopped(three, number, recorded):
    run = three.begin(outside=True, **two())
    os.kill(run.process.pid, number)
    assert ends(run, 5) == recorded
    assert run.lost == {}


def test_the_launcher_is_interrupted_while_ranks_start(three):
    run = Run(three, "tests.workers.hanger", two(), outside=True)
    wait_until(lambda: run.torchrun(2), "torchrun starts on host 2")
    os.kill(run.process.pid, signal.SIGINT)
    assert ends(run, 6) == ("interrupted", "stopped by the user")


def test_the_launcher_is_interrupted_while_a_host_does_not_answer(three, tmp_path):
    silent = f"{NETWORK}.254"
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"mnhost1 slots=1\n{silent} slots=1\n")
    with socket.create_server((silent, 22)) as listener:  # takes connections, and never says a word
        run = Run(three, "tests.workers.hanger", {"hostfile": str(hostfile), "gpus": 2}, outside=True)
        connection, _ = listener.accept()
        os.kill(run.process.pid, signal.SIGINT)
        assert ends(run, 4) == ("interrupted", "stopped by the user")
        connection.close()


def test_what_hosts_lack_is_told_before_ranks_start(three):
    made = ["link add only1 type veth peer name other1", "addr add 10.78.0.1/24 dev only1", "link set other1 up"]
    for words in (*made, "link set only1 up"):
        assert three.hosts.run_on(1, ["ip", *words.split()]).returncode == 0
    run = three.run(**two(interface="only1"))
    three.hosts.run_on(1, ["ip", "link", "del", "only1"])
    assert run.cause == "interface is 'only1': mnhost2 has no address on it; it has eth0, lo"
    port = free_port("")
    holder = f"import socket, time; held = socket.create_server(('', {port})); print(1, flush=True); time.sleep(60)"
    command = [*three.hosts.prefix(1), sys.executable, "-c", holder]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as held:
        held.stdout.readline()
        run = three.run(**two(master_port=port))
        held.kill()
    said = f"mnhost1: master_port is {port}: it is in use there; choose another, or 0 for any free port"
    assert (run.status, run.cause, str(run.error)) == ("failed", said, said)
    three.hosts.mount_tmpfs(2, three.outputs)
    run = three.run(**two())
    assert run.status == "failed"
    assert run.cause == (f"mnhost2 does not see {run.paths.dir}: choose outputs on a file system that all hosts share")
    env = {**os.environ, **three.hosts.env, "DSNB_OUTPUTS": str(three.outputs)}
    words = [sys.executable, "-m", "dsnb", "doctor", "--hostfile", str(three.hosts.hostfile)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert f"mnhost2 does not see {three.outputs}" in " ".join(done.stdout.split())
    assert three.left() == []


def test_a_run_ends_beside_another_that_is_interrupted(three, monkeypatch):
    wait = three.folder / "wait"
    wait.write_text("0")
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    goes = three.begin(outside=True, **two())
    stays = three.begin(STEPPER, **two())
    goes.process.terminate()
    assert goes.wait().status == "interrupted"
    assert (three.alive(stays), three.alive(goes)) == ([0, 1], [])
    wait.unlink()
    assert stays.wait().status == "ok", stays.cause
    stays.until_empty()


def test_a_sweep_goes_on_when_a_host_dies(three, monkeypatch):
    wait, out, params = three.folder / "wait", three.folder / "out", three.folder / "three.yaml"
    wait.write_text("1")
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'light'}:{ROOT}")  # the real worker would train
    defaults = three.settings(**two())
    file = {"name": "three", "order": "listed", "defaults": defaults, "include": [{"seed": [0, 1, 2]}]}
    params.write_text(json.dumps(file))
    results = []
    sweep = threading.Thread(target=lambda: results.extend(run_sweep(params, output=out, progress=False)))
    sweep.start()
    folders = [RunPaths(out / Experiment(**defaults, seed=seed).name / "run1") for seed in range(3)]
    wait_until(lambda: len(list(folders[1].dir.glob("pids*"))) == 2, "the second run is under way")
    three.hosts.kill(2)
    three.hosts.switch.ip("neigh flush all")  # the third run finds no route at once, instead of trying for 10 s
    sweep.join(WAIT_S)
    assert not sweep.is_alive()
    assert [one.status for one in results] == ["ok", "failed", "failed"], [one.cause for one in results]
    assert results[1].cause == SILENT.format(2, 2)
    assert results[2].cause.startswith("mnhost2 was not reached: ssh: connect to host 10.77.0.2")
    assert three.left() == []
    three.mend()
    wait.unlink()
    before = folders[0].result.stat().st_mtime_ns
    again = run_sweep(params, output=out, progress=False, retry=True, only="*seed1*")
    assert [one.status for one in again] == ["ok"], [one.cause for one in again]
    assert folders[0].result.stat().st_mtime_ns == before
