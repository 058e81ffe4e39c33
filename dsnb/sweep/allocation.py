"""What a Slurm job may use: nodes, GPUs, partition, account and time."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsnb.errors import SettingsError
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.sweep.params import Sweep, load_sweep

OWN_OPTIONS = {"array", "error", "job-name", "open-mode", "output", "parsable", "requeue", "wait", "wrap"} | {
    *("nodes", "gpus-per-node", "partition", "account", "constraint", "time")
}
"""Options of sbatch that dsnb sets itself, to follow the job, or has options of its own for."""


@dataclass(frozen=True)
class Allocation:
    """The most that one job may use.

    Raises
    ------
    SettingsError
        With every invalid option.
    """

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
        numbers = {"nodes": (self.nodes, 1), "gpus-per-node": (self.gpus_per_node, 1), "time": (self.time_min, 0)}
        problems = [
            f"--{name} is {number}: give a whole number of at least {max(1, least)}"
            for name, (number, least) in numbers.items()
            if number < least
        ]
        for name, value in self.extra_options.items():
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                problems.append(
                    f"--sbatch-option is {f'{name}={value}'[:80]!r}: write it like 'mem=200G' or 'exclusive'"
                )
            elif name in OWN_OPTIONS:
                problems.append(f"--sbatch-option is {name!r}: dsnb sets that itself; use the options of `dsnb sweep`")
        if problems:
            raise SettingsError(problems)

    def placeholder_hosts(self) -> tuple[Host, ...]:
        """Return placeholders for the hosts of a job with all nodes, whose names are not known yet."""
        return tuple(Host(f"node-{number}", tuple(range(self.gpus_per_node))) for number in range(self.nodes))

    def place(self, experiment: Experiment) -> Experiment:
        """Return the experiment on as few nodes as possible.

        Raises
        ------
        SettingsError
            If there are too few nodes, or the nodes cannot share the ranks equally.
        """
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

    def options(self, nodes: int, ranks_per_node: int, device: str) -> dict[str, str]:
        """Return the options of `sbatch` for a job; those with an empty value are flags."""
        share = "cpus-per-task" if device == "cpu" else "gpus-per-node"
        asked = {"nodes": str(nodes), "ntasks-per-node": "1", share: str(ranks_per_node)}
        named = {"partition": self.partition, "account": self.account, "constraint": self.constraint}
        asked |= {name: value for name, value in named.items() if value}
        asked |= {"time": str(self.time_min)} if self.time_min else {}
        return {**asked, **self.extra_options}

    def options_of_run(self, experiment: Experiment) -> dict[str, str]:
        """Return the options of `sbatch` for the job of one run."""
        return self.options(experiment.nodes, experiment.gpus // experiment.nodes, experiment.device)


def load(
    path: str | Path,
    allocation: Allocation,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
) -> Sweep:
    """Read a params file and list its runs, as `dsnb.load_sweep` does, for jobs of this allocation.

    `gpus: auto` is all GPUs of the allocation; whether a node can run the settings is checked on the node.

    Raises
    ------
    SettingsError
        With every problem of the file and of every run at once.
    """
    changes = {**(overrides or {}), "hostfile": hostfile.SLURM}
    auto_gpus = allocation.nodes * allocation.gpus_per_node
    with hostfile.outside_allocation():
        return load_sweep(path, changes, only, output, auto_gpus=auto_gpus, adapt=allocation.place)
