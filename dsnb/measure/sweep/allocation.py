"""The hosts of a sweep: the limits of each Slurm job, or sub-clusters, which are groups of the hosts of a hostfile.

Every experiment of a params file runs on every sub-cluster, as an ordinary run whose `include`
names the group.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.measure.sweep.params import Run, Sweep, load_sweep, read_with_overrides
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.settings.params_file import MAX_RUNS, read_params

OWN_OPTIONS = {
    "account", "array", "constraint", "error", "gpus-per-node", "job-name", "nodes", "open-mode", "output",
    "parsable", "partition", "requeue", "time", "wait", "wrap",
}  # fmt: skip
"""Options of sbatch that dsnb sets itself."""


@dataclass(frozen=True)
class Allocation:
    """The limits of one job; raises SettingsError with every invalid option."""

    nodes: int = 1
    gpus_per_node: int = 1
    """GPUs per node; on nodes without GPUs, ranks."""
    partition: str = ""
    account: str = ""
    time_min: int = 0
    """Time limit of a job in minutes; 0 for that of the partition."""
    constraint: str = ""
    extra_options: Mapping[str, str] = field(default_factory=dict)
    """Further options of `sbatch` without the dashes; the value is empty for flags."""

    def __post_init__(self) -> None:
        numbers = {"nodes": self.nodes, "gpus-per-node": self.gpus_per_node}
        numbers["time"] = self.time_min or 1
        problems = []
        for name, number in numbers.items():
            if number < 1:
                problems.append(f"--{name} is {number}: give a whole number of at least 1")
        for name, value in self.extra_options.items():
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                problems.append(
                    f"--sbatch-option is {f'{name}={value}'[:80]!r}: write it like 'mem=200G' or 'exclusive'"
                )
            elif name in OWN_OPTIONS:
                problems.append(
                    f"--sbatch-option is {name!r}: dsnb sets that itself; use the options of `dsnb sweep`"
                )
        if problems:
            raise SettingsError(problems)

    def place(self, experiment: Experiment) -> Experiment:
        """Return the experiment on as few nodes as possible."""
        nodes = max(experiment.nodes, math.ceil(experiment.gpus / self.gpus_per_node))
        if nodes > self.nodes:
            raise SettingsError(
                f"gpus is {experiment.gpus} and nodes is {experiment.nodes}: a job may have {self.nodes} nodes with "
                f"{self.gpus_per_node} each; raise --nodes or --gpus-per-node"
            )
        if experiment.gpus % nodes:
            raise SettingsError(
                f"gpus is {experiment.gpus}: {nodes} nodes cannot share that equally; use a multiple of {nodes}"
            )
        return experiment.model_copy(update={"nodes": nodes, "hostfile": hostfile.SLURM})

    def options(self, experiment: Experiment) -> dict[str, str]:
        """Return the options of `sbatch` for the job of a run; flags have an empty value."""
        share = "gpus-per-node"
        if experiment.device == "cpu":
            share = "cpus-per-task"
        asked = {
            "nodes": str(experiment.nodes),
            "ntasks-per-node": "1",
            share: str(experiment.gpus // experiment.nodes),
            "partition": self.partition,
            "account": self.account,
            "constraint": self.constraint,
            "time": str(self.time_min or ""),
        }
        return {name: value for name, value in asked.items() if value} | dict(self.extra_options)


def load(
    path: str | Path,
    allocation: Allocation,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
) -> Sweep:
    """Read a params file and list its runs, as `dsnb.load_sweep` does, for jobs of this allocation.

    `gpus: auto` is all GPUs of the allocation; whether a node can run the settings is checked on
    the node.
    """
    changes = {**(overrides or {}), "hostfile": hostfile.SLURM}
    auto_gpus = allocation.nodes * allocation.gpus_per_node
    with hostfile.outside_allocation():
        return load_sweep(path, changes, only, output, auto_gpus=auto_gpus, adapt=allocation.place)


def sizes(text: str) -> list[int]:
    """Parse group sizes, such as `2` or `1,2,4`."""
    words = [word.strip() for word in text.split(",")]
    are_numbers = all(re.fullmatch("0*[1-9][0-9]{0,4}", word) for word in words)
    if not are_numbers or len(set(words)) < len(words):
        raise SettingsError(
            f"sub-cluster is {text[:80]!r}: give numbers of hosts, each once, for example 2 or 1,2,4"
        )
    return [int(word) for word in words]


def load_groups(
    path: str | Path,
    group_sizes: Sequence[int],
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
) -> tuple[Sweep, list[str]]:
    """Read a params file and list its runs on every group of hosts, as `dsnb.load_sweep` does for one machine.

    Returns the sweep, and a note for every group size with hosts that are in no group.

    `gpus` and `nodes` of the groups replace those of the file. Sizes are executed one after the
    other, groups of one size in parallel. Runs of one experiment are numbered over the groups,
    repeats outermost.
    """
    changes = dict(overrides or {})
    changes.pop("gpus", None)
    changes.pop("nodes", None)
    where = read_params(path).defaults | changes
    file = str(where.get("hostfile") or "")
    if not file:
        raise SettingsError("sub-cluster needs hosts: name them with --hostfile")
    chosen = (str(where.get(name) or "") for name in ("include", "exclude"))
    hosts = hostfile.hosts(file, *chosen)
    all_devices = {host.name: host.devices for host in hostfile.hosts(file)}
    sweeps: list[Sweep] = []
    runs: list[Run] = []
    notes = []
    for stage, size in enumerate(group_sizes):
        if not 1 <= size <= len(hosts):
            raise SettingsError(
                f"sub-cluster is {size}: there are {len(hosts)} hosts; give 1 to {len(hosts)}"
            )
        used = len(hosts) - len(hosts) % size
        if used < len(hosts):
            unused = ", ".join(host.name for host in hosts[used:])
            notes.append(f"sub-clusters of {size}: unused hosts: {unused}")
        by_gpus: dict[int, list[str]] = {}  # the number of GPUs is part of an experiment
        for at in range(0, used, size):
            group = hosts[at : at + size]
            lane = "@".join(_filter(host, all_devices[host.name]) for host in group)
            by_gpus.setdefault(hostfile.total_slots(group), []).append(lane)
        for gpus, lanes in by_gpus.items():
            of_group = {**changes, "include": lanes[0], "exclude": "", "nodes": size, "gpus": gpus}
            sweep = load_sweep(path, of_group, only, output)
            sweeps.append(sweep)
            for run, (place, lane) in itertools.product(sweep.runs, enumerate(lanes, start=1)):
                repeat = (run.repeat - 1) * len(lanes) + place
                changed = replace(
                    run,
                    experiment=run.experiment.model_copy(update={"include": lane}),
                    repeat=repeat,
                    paths=sweep.paths.run(run.name, repeat),
                    lane=lane,
                    stage=stage,
                )
                runs.append(changed)
    if len(runs) > MAX_RUNS:
        raise SettingsError(
            f"sub-cluster: {len(runs):,} runs: at most {MAX_RUNS:,} are allowed; split the sweep"
        )
    # The sweep is repeated with these params: on all groups, not on the first one.
    params = read_with_overrides(path, changes).model_dump(exclude_defaults=True)
    return replace(sweeps[0], runs=tuple(runs), params=params), notes


def _filter(host: Host, devices: tuple[int, ...]) -> str:
    """Return a host as an `include` filter, with its GPUs if it is used in part."""
    if host.devices == devices:
        return host.name
    return f"{host.name}:{','.join(map(str, host.devices))}"
