"""The first process of a test host, and the one that holds a test switch: see `tests.support.hosts`.

It does nothing but wait for its owner's end, and then ends itself: a host's PID namespace ends with its first process,
so nothing of it is left, however the owner died. A switch has no PID namespace, so its holder ends what is in it.
This file runs with the standard library alone, and imports little of it: a host is up in a tenth of a second.

    host_init.py OWNER MACHINE                     # a switch
    host_init.py OWNER MACHINE NAME HOSTS_FILE     # a host

OWNER is an open pidfd, MACHINE the network namespace in which nothing may ever be done.
"""

import ctypes
import os
import select
import signal
import socket
import sys

BIND, MOVE, RECURSIVE = 0x1000, 0x2000, 0x4000  # MS_BIND, MS_MOVE, MS_REC
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind="none", flags=0):
    """Mount, or say what could not be."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), target)


def furnish(name, hosts_file):
    """Give a host what it does not share with the others: its name, /proc, /sys, /run, /dev/shm, /etc/hosts, ..."""
    socket.sethostname(name)
    mount("none", "/proc", "proc")
    mount("none", "/run", "tmpfs")
    os.makedirs("/run/sshd", mode=0o755)
    os.makedirs("/run/cgroup")
    mount("/sys/fs/cgroup", "/run/cgroup", flags=BIND | RECURSIVE)
    mount("none", "/sys", "sysfs")  # shows this host's network interfaces instead of the machine's
    mount("/run/cgroup", "/sys/fs/cgroup", flags=MOVE)
    mount("none", "/dev/shm", "tmpfs")
    mount(hosts_file, "/etc/hosts", flags=BIND)
    for settings in map(os.path.expanduser, ("~/.bashrc", "~/.zshenv")):  # which are this machine's user's own
        if os.path.exists(settings):
            mount("/dev/null", settings, flags=BIND)


def members(namespace, but=()):
    """Give the processes that are in a network namespace, without this one and some others."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            inside = os.readlink(f"/proc/{pid}/ns/net") == namespace
        except OSError:  # it has ended
            inside = False
        if inside and pid not in {os.getpid(), *but}:
            found.append(pid)
    return found


def clear(namespace, but=()):
    """Kill what is in a network namespace, until nothing else is."""
    while pids := members(namespace, but):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        select.select([], [], [], 0.01)


def main(owner, machine, *host):
    """Say which process this is to the owner, wait for the owner's end, and leave nothing."""
    pid = os.readlink("/proc/self")  # before a host has its own /proc: the number by which the owner knows it
    own = os.readlink("/proc/self/ns/net")
    if own == machine:
        sys.exit("this is the machine's own network namespace")
    if host:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody else reaps what is orphaned in a host
        furnish(*host)
    print(pid, flush=True)
    select.select([int(owner)], [], [])
    if not host:
        clear(own)


if __name__ == "__main__":
    main(*sys.argv[1:])
