"""What befalls hosts and launchers in a run: noticed in time, told by name, and nothing of the run is left anywhere."""

import json
import os
import re
import signal
import socket
import threading
import time

import pytest

from dsnb import Experiment
from dsnb.files import records
from dsnb.launcher.host_ranks import free_port
from dsnb.launcher.hosts.remote import SERVERS
from dsnb.run_folder.paths import RunPaths
from dsnb.sweep.run import run_sweep
from tests.support.fault_lab import HANGER, SILENCE_S, Run, lab
from tests.support.host_ssh import ENDED
from tests.support.hosts import NETWORK
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.process

STEPPER = "tests.workers.stepper"
NOTICED_S = SILENCE_S + 4
SLACK = 5.0
"""How much longer than on a quiet machine everything may take; without supervision it would be minutes, or for ever."""
LINES = []


@pytest.fixture(scope="module")
def _pair(tmp_path_factory):
    with lab(tmp_path_factory.mktemp("faults")) as made:
        yield made
    print("\n".join(["", "fault: recorded after, hosts empty after", *LINES]))


@pytest.fixture
def pair(_pair):
    yield _pair
    _pair.mend()


def note(run, empty_s, what):
    """Keep how long it took, for the table that `pytest -s` shows."""
    LINES.append(f"{what}: {run.recorded_s:.1f} s, {empty_s:.1f} s; {run.status}: {run.cause}")


def ends(run, what, within_s, empty_within_s=None, on=()):
    """Expect a run to be recorded, and hosts to be empty, in time; give how it was recorded."""
    run.wait()
    empty_s = run.until_empty(*on)
    note(run, empty_s, what)
    assert run.recorded_s < SLACK * within_s
    assert empty_s < SLACK * (empty_within_s or within_s)
    return run.status, run.cause


def lost(run):
    """Give what nodes.json says of the hosts that were lost."""
    return {name: row["lost"] for name, row in run.nodes.items() if row["lost"]}


def test_a_rank_is_killed(pair):
    run = pair.begin()
    run.kill_rank(2, 2)
    assert ends(run, "rank 2 killed", 5 + 4) == ("failed", "rank 2 on mnhost2 was killed by signal 9 (SIGKILL)")
    assert run.nodes["mnhost2"]["exit_codes"] == {"2": -9, "3": -9}
    assert not lost(run)
    assert pair.in_tmp(1) == pair.in_tmp(2) == []


def test_an_agent_is_killed(pair):
    run = pair.begin()
    os.kill(run.agents(2)[0], signal.SIGKILL)
    cause = "the connection to mnhost2 broke: its agent ended without a message (exit code 255)"
    assert ends(run, "agent of host 2 killed", 4) == ("failed", cause)
    assert lost(run) == {"mnhost2": cause}


@pytest.mark.parametrize("which", [1, 2])
def test_a_host_is_switched_off(pair, which):
    run = pair.begin()
    pair.hosts.kill(which)
    status, cause = ends(run, f"host {which} switched off", NOTICED_S)
    assert status == "failed"
    assert cause == f"mnhost{which} has been silent for {SILENCE_S:g} s: its network or the host is down"
    assert lost(run) == {f"mnhost{which}": cause}
    assert pair.in_tmp(3 - which) == []


def test_a_link_is_cut(pair):
    run = pair.begin()
    pair.hosts.cut(2)
    said = f"mnhost2 has been silent for {SILENCE_S:g} s: its network or the host is down"
    assert ends(run, "link of host 2 cut, host 1", NOTICED_S, on=[1]) == ("failed", said)
    note(run, empty_s := run.until_empty(2), "link of host 2 cut, host 2 itself")
    pair.hosts.heal(2)
    assert empty_s < SLACK * (SILENCE_S + 12)
    assert pair.in_tmp(2) == []


@pytest.mark.alone  # beside other tests, the host that is left may miss heartbeats while it imports torch
def test_a_host_is_switched_off_while_ranks_start(pair, monkeypatch):
    monkeypatch.setitem(os.environ, SERVERS, "{}")  # so that it takes long: both hosts import torch
    run = Run(pair, HANGER, {})
    wait_until(lambda: any("fork_server" in line for _, line in pair.left(2)), "host 2 starts its ranks")
    pair.hosts.kill(2)
    run.began = time.monotonic()
    status, cause = ends(run, "host 2 switched off at the start", NOTICED_S)
    assert (status, cause) == (
        "failed",
        f"mnhost2 has been silent for {SILENCE_S:g} s: its network or the host is down",
    )
    assert lost(run) == {"mnhost2": cause}
    assert pair.in_tmp(1) == []


def test_the_sshd_of_a_host_is_killed(pair):
    run = pair.begin()
    pair.hosts.kill_sshd(2)
    status, cause = ends(run, "sshd of host 2 killed", 4)
    assert status == "failed"
    assert re.match(f"the connection to mnhost2 broke: .*({ENDED})", cause), cause
    run = pair.run()
    status, cause = ends(run, "no sshd on host 2", 6)
    assert status == "failed"
    assert cause == "mnhost2 was not reached: ssh: connect to host 10.77.0.2 port 22: Connection refused"
    assert lost(run) == {"mnhost2": cause}
    assert str(run.error) == cause


