"""Namespaces that live as long as the process that asked for them: what test hosts are made of."""

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import host_init

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_ENV = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": "/root", "USER": "root", "LOGNAME": "root"}
TOOLS = ("ip", "unshare", "nsenter", "sshd", "ssh", "ssh-keygen")
OF_A_HOST = ("--net", "--pid", "--mount", "--uts", "--ipc")
POWER = ("--fork", "--kill-child")  # the first process of a PID namespace is a child, which dies with its parent
OF_A_SWITCH = ("--net",)
NEW_NET = 0x40000000  # CLONE_NEWNET
WAIT_S = 120.0
_libc = ctypes.CDLL(None, use_errno=True)


def tool(name):
    """Find a program where root finds it."""
    return shutil.which(name, path=f"{os.environ['PATH']}:{SYSTEM_PATH}") or name


def missing():
    """Name the programs that are not installed."""
    return [name for name in TOOLS if not os.path.isabs(tool(name))]


@functools.cache
def refusal():
    """Say why there can be no hosts here: nothing if there can."""
    if os.geteuid():
        return "only root makes namespaces"
    if missing():
        return f"not installed: {', '.join(missing())} (Debian's packages iproute2, openssh-server and util-linux)"
    tried = "mount -t sysfs none /sys && ip link add b0 type bridge && ip link add v0 type veth peer name v1"
    command = [tool("unshare"), *OF_A_HOST, "--fork", "sh", "-c", tried]
    done = subprocess.run(command, env=HOST_ENV, capture_output=True, text=True, check=False)
    return f"namespaces are refused: {done.stderr.strip()}" if done.returncode else ""


class Holder:
    """Namespaces, with the process that holds them."""

    def __init__(self, namespaces, owner, log, *arguments):
        command = [tool("unshare"), *namespaces, sys.executable, "-I", "-S"]
        command += [host_init.__file__, str(owner), os.readlink("/proc/self/ns/net"), *map(str, arguments)]
        self.log, self.pid = log, 0
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                command,
                pass_fds=[owner],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # the terminal's Ctrl-C is for the tests
            )

    def wait(self):
        """Wait until it is there."""
        said = self.process.stdout.readline()
        self.process.stdout.close()
        if not said:
            raise RuntimeError(f"no host: {self.log.read_text(errors='replace').strip()}")
        self.pid = int(said)

    @property
    def alive(self):
        return self.process.poll() is None

    @property
    def network(self):
        """Its network namespace, as a file."""
        return f"/proc/{self.pid}/ns/net"

    def run(self, *argv, **options):
        """Run a command in its network namespace."""
        command = [tool("nsenter"), f"--net={self.network}", "--", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    def ip(self, *lines):
        """Run lines of `ip` in its network namespace."""
        done = self.run(tool("ip"), "-batch", "-", input="\n".join(lines))
        if done.returncode:
            raise RuntimeError(f"ip: {done.stderr.strip()}")

    def kill(self):
        """End it, and wait until every process in its PID namespace has ended."""
        if self.alive:
            os.kill(self.pid or self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)
        self.process.stdout.close()

    def members(self):
        """Give the number, name and command line of each process in its PID namespace, its first one left out."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):  # it has ended
                if pid != self.pid and os.readlink(f"/proc/{pid}/ns/pid") == own:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line:  # a zombie has none
                        yield pid, Path(f"/proc/{pid}/comm").read_text().strip(), line.strip()


@contextlib.contextmanager
def entered(network):
    """Move this thread, and what it starts from now on, into a network namespace, and this thread out again."""
    with open("/proc/thread-self/ns/net") as outside, open(network) as inside:
        _enter(inside)
        try:
            yield
        finally:
            _enter(outside)


def _enter(namespace):
    """Move this thread into a network namespace; Python 3.11 has no `os.setns`."""
    if _libc.setns(namespace.fileno(), NEW_NET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), namespace.name)
