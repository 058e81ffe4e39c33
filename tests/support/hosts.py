"""Real hosts on one machine: a network, PID, mount, UTS and IPC namespace each, with a real sshd.

    with cluster(2, folder=tmp_path) as hosts:
        with hosts.entered():                          # this thread, and what it starts, is where launchers are
            launch(experiment, ...)
        hosts.cut(2)

All hosts hang on a bridge in a further network namespace, the switch, which is where launchers run; `ssh mnhost1` works
there, and nothing but ssh knows the names. The machine's own network is never touched. Hosts share the machine's file
system, so every folder is shared storage unless `mount_tmpfs` hides it. All is gone when the block ends, and when the
process that held it dies. Hosts are named by number, from 1, or by name.
"""

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
import warnings
from pathlib import Path

from tests.support import host_init, namespaces
from tests.support.namespaces import HOST_ENV, OF_A_HOST, OF_A_SWITCH, POWER, SYSTEM_PATH, WAIT_S, Holder, refusal, tool
from tests.support.waiting import wait_until

NETWORK = "10.77.0"
INTERFACE = "eth0"
SERVER = """\
AddressFamily inet
PidFile none
HostKey "{key}"
AuthorizedKeysFile "{key}.pub"
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitUserRC no
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


def no_hosts(reason):
    """Fail where hosts must be had, else skip with one loud line."""
    import pytest

    if os.environ.get("DSNB_REQUIRE_HOSTS"):
        pytest.fail(f"no test hosts: {reason}")
    warnings.warn(f"NO TEST ON SEVERAL HOSTS WAS RUN: {reason}", stacklevel=1)
    pytest.skip(f"no test hosts: {reason}")


@contextlib.contextmanager
def cluster(count, slots=2, folder=None):
    """Boot `count` hosts; end them, and whatever is still in the switch, at the end of the block."""
    if reason := refusal():
        no_hosts(reason)
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dsnb-hosts-"))
        hosts = Cluster(Path(folder).resolve(), count, slots)
        stack.callback(hosts.close)
        hosts.open()
        yield hosts


class Cluster:
    """Some hosts and their switch. Made by `cluster`."""

    def __init__(self, folder, count, slots):
        self.addresses = {f"mnhost{i}": f"{NETWORK}.{i}" for i in range(1, count + 1)}
        self.names = list(self.addresses)
        self.interface, self.folder, self.hostfile = INTERFACE, folder, folder / "hostfile"
        self.env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self.switch, self._hosts, self._owner = None, {}, os.pidfd_open(os.getpid())
        self._slots = slots

    def open(self):
        """Write the files, make the switch, and boot all hosts at once."""
        self._write_ssh_files()
        self.hostfile.write_text("".join(f"{name} slots={self._slots}\n" for name in self.names))
        known = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        self.switch = Holder(OF_A_SWITCH, self._owner, self.folder / "switch.log")
        self.switch.wait()
        bridge = [f"addr add {NETWORK}.254/24 dev br0", "link set br0 up"]
        self.switch.ip("link set lo up", "link add br0 type bridge", *bridge)
        self.boot(*self.names)

    def close(self):
        """End all hosts, all that is in the switch but this process, and the switch."""
        for host in self._hosts.values():
            host.kill()
        if self.switch:
            if self.switch.alive and self.switch.pid:
                host_init.clear(os.readlink(self.switch.network), but=[self.switch.pid])
            self.switch.kill()
        os.close(self._owner)

    # -- what a launcher needs

    def inside(self, argv, **popen):
        """Start a process in the switch, as a launcher: the process itself, so that it can be killed."""
        with namespaces.entered(self.switch.network):
            return subprocess.Popen([*map(str, argv)], **{"env": self.env, **popen})

    @contextlib.contextmanager
    def entered(self):
        """Move this thread, and what it starts from now on (threads too), into the switch, with its `ssh` on PATH."""
        path = os.environ["PATH"]
        with namespaces.entered(self.switch.network):
            os.environ["PATH"] = self.env["PATH"]
            try:
                yield self
            finally:
                os.environ["PATH"] = path

    # -- what befalls hosts

    def boot(self, *which):
        """Switch hosts on, with a new sshd: none of their processes is there, nor what was mounted."""
        names = [self._name(one) for one in which]
        for name in set(names) & set(self._hosts):
            self.kill(name)
        for name in names:
            own = [name, self.folder / "hosts"]
            self._hosts[name] = Holder([*OF_A_HOST, *POWER], self._owner, self.folder / f"{name}.log", *own)
        for name in names:
            self._hosts[name].wait()
        self._plug(names)
        self.start_sshd(*names)

    def kill(self, which):
        """Switch a host off: its peers hear nothing."""
        with contextlib.suppress(RuntimeError):  # the kernel has removed it already, with the host
            self.switch.ip(f"link del {self._name(which)}")
        self._host(which).kill()

    def cut(self, which):
        """Take a host's link down."""
        self.switch.ip(f"link set {self._name(which)} down")

    def heal(self, which):
        """Take a host's link up again."""
        self.switch.ip(f"link set {self._name(which)} up")

    def kill_sshd(self, which):
        """Kill a host's sshd with all its connections."""

        def gone():
            sshd = [pid for pid, name, _ in self._host(which).members() if name.startswith("sshd")]
            for pid in sshd:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not sshd and not self._listens(which)

        wait_until(gone, f"no sshd on {self._name(which)}")

    def start_sshd(self, *which):
        """Start the sshd of hosts, and wait until it listens."""
        names = [self._name(one) for one in which]
        names = [name for name in names if not self._listens(name)]
        commands = [[*self.prefix(name), tool("sshd"), "-f", self.folder / "sshd_config"] for name in names]
        starts = [subprocess.Popen(command, env=HOST_ENV, stdin=subprocess.DEVNULL) for command in commands]
        for name, start in zip(names, starts, strict=True):
            if start.wait(WAIT_S):
                raise RuntimeError(f"no sshd on {name}: {self._host(name).log.read_text().strip()}")
            wait_until(functools.partial(self._listens, name), f"{name} listens")

    def mount_tmpfs(self, which, path, size="64m"):
        """Give a host storage of its own, of a size, in place of a shared folder."""
        self._must(which, "mkdir", "-p", path)
        self._must(which, "mount", "-t", "tmpfs", "-o", f"size={size}", "none", path)

    # -- what is on hosts

    def is_up(self, which):
        return self._host(which).alive

    def prefix(self, which):
        """Give the words that, put before a command, make it run on a host, not by ssh; killed with the process."""
        enter = [tool("nsenter"), "--target", str(self._host(which).pid), *OF_A_HOST, "--"]
        return [*enter, "setpriv", "--pdeathsig", "KILL", "--"]

    def run_on(self, which, argv, **options):
        """Run a command on a host to its end, not by ssh, in a fresh environment."""
        options = {"env": HOST_ENV, "capture_output": True, "text": True, "timeout": WAIT_S, "check": False, **options}
        return subprocess.run([*self.prefix(which), *map(str, argv)], **options)

    def processes(self, which):
        """Give the machine's number and the command line of each process on a host but the first one and sshd."""
        host = self._host(which)
        return [(pid, line) for pid, name, line in host.members() if not name.startswith("sshd")] if host.alive else []

    # -- inner parts

    def _name(self, which):
        if which not in self.names and which not in range(1, len(self.names) + 1):
            raise ValueError(f"there is no host {which!r}: name one of {', '.join(self.names)}, or its number")
        return which if which in self.names else self.names[which - 1]

    def _host(self, which):
        return self._hosts[self._name(which)]

    def _must(self, which, *argv):
        done = self.run_on(which, argv)
        if done.returncode:
            raise RuntimeError(f"{self._name(which)}: {done.stderr.strip()}")

    def _plug(self, names):
        """Connect hosts to the switch; a host keeps its hardware address, or its peers' caches would be wrong."""
        lines = []
        for name in names:
            hardware = f"02:77:00:00:00:{self.names.index(name) + 1:02x}"
            peer = f"peer name {INTERFACE} address {hardware} netns {self._host(name).pid}"
            lines += [f"link add {name} type veth {peer}", f"link set {name} master br0 up"]
        self.switch.ip(*lines)
        for name in names:
            address = f"addr add {self.addresses[name]}/24 dev {INTERFACE}"
            self._host(name).ip("link set lo up", address, f"link set {INTERFACE} up")

    def _write_ssh_files(self):
        """Write all that ssh and sshd read, so that nothing of the machine's own is read: one key serves everybody."""
        key, binaries = self.folder / "key", self.folder / "bin"
        binaries.mkdir(parents=True)
        subprocess.run([tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self.folder / "sshd_config").write_text(SERVER.format(key=key, path=SYSTEM_PATH))
        named = "".join(f"Host {name}\n  HostName {address}\n" for name, address in self.addresses.items())
        (self.folder / "ssh_config").write_text(named + CLIENT.format(key=key))
        (binaries / "ssh").write_text(f"#!/bin/sh\nexec {tool('ssh')} -F '{self.folder / 'ssh_config'}' \"$@\"\n")
        (binaries / "ssh").chmod(0o755)

    def _listens(self, which):
        rows = Path(f"/proc/{self._host(which).pid}/net/tcp").read_text().splitlines()[1:]
        return any(row.split()[1].endswith(":0016") and row.split()[3] == "0A" for row in rows)