def test_hosts_that_cannot_be_reached_are_all_named(pair, tmp_path):
    pair.hosts.change_host_key(2)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in ("mnhost1", "mnhost2", "nobody", "10.77.0.99")))
    status, cause = ends(pair.run(hostfile=str(hostfile)), "wrong key, unknown name, no such address", 12 + 4)
    key, name, address = cause.split("; ")
    assert status == "failed"
    assert key == "mnhost2 was not reached: Host key verification failed."
    assert name.startswith("nobody was not reached: ssh: Could not resolve hostname nobody")
    assert address.startswith("10.77.0.99 was not reached: ssh: connect to host 10.77.0.99 port 22: ")


def test_the_launcher_is_killed(pair):
    run = pair.begin(outside=True)
    run.process.kill()
    assert ends(run, "launcher killed", 1, SILENCE_S) == (None, None)  # an unfinished run: a sweep repeats it
    assert pair.in_tmp(1) == pair.in_tmp(2) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_is_interrupted(pair, number):
    run = pair.begin(outside=True)
    os.kill(run.process.pid, number)
    assert ends(run, f"launcher gets {number.name}", 5) == ("interrupted", "stopped by the user")
    assert not lost(run)
    assert pair.in_tmp(1) == pair.in_tmp(2) == []


def test_the_launcher_is_interrupted_while_ranks_start(pair, monkeypatch):
    monkeypatch.setitem(os.environ, SERVERS, "{}")
    run = Run(pair, HANGER, {}, outside=True)
    wait_until(lambda: any("fork_server" in line for _, line in pair.left(2)), "host 2 starts its ranks")
    run.began = time.monotonic()
    os.kill(run.process.pid, signal.SIGINT)
    assert ends(run, "launcher gets SIGINT at the start", 6) == ("interrupted", "stopped by the user")
    assert pair.in_tmp(1) == pair.in_tmp(2) == []


def test_the_launcher_is_interrupted_while_a_host_does_not_answer(pair, tmp_path):
    silent = f"{NETWORK}.254"
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"mnhost1 slots=1\n{silent} slots=1\n")
    with socket.create_server((silent, 22)):  # takes connections, and never says a word
        run = Run(pair, HANGER, {"hostfile": str(hostfile), "gpus": 2}, outside=True)
        wait_until(lambda: run.agents(1), "host 1 has an agent")
        run.began = time.monotonic()
        os.kill(run.process.pid, signal.SIGINT)
        assert ends(run, "launcher gets SIGINT while it connects", 4) == ("interrupted", "stopped by the user")


def test_ranks_hang(pair):
    run = pair.begin(step_timeout_s=9.0)  # it counts from the launch: until then the ranks must have started
    status, cause = ends(run, "all ranks hang, step_timeout_s 9", 9 + 3)
    assert (status, cause) == ("timeout", "no step within step_timeout_s of 9 s, 0 of 5 steps done")


def test_one_host_lacks_the_interface(pair):
    made = ["link add only1 type veth peer name other1", "addr add 10.78.0.1/24 dev only1", "link set other1 up"]
    for words in (*made, "link set only1 up"):
        assert pair.hosts.run_on(1, ["ip", *words.split()]).returncode == 0
    status, cause = ends(pair.run(interface="only1"), "interface missing on host 2", 6, on=[2])
    pair.hosts.run_on(1, ["ip", "link", "del", "only1"])
    assert (status, cause) == ("failed", "interface is 'only1': mnhost2 has no address on it; it has eth0, lo")


def test_a_port_is_in_use(pair):
    port = free_port()
    holder = f"import socket, time; held = socket.create_server(('', {port})); print(1, flush=True); time.sleep(60)"
    held = pair.start_on(1, ["python3", "-c", holder])
    try:
        status, cause = ends(pair.run(master_port=port), "master_port in use", 6, on=[2])
    finally:
        held.kill()
        held.communicate()
    assert (status, cause) == (
        "failed",
        f"mnhost1: master_port is {port}: it is in use there; choose another, or 0 for any free port",
    )


def test_a_disk_is_full(pair):
    pair.hosts.boot(2)
    pair.furnish("mnhost2", size="40m")
    run = pair.run()
    status, cause = ends(run, "disk of host 2 full", 6)
    assert status == "failed"
    assert cause.startswith("mnhost2: /tmp/dsnb-")
    assert "the disk is full (" in cause
    assert lost(run) == {"mnhost2": cause.removeprefix("mnhost2: ")}
    assert pair.in_tmp(2) == []
    pair.hosts.kill(2)


