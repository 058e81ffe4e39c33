"""Hostfiles in DeepSpeed's format, and the hosts and GPUs that a run uses of them.

    worker-1 slots=8               # a comment
    me@worker-2 slots=8 max_slots=8

A user name is for ssh, and what follows the slots is ignored, as in DeepSpeed. DeepSpeed refuses a
bare name; here its slots are unknown, so that `gpus` has to be a number. Names become arguments of
`ssh`, so only plain ones are accepted.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files

SLURM = "slurm"
"""Instead of a path: the nodes of the Slurm allocation that this process is part of."""
NO_JOB = "hostfile is 'slurm': this process is not in a Slurm job; use --slurm, or start it inside salloc"
SLOTS_IN_SLURM = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
)
"""Slurm's variables with the slots of a node, in order of preference."""
MAX_SLOTS = 1024
MAX_BYTES = 1_000_000
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_ENTRY = re.compile(
    rf"(?:(?P<user>{_NAME})@)?(?P<name>{_NAME})(?:\s+slots\s*=\s*(?P<slots>\d{{1,9}})(?:\s+[\w-]+\s*=\s*\S+)*)?"
)
_FILTER = re.compile(rf"\s*({_NAME})\s*(?::\s*(\d{{1,4}}(?:\s*,\s*\d{{1,4}})*)\s*)?")


@dataclass(frozen=True)
class Host:
    """One machine, and the indices of the GPUs (on CPUs: of the ranks) to use on it."""

    name: str
    devices: tuple[int, ...]
    user: str = ""
    """The user name for ssh, if the hostfile has one."""
    has_slots: bool = True
    """Whether the number of devices is known; otherwise there are `MAX_SLOTS`."""


def hosts(hostfile: str, include: str = "", exclude: str = "") -> tuple[Host, ...]:
    """Return the hosts of a hostfile (a path, or `slurm`) that DeepSpeed's filters leave.

    `worker-1@worker-2:0,2` names a whole host and two GPUs of another one.
    """
    available = _allocated() if hostfile == SLURM else read(hostfile)
    if include and exclude:
        raise SettingsError(
            f"include is {include!r} and exclude is {exclude!r}: give only one of them"
        )
    if not (include or exclude):
        return available
    which, text = ("include", include) if include else ("exclude", exclude)
    named = _filter(which, text, available)
    left = []
    for host in available:
        others = {*host.devices} - named[host.name]
        devices = tuple(sorted(named[host.name] if include else others))
        if devices:
            is_listed = bool(include) and devices != host.devices
            left.append(replace(host, devices=devices, has_slots=host.has_slots or is_listed))
    if not left:
        raise SettingsError(f"exclude is {exclude!r}: no host is left; exclude less")
    return tuple(left)


def read(path: str | Path) -> tuple[Host, ...]:
    """Read a hostfile; a SettingsError names every bad line at once."""
    hosts: dict[str, Host] = {}
    problems: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        where = f"hostfile {str(path)!r}, line {number}:"
        host = _host(entry)
        if host is None:
            problems.append(
                f"{where} {entry!r} is not a host: write 'NAME slots=NUMBER', with letters, digits, '.', '_' and '-' "
                f"in the name, and 1 to {MAX_SLOTS} slots"
            )
        elif host.name in hosts:
            problems.append(f"{where} {host.name!r} is listed twice: keep one line")
        else:
            hosts[host.name] = host
    if problems:
        raise SettingsError(problems[:20])
    if not hosts:
        raise SettingsError(
            f"hostfile {str(path)!r} names no host: write one per line, such as 'worker-1 slots=8'"
        )
    return tuple(hosts.values())


def _lines(path: str | Path) -> list[str]:
    try:
        # a named pipe would be waited for
        content = json_files.read_file(Path(path).expanduser(), MAX_BYTES)
        return content.decode("utf-8-sig").splitlines()  # some editors write a byte order mark
    except UnicodeDecodeError:
        reason = "it is not a text file"
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise SettingsError(f"hostfile is {str(path)!r}: it cannot be read ({reason}); check the path")


