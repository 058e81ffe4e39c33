"""The hosts that other tests use (`tests.support.hosts`) are apart, fail as hosts do, and leave nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support import hosts as test_hosts
from tests.support import namespaces
from tests.support.host_ssh import ENDED
from tests.support.hosts import cluster
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended

KINDS = ("net", "pid", "mnt", "uts", "ipc")
HOLDER = """
import sys, time
from tests.support.hosts import cluster
with cluster(2, folder=sys.argv[1]) as hosts:
    hosts.inside(["ssh", "mnhost1", "sleep 4321"])
    hosts.inside(["sh", "-c", "trap '' HUP TERM INT; while true; do sleep 1; done"])
    while not hosts.processes(1):
        time.sleep(0.01)
    print(hosts.switch.pid, *(hosts._host(name).pid for name in hosts.names), *hosts.launchers(), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with cluster(2, folder=tmp_path_factory.mktemp("two hosts")) as hosts:
        yield hosts


def spaces_of(pid):
    """Give the namespaces of a process."""
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}


def still_used(spaces):
    """Name the processes that are in any of some namespaces."""
    users = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            users += [pid] if spaces & set(spaces_of(pid).values()) else []
        except OSError:  # it has ended
            continue
    return users


def interfaces():
    """Say what the machine's own network looks like."""
    return subprocess.run([namespaces.tool("ip"), "-brief", "addr"], capture_output=True, text=True, check=True).stdout


def sleeper(hosts, which):
    """Leave a process behind on a host, and give the machine's number of it."""
    hosts.run_on(which, ["sh", "-c", "setsid sleep 1234 >/dev/null 2>&1 &"])
    found = []
    wait_until(lambda: found.extend(pids(hosts, which, "sleep 1234")) or found, "a process sleeps")
    return found[0]


def pids(hosts, which, command):
    """Give the machine's numbers of what runs a command on a host."""
    return [pid for pid, line in hosts.processes(which) if line == command]


def answer(hosts, which, command="hostname"):
    """Give what a command says on a host, reached by ssh."""
    done = hosts.ssh(which, command)
    assert done.returncode == 0, done
    return done.stdout


def reason(done):
    """Give what ssh says of a connection that failed."""
    assert done.returncode == 255, done
    return done.stderr


@pytest.mark.process
def test_ssh_reaches_each_host_by_its_name(pair):
    assert [answer(pair, name) for name in pair.names] == ["mnhost1\n", "mnhost2\n"]
    assert pair.hostfile.read_text() == "mnhost1 slots=2\nmnhost2 slots=2\n"
    said = answer(pair, 1, "echo $PATH $LANG; cat /etc/hosts; ls /sys/class/net; ls /dev/shm").splitlines()
    known = ["127.0.0.1 localhost", "10.77.0.1 mnhost1", "10.77.0.2 mnhost2"]
    assert said == [f"{namespaces.SYSTEM_PATH} C.UTF-8", *known, pair.interface, "lo"]


@pytest.mark.process
def test_a_thread_goes_into_the_switch_and_comes_back(pair):
    path, before, outside = os.environ["PATH"], os.readlink("/proc/thread-self/ns/net"), interfaces()
    with pair.entered():
        assert os.readlink("/proc/thread-self/ns/net") == os.readlink(pair.switch.network) != before
        done = subprocess.run(["ssh", "-o", "BatchMode=yes", "mnhost2", "hostname"], capture_output=True, text=True)
        assert "br0" in interfaces()
    assert done.stdout == "mnhost2\n", done
    assert os.readlink("/proc/thread-self/ns/net") == before
    assert (os.environ["PATH"], interfaces()) == (path, outside)
    assert "10.77.0." not in outside


@pytest.mark.process
def test_what_is_inside_can_be_killed_itself(pair):
    child = pair.inside(["sleep", "60"])
    assert pair.launchers() == [child.pid]
    child.kill()
    assert child.wait(WAIT_S) == -signal.SIGKILL
    assert pair.launchers() == []


@pytest.mark.process
def test_hosts_do_not_see_each_others_processes_nor_memory(pair):
    pid = sleeper(pair, 1)
    (pair.path_on(1, "/dev/shm") / "mine").write_text("1")
    assert answer(pair, 1, "ls /dev/shm; pgrep -x sleep | wc -l") == "mine\n1\n"
    assert answer(pair, 2, "ls /dev/shm; pgrep -x sleep | wc -l") == "0\n"
    assert pair.processes(2) == []
    assert not Path("/dev/shm/mine").exists()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pair.processes(1) == [], "mnhost1 has no process")


@pytest.mark.process
def test_storage_of_its_own_is_full_on_one_host_alone(pair, tmp_path):
    fill = f"head -c 2000000 /dev/zero > {tmp_path}/data"
    pair.mount_tmpfs(1, tmp_path, size="1m")
    assert "No space left on device" in pair.ssh(1, fill).stderr
    assert (pair.path_on(1, tmp_path) / "data").stat().st_size == 2**20
    assert not list(tmp_path.iterdir())
    pair.unmount(1, tmp_path)
    assert pair.ssh(1, fill).returncode == 0
    assert (tmp_path / "data").stat().st_size == 2_000_000