@pytest.mark.filterwarnings("ignore::dsnb.errors.DsnbWarning")
def test_a_disk_runs_full(pair):
    for which in (1, 2):
        pair.hosts.mount_tmpfs(which, pair.outputs)
    status, cause = ends(pair.run("tests.workers.filling"), "disk of host 1 runs full", 40)
    for which in (1, 2):
        pair.hosts.unmount(which, pair.outputs)
    assert status == "failed"
    assert re.fullmatch(
        r"mnhost1: /tmp/dsnb-\w+: the disk is full \(0 MiB free\); free 64 MiB and start again"
        r"(; rank 0 on mnhost1 ended with exit code 1)?",  # it may have ended before the launch saw the disk
        cause,
    ), cause
    assert pair.in_tmp(1) == pair.in_tmp(2) == []


def test_what_ranks_leave_is_fetched_where_storage_is_not_shared(pair):
    for which in (1, 2):
        pair.hosts.mount_tmpfs(which, pair.outputs)
    run = pair.run(STEPPER)
    failed = pair.run("tests.workers.failing")
    left = [list(pair.hosts.path_on(which, pair.outputs).iterdir()) for which in (1, 2)]
    for which in (1, 2):
        pair.hosts.unmount(which, pair.outputs)
    shared = pair.run(STEPPER)
    assert (run.status, shared.status, failed.status) == ("ok", "ok", "failed"), (run.cause, shared.cause)
    assert left == [[], []]
    assert pair.in_tmp(1) == pair.in_tmp(2) == []
    here, there = ({path.name for path in one.paths.dir.iterdir()} for one in (shared, run))
    assert here - there == {f"pids{rank}" for rank in range(4)}
    assert there <= here
    assert run.paths.steps.read_bytes() == shared.paths.steps.read_bytes()
    assert len(records.read_lines(run.paths.steps)) == 5
    told = {row["rank"]: row["cause"] for row in records.read_lines(failed.paths.failures)}
    assert told == {rank: f"no {rank}" for rank in range(4)}
    said = sorted(run.paths.console.read_text().splitlines())
    assert said == [f"mnhost{1 + rank // 2}: rank {rank} é was here" for rank in range(4)]


def test_a_run_ends_beside_another_that_is_interrupted(pair, monkeypatch):
    wait = pair.folder / "wait"
    wait.write_text("0")
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    goes = pair.begin(outside=True)
    pair.serve(*pair.hosts.names)  # each sweep has its own
    stays = pair.begin(STEPPER)
    bystander = "python -u -m deepspeed.launcher.launch --world_info=abc"
    other = pair.start_on(2, ["bash", "-c", f"echo; exec -a '{bystander}' sleep 600"])
    goes.process.terminate()
    assert goes.wait().status == "interrupted"
    assert sorted(pair.alive(stays)) == [0, 1, 2, 3]
    assert pair.alive(goes) == []
    wait.unlink()
    assert stays.wait().status == "ok", stays.cause
    assert other.poll() is None
    assert [line.split()[0] for _, line in pair.left(2)] == ["python"]
    # What DeepSpeed's launcher does on every host when it is interrupted:
    pair.hosts.run_on(2, ["pkill", "-f", "python -u -m deepspeed.launcher.launc"])
    assert other.wait(WAIT_S)
    assert pair.left() == []
    other.communicate()


def test_a_sweep_goes_on_when_a_host_dies(pair, monkeypatch):
    wait = pair.folder / "wait"
    wait.write_text("1")
    out = pair.folder / "out"
    monkeypatch.setenv("DSNB_TEST_WAIT", str(wait))
    settings = pair.settings()
    params = pair.folder / "three.yaml"
    params.write_text(
        json.dumps({"name": "three", "order": "listed", "defaults": settings, "include": [{"seed": [0, 1, 2]}]})
    )
    results = []
    sweep = threading.Thread(
        target=lambda: results.extend(run_sweep(params, output=pair.folder / "out", progress=False))
    )
    sweep.start()
    folders = [RunPaths(out / Experiment(**settings, seed=seed).name / "run1") for seed in range(3)]
    wait_until(lambda: len(list(folders[1].dir.glob("pids*"))) == 4, "the second run is under way")
    pair.hosts.kill(2)
    pair.hosts.switch.ip("neigh flush all")  # the third run finds no route at once, instead of trying for 10 s
    began = time.monotonic()
    wait_until(folders[1].result.exists, "the second run is recorded")
    recorded_s = time.monotonic() - began
    sweep.join(WAIT_S)
    assert not sweep.is_alive()
    LINES.append(
        f"sweep of 3, host 2 off in the 2nd: recorded after {recorded_s:.1f} s, all {time.monotonic() - began:.1f} s"
    )
    assert [one.status for one in results] == ["ok", "failed", "failed"]
    assert results[1].cause == f"mnhost2 has been silent for {SILENCE_S:g} s: its network or the host is down"
    assert results[2].cause.startswith("mnhost2 was not reached: ssh: connect to host 10.77.0.2")
    assert recorded_s < SLACK * NOTICED_S
    assert pair.left() == []
    pair.boot(2)
    wait.unlink()
    before = folders[0].result.stat().st_mtime_ns
    again = run_sweep(params, output=out, progress=False, retry=True, only="*seed1*")
    assert [one.status for one in again] == ["ok"], [one.cause for one in again]
    assert folders[0].result.stat().st_mtime_ns == before
