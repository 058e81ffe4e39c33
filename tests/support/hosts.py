"""Real hosts on one machine, in separate namespaces with a real sshd, and runs on them that are disturbed.

All hosts hang on a bridge in a further network namespace, the switch, which is where launchers run; `ssh mnhost1` works
there, and nothing but ssh knows the names. The machine's own network is never touched. Hosts share the machine's file
system, so every folder is shared storage unless a test mounts another there. All ends with the process that started it.
The ranks are fakes without torch that hang with a child each: the supervision is what is tried out.
"""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import psutil
import pytest

import dsnb
from dsnb.base.errors import LaunchError
from dsnb.base.files import json_files
from dsnb.measure.launcher.run import launch
from dsnb.settings.records.paths import RunPaths
from tests import ROOT
from tests.support.waiting import WAIT_S, wait_until

SETTINGS = {
    "model": "gpt2-tiny",
    "seq_len": 32,
    "micro_batch_size": 1,
    "warmup_steps": 1,
    "steps": 4,
    "device": "cpu",
}
SILENCE_S = 9.0
NETWORK, INTERFACE = "10.77.0", "eth0"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_ENV = {
    "PATH": SYSTEM_PATH,
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
}
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "sshd", "ssh", "ssh-keygen")
OF_A_HOST = ("--net", "--pid", "--mount", "--uts", "--ipc")
NEW_NET = 0x40000000  # CLONE_NEWNET
FURNISH = """
set -e
hostname {name}
mount -t proc none /proc
mount -t tmpfs none /run
mkdir /run/sshd /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs none /sys  # shows this host's network interfaces instead of the machine's
mount --move /run/cgroup /sys/fs/cgroup
mount -t tmpfs none /dev/shm
mount --bind {folder}/hosts /etc/hosts
for settings in ~/.bashrc ~/.zshenv; do [ ! -e $settings ] || mount --bind /dev/null $settings; done
echo furnished
trap '' CHLD  # the first process reaps the host's orphans
exec sleep infinity
"""
SERVER = """\
AddressFamily inet
PidFile none
HostKey "{key}"
AuthorizedKeysFile "{key}.pub"
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PrintLastLog no
SetEnv PATH={path} LANG=C.UTF-8
"""
CLIENT = """\
Host *
  IdentityFile "{key}"
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
"""


def tool(name):
    """Find a program where root finds it."""
    return shutil.which(name, path=f"{os.environ['PATH']}:{SYSTEM_PATH}") or name


def require_hosts():
    """Skip where there can be no hosts, with one loud line; fail where they must be had."""
    missing = [name for name in TOOLS if not os.path.isabs(tool(name))]
    tried = "mount -t sysfs none /sys && ip link add b0 type bridge && ip link add v0 type veth peer name v1"
    command = [tool("unshare"), *OF_A_HOST, "--fork", "sh", "-c", tried]
    reason = f"not installed: {', '.join(missing)}" if missing else ""
    if (
        not reason
        and (
            done := subprocess.run(command, env=HOST_ENV, capture_output=True, text=True)
        ).returncode
    ):
        reason = f"namespaces are refused: {done.stderr.strip()}"
    if reason and os.environ.get("DSNB_REQUIRE_HOSTS"):
        pytest.fail(f"no test hosts: {reason}")
    if reason:
        warnings.warn(f"NO TEST ON SEVERAL HOSTS WAS RUN: {reason}", stacklevel=1)
        pytest.skip(f"no test hosts: {reason}")


def started(*words):
    """Start a process that ends with this one, and wait until it is ready."""
    command = [tool("setpriv"), "--pdeathsig", "KILL", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=HOST_ENV, start_new_session=True
    )
    assert process.stdout.readline() == b"furnished\n"
    return process