@pytest.mark.process
def test_a_cut_link_is_silent_until_it_is_healed(pair):
    pair.cut(2)
    assert "timed out" in reason(pair.ssh(2, "hostname", connect_timeout_s=1))
    assert answer(pair, 1) == "mnhost1\n"
    pair.heal(2)
    assert answer(pair, 2) == "mnhost2\n"


@pytest.mark.parametrize("goodbye", [False, True])
@pytest.mark.process
def test_a_host_that_is_switched_off_loses_everything(pair, goodbye):
    pid = sleeper(pair, 2)
    talking = pair.inside(["ssh", "mnhost2", "sleep 60"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(pair.processes(2)) > 1, "a command runs on mnhost2")
    pair.kill(2, goodbye=goodbye)
    try:
        assert not Path(f"/proc/{pid}").exists()
        assert pair.processes(2) == []
        if goodbye:
            assert re.search(ENDED, talking.communicate(timeout=WAIT_S)[1])
            assert talking.returncode == 255
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                talking.wait(0.5)
            talking.kill()
            talking.communicate()
            assert "timed out" in reason(pair.ssh(2, "hostname", connect_timeout_s=1))
    finally:  # the tests that follow have the same hosts
        pair.boot(2)
    assert answer(pair, 2) == "mnhost2\n"
    assert pair.processes(2) == []


@pytest.mark.process
def test_a_changed_host_key_is_refused_until_it_is_trusted(pair):
    pair.change_host_key("mnhost2")
    assert "Host key verification failed" in reason(pair.ssh(2, "hostname"))
    pair.trust(*pair.names)
    assert answer(pair, 2) == "mnhost2\n"


@pytest.mark.process
def test_a_host_without_sshd_is_up_and_refuses_connections(pair):
    pid = sleeper(pair, 1)
    talking = pair.inside(["ssh", "mnhost1", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    talking.stdin.write("line\n")
    talking.stdin.flush()
    assert talking.stdout.readline() == "line\n"
    pair.kill_sshd(1, sessions=False)
    assert "Connection refused" in reason(pair.ssh(1, "hostname"))
    talking.stdin.write("open connections stay\n")
    talking.stdin.flush()
    assert talking.stdout.readline() == "open connections stay\n"
    pair.kill_sshd(1)
    talking.communicate(timeout=WAIT_S)
    assert talking.returncode == 255
    assert pid in dict(pair.processes(1))
    os.kill(pid, signal.SIGKILL)
    pair.start_sshd(1)
    assert answer(pair, 1) == "mnhost1\n"


@pytest.mark.process
def test_two_clusters_do_not_meet(pair, tmp_path):
    with cluster(1, slots=1, folder=tmp_path, port=2222) as other:
        assert other.addresses["mnhost1"] == pair.addresses["mnhost1"]
        assert answer(other, 1) == "mnhost1\n"
        pid = sleeper(other, 1)
        assert pid not in dict(pair.processes(1))
    assert not Path(f"/proc/{pid}").exists()
    assert answer(pair, 1) == "mnhost1\n"


@pytest.mark.process
def test_nothing_is_left_after_the_block(tmp_path):
    before = interfaces()
    with cluster(2, folder=tmp_path) as hosts:
        sleeper(hosts, 2)
        launcher = hosts.inside(["sleep", "60"])
        held = [hosts.switch.pid, *(hosts._host(name).pid for name in hosts.names)]
        spaces = {space for pid in held for space in spaces_of(pid).values()} - set(spaces_of("self").values())
        assert len(spaces) == 1 + 2 * len(KINDS)
        assert still_used(spaces)
    assert still_used(spaces) == []
    assert launcher.wait(WAIT_S) == -signal.SIGKILL
    assert interfaces() == before


@pytest.mark.process
def test_nothing_is_left_when_the_process_that_has_hosts_is_killed(tmp_path):
    command, root = [sys.executable, "-c", HOLDER, str(tmp_path)], ROOT
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    found = process.stdout.readline().split()
    assert len(found) >= 5, found
    spaces = {space for pid in found for space in spaces_of(pid).values()} - set(spaces_of("self").values())
    process.kill()
    process.communicate(timeout=WAIT_S)
    wait_until_ended(map(int, found))
    assert still_used(spaces) == []


def test_without_what_hosts_need_tests_are_skipped_unless_hosts_are_required(monkeypatch):
    monkeypatch.setattr(namespaces, "TOOLS", ("ip", "no-such-tool"))
    monkeypatch.setattr(test_hosts, "refusal", namespaces.refusal.__wrapped__)
    said = "no test hosts: " + ("only root" if os.geteuid() else "not installed: no-such-tool")
    monkeypatch.delenv("DSNB_REQUIRE_HOSTS", raising=False)
    with pytest.warns(UserWarning, match="NO TEST ON SEVERAL HOSTS"), pytest.raises(pytest.skip.Exception, match=said):
        cluster(1).__enter__()
    monkeypatch.setenv("DSNB_REQUIRE_HOSTS", "1")
    with pytest.raises(pytest.fail.Exception, match=said):
        cluster(1).__enter__()