def _host(entry: str) -> Host | None:
    """Return the host of a line; None if the line names none."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return None
    slots = MAX_SLOTS if match["slots"] is None else int(match["slots"])
    if not 1 <= slots <= MAX_SLOTS:
        return None
    return Host(match["name"], tuple(range(slots)), match["user"] or "", match["slots"] is not None)


def total_slots(available: Sequence[Host]) -> int:
    """Return the number of slots of hosts; a SettingsError names one whose number is unknown."""
    bare = next((host.name for host in available if not host.has_slots), None)
    if bare:
        raise SettingsError(
            f"the hostfile gives no slots of {bare}; write '{bare} slots=8' there, or give a number"
        )
    return sum(len(host.devices) for host in available)


def _filter(which: str, text: str, available: Sequence[Host]) -> dict[str, set[int]]:
    """Return the GPUs that a filter names, by host; of a host that it does not name, none."""
    devices = {host.name: host.devices for host in available}
    named: dict[str, set[int]] = {name: set() for name in devices}
    for part in text.split("@"):
        match = _FILTER.fullmatch(part)
        name = match[1] if match else part.partition(":")[0].strip()
        if name not in devices:
            raise SettingsError(f"{which} is {text!r}: {name!r} is not in the hostfile")
        chosen = {*devices[name]}
        if match and match[2]:
            chosen = set(map(int, match[2].split(",")))
        if not match or not chosen <= {*devices[name]}:
            last = devices[name][-1]
            raise SettingsError(
                f"{which} is {text!r}: {name} has the slots 0 to {last}; write {name}:0,1"
            )
        named[name] |= chosen
    return named


def place(available: Sequence[Host], ranks: int, nodes: int = 1) -> tuple[Host, ...]:
    """Return the hosts of a run: the first ones, at least `nodes` and as few as possible, with equally many ranks each.

    Where no equal share fits, hosts are filled one after the other. Too few slots or hosts are a
    SettingsError.
    """
    for count in range(nodes, len(available) + 1):
        share, rest = divmod(ranks, count)
        able = [host for host in available if len(host.devices) >= share > 0]
        if not rest and len(able) >= count:
            return tuple(replace(host, devices=host.devices[:share]) for host in able[:count])
    chosen = []
    left = ranks
    for host in available:
        if left > 0:
            chosen.append(replace(host, devices=host.devices[:left]))
            left -= len(chosen[-1].devices)
    if left > 0 or len(chosen) < nodes:
        slots = sum(len(host.devices) for host in available)
        raise SettingsError(
            f"gpus is {ranks} and nodes is {nodes}: the hostfile leaves {len(available)} hosts with {slots} slots; "
            "use fewer, add hosts, or make gpus a multiple of nodes"
        )
    return tuple(chosen)


def in_allocation() -> bool:
    """Return whether this process is part of a Slurm allocation."""
    return bool(os.environ.get("SLURM_JOB_NODELIST"))


@contextlib.contextmanager
def outside_allocation() -> Iterator[None]:
    """Hide this process's Slurm allocation while jobs with separate allocations are planned."""
    nodes = os.environ.pop("SLURM_JOB_NODELIST", None)
    try:
        yield
    finally:
        if nodes is not None:
            os.environ["SLURM_JOB_NODELIST"] = nodes


def _allocated() -> tuple[Host, ...]:
    """Return the nodes of this process's Slurm allocation; a slot is a GPU, or a CPU on nodes without GPUs."""
    if not in_allocation():
        raise SettingsError(NO_JOB)
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SettingsError(
            f"hostfile is 'slurm': scontrol does not list the nodes of the job ({error})"
        ) from error
    slots = tuple(range(_slots(os.environ)))
    names = filter(re.compile(_NAME).fullmatch, done.stdout.split())
    return tuple(Host(name, slots) for name in names)


def _slots(variables: Mapping[str, str]) -> int:
    """Return the slots of a node from Slurm's variables, written as `4`, `h100:4` or `8(x2)`."""
    for name in SLOTS_IN_SLURM:
        match = re.search(r"(?:^|:)(\d{1,5})(?:\(x\d+\))?(?:,|$)", variables.get(name, ""))
        if match:
            return max(1, int(match[1]))
    return 1