@contextlib.contextmanager
def lab(folder):
    """Boot three hosts with two slots each; in the block, this thread and what it starts are where launchers are."""
    require_hosts()
    made, libc = Lab(folder), ctypes.CDLL(None, use_errno=True)  # Python 3.11 has no `os.setns`
    with pytest.MonkeyPatch.context() as patch, open("/proc/thread-self/ns/net") as outside:
        patch.setenv("DSNB_SILENCE_S", str(SILENCE_S))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        try:
            made.open()
            with open(f"/proc/{made.switch.pid}/ns/net") as inside:
                assert libc.setns(inside.fileno(), NEW_NET) == 0
            yield made
        finally:
            assert libc.setns(outside.fileno(), NEW_NET) == 0
            made.close()


class Lab:
    """Test hosts, which are named by their numbers. Made by `lab`."""

    numbers = (1, 2, 3)

    def __init__(self, folder):
        self.folder, self.outputs, self.hostfile = folder, folder / "outputs", folder / "hostfile"
        self.switch, self._hosts = None, {}

    def open(self):
        """Write all that ssh and sshd read, so that nothing of the machine's own is read, and boot everything."""
        key, binaries = self.folder / "key", self.folder / "bin"
        for made in (binaries, self.outputs):
            made.mkdir()
        subprocess.run([tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self.folder / "sshd_config").write_text(SERVER.format(key=key, path=SYSTEM_PATH))
        named = "".join(
            f"Host mnhost{number}\n  HostName {NETWORK}.{number}\n" for number in self.numbers
        )
        (self.folder / "ssh_config").write_text(named + CLIENT.format(key=key))
        (binaries / "ssh").write_text(
            f"#!/bin/sh\nexec {tool('ssh')} -F '{self.folder / 'ssh_config'}' \"$@\"\n"
        )
        (binaries / "ssh").chmod(0o755)
        addresses = "".join(f"{NETWORK}.{number} mnhost{number}\n" for number in self.numbers)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{addresses}")
        self.hostfile.write_text("".join(f"mnhost{number} slots=2\n" for number in self.numbers))
        self.switch = started(
            tool("unshare"), "--net", "sh", "-c", "echo furnished; exec sleep infinity"
        )
        bridge = [f"addr add {NETWORK}.254/24 dev br0", "link set br0 up"]
        self.ip("link set lo up", "link add br0 type bridge", *bridge)
        for number in self.numbers:
            self.boot(number)

    def close(self):
        for process in filter(None, [*self._hosts.values(), self.switch]):
            process.kill()
            process.wait()
            process.stdout.close()

    def ip(self, *lines, pid=None):
        """Run lines of `ip` in the switch, or in the network of a process."""
        command = [
            tool("nsenter"),
            f"--net=/proc/{pid or self.switch.pid}/ns/net",
            "--",
            tool("ip"),
            "-batch",
            "-",
        ]
        subprocess.run(command, input="\n".join(lines), text=True, check=True, capture_output=True)

    # -- what befalls hosts

    def boot(self, number):
        """Switch a host on, with a new sshd and without earlier processes and mounts."""
        script = FURNISH.format(name=f"mnhost{number}", folder=self.folder)
        self._hosts[number] = started(
            tool("unshare"), *OF_A_HOST, "--fork", "--kill-child", "sh", "-c", script
        )
        hardware = f"02:77:00:00:00:{number:02x}"  # always the same one, or its peers' caches would be wrong
        peer = f"peer name {INTERFACE} address {hardware} netns {self._first(number)}"
        self.ip(
            f"link add mnhost{number} type veth {peer}", f"link set mnhost{number} master br0 up"
        )
        up = [f"addr add {NETWORK}.{number}/24 dev {INTERFACE}", f"link set {INTERFACE} up"]
        self.ip("link set lo up", *up, pid=self._first(number))
        self.run_on(number, [tool("sshd"), "-f", self.folder / "sshd_config"], check=True)
        table = Path(f"/proc/{self._first(number)}/net/tcp")
        wait_until(lambda: ":0016 00000000:0000 0A" in table.read_text(), f"host {number} listens")

    def kill(self, number):
        """Switch a host off: its peers hear nothing."""
        self.ip(f"link del mnhost{number}")
        self._hosts[number].kill()
        self._hosts[number].wait()

    def mend(self):
        """Make all hosts whole again, whatever befell them."""
        for number in self.numbers:
            if self._hosts[number].poll() is not None:
                self.boot(number)
                self.ip(
                    "neigh flush all"
                )  # or connections fail for a second: it was not there just now
            self.ip(f"link set mnhost{number} up")
            while self.run_on(number, ["umount", self.outputs]).returncode == 0:
                pass

    # -- what is on hosts

    def run_on(self, number, argv, check=False):
        """Run a command on a host to its end, not by ssh, in a fresh environment; it is killed with this process."""
        enter = [tool("nsenter"), "--target", str(self._first(number)), *OF_A_HOST, "--"]
        command = [*enter, "setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        return subprocess.run(command, env=HOST_ENV, timeout=WAIT_S, check=check, **pipes)

    def left(self, *numbers):
        """Return ID and command line of each process on hosts but the first one and sshd."""
        left, running = (
            [],
            [number for number in numbers or self.numbers if self._hosts[number].poll() is None],
        )
        namespaces = {
            os.readlink(f"/proc/{self._first(number)}/ns/pid"): self._first(number)
            for number in running
        }
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):  # it has ended
                first = namespaces.get(os.readlink(f"/proc/{process.pid}/ns/pid"), process.pid)
                is_work = (
                    process.status() != psutil.STATUS_ZOMBIE
                    and not process.name().startswith("sshd")
                )
                if process.pid != first and is_work:
                    left.append((process.pid, " ".join(process.cmdline())))
        return left

    def _first(self, number):
        """Return the ID of the first process of a host, a child of `unshare`."""
        (first,) = psutil.Process(self._hosts[number].pid).children()
        return first.pid

    # -- runs

    def settings(self, **settings):
        """Return the settings of a run on the first two hosts."""
        common = {
            "gpus": 2,
            "nodes": 2,
            "forward_env": "DSNB_TEST_*",
            "hostfile": str(self.hostfile),
        }
        return {**SETTINGS, **common, **settings}

    def folder_of_next(self):
        return self.outputs / f"run{len(list(self.outputs.iterdir())) + 1}"

    def begin(self, **settings):
        """Start a run, and wait until every rank has started its child."""
        run = Run(self, **settings)

        def are_there():
            assert not run.paths.result.exists(), run.paths.result.read_text()
            return (
                len([path for path in run.paths.dir.glob("pids*") if path.read_text()])
                == run.settings["gpus"]
            )

        wait_until(are_there, "all ranks are there")
        return run


class Run:
    """A run under way: its launcher is a separate process in the switch."""

    def __init__(self, lab, **settings):
        self.lab, self.paths, self.settings = (
            lab,
            RunPaths(lab.folder_of_next()),
            lab.settings(**settings),
        )
        self.process = multiprocessing.get_context("fork").Process(target=self._launch)
        self.process.start()

    def _launch(self):
        with contextlib.suppress(LaunchError, KeyboardInterrupt):
            launch(
                dsnb.Experiment(**self.settings),
                self.paths.dir,
                progress=False,
                worker="tests.workers.hanger",
            )

    def end(self, limit_s, *numbers):
        """Wait until the launch has ended and hosts are empty, each within a limit; return status and cause."""
        self.process.join(limit_s)
        assert not self.process.is_alive(), "the launch does not end"
        wait_until(lambda: not self.lab.left(*numbers), "hosts have no process of a run", limit_s)
        record = json_files.read_json(self.paths.result) or {}
        return record.get("status"), record.get("cause")

    def of_nodes(self, name):
        """Return what one column says of each host that was reached, where it says anything."""
        nodes = json_files.read_json(self.paths.nodes)["nodes"]
        return {row["host"]: row[name] for row in nodes if row[name]}
