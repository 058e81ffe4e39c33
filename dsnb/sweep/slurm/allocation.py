"""What is asked of Slurm: nodes and GPUs, for whom and for how long; and the script of a job that asks for it."""

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsnb.errors import SettingsError
from dsnb.files import plain_text
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.sweep.params import Sweep, load_sweep

RESERVED_OPTIONS = {
    "array",
    "error",
    "job-name",
    "no-requeue",
    "open-mode",
    "output",
    "parsable",
    "requeue",
    "wait",
    "wrap",
}
"""Options that would break how a job is followed."""
NAMED_OPTIONS = {"nodes", "gpus-per-node", "partition", "account", "constraint", "time"}
"""Options that have a name of their own."""
PATTERNS = {
    "partition": (r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,199}", "gpu"),
    "account": (r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}", "physics"),
    "constraint": (r"[A-Za-z0-9_(\[][A-Za-z0-9_.:=,&|*()\[\]-]{0,199}", "h100&ib"),
}
SERVERS = ("DSNB_FORK_SERVER", "DSNB_NODE_SERVERS")
VARIABLES = {"time": "SBATCH_TIMELIMIT"}
"""Variables that win over the script's lines, where they are not named as the option is."""


@dataclass(frozen=True)
class Allocation:
    """The most that one job may take.

    Raises
    ------
    SettingsError
        With everything that `sbatch` should not be told.
    """

    nodes: int = 1
    gpus_per_node: int = 1
    """On nodes without GPUs: ranks."""
    partition: str = ""
    account: str = ""
    time_min: int = 0
    """Minutes after which Slurm ends a job; 0 for what the partition says."""
    constraint: str = ""
    extra_options: Mapping[str, str] = field(default_factory=dict)
    """More of `sbatch`'s options, without the dashes; an empty value for one that has none."""

    def __post_init__(self) -> None:
        problems = [
            f"--{name} is {getattr(self, name)[:80]!r}: write it like {example!r}"
            for name, (form, example) in PATTERNS.items()
            if getattr(self, name) and not re.fullmatch(form, getattr(self, name))
        ]
        numbers = {"nodes": (self.nodes, 1), "gpus-per-node": (self.gpus_per_node, 1), "time": (self.time_min, 0)}
        for name, (number, least) in numbers.items():
            if not least <= number < 10**6:
                problems.append(f"--{name} is {number}: give a whole number from {max(1, least)} to 999999")
        for name, value in self.extra_options.items():
            if not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", name) or not value.isprintable():
                problems.append(
                    f"--sbatch-option is {f'{name}={value}'[:80]!r}: write it like 'mem=200G' or 'exclusive'"
                )
            elif name in RESERVED_OPTIONS:
                problems.append(f"--sbatch-option is {name!r}: dsnb sets that itself; leave it out")
            elif name in NAMED_OPTIONS:
                problems.append(f"--sbatch-option is {name!r}: give it as --{name}")
        if problems:
            raise SettingsError(problems)

    def placeholder_hosts(self) -> tuple[Host, ...]:
        """Give hosts like those that a job of all nodes will get, whose names only Slurm will know."""
        return tuple(Host(f"node-{number}", tuple(range(self.gpus_per_node))) for number in range(self.nodes))

    def place(self, experiment: Experiment) -> Experiment:
        """Give an experiment its nodes: as few as have room.

        Raises
        ------
        SettingsError
            If there is no room for it, or no equal share for its nodes.
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
        """Give what a job asks `sbatch` for."""
        share = "cpus-per-task" if device == "cpu" else "gpus-per-node"
        asked = {"nodes": str(nodes), "ntasks-per-node": "1", share: str(ranks_per_node)}
        named = {"partition": self.partition, "account": self.account, "constraint": self.constraint}
        asked |= {name: value for name, value in named.items() if value}
        asked |= {"time": str(self.time_min)} if self.time_min else {}
        return {**asked, **self.extra_options}


def load(
    path: str | Path,
    allocation: Allocation,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
) -> Sweep:
    """Read a params file and list its runs, as `dsnb.load_sweep` does, for jobs of this allocation.

    `gpus: auto` is all GPUs of the allocation; whether a node can run a setting is found out on the node.

    Raises
    ------
    SettingsError
        With every problem of the file and of every run at once.
    """
    changes = {**(overrides or {}), "hostfile": hostfile.SLURM}
    auto_values = {"gpus": allocation.nodes * allocation.gpus_per_node}
    with hostfile.outside_allocation():
        return load_sweep(path, changes, only, output, auto_values=auto_values, adapt=allocation.place)


def is_name(text: str) -> bool:
    """Say whether a text can be the name of dsnb's jobs."""
    return bool(re.fullmatch(r"dsnb-[A-Za-z0-9._-]{1,120}", text))


def script(name: str, log: Path, options: Mapping[str, str], words: Sequence[str]) -> str:
    """Write the script of a job that runs `words`.

    Raises
    ------
    SettingsError
        If something in it would be a line of its own.
    """
    if odd := next((one for one in (name, str(log), *options.values(), *words) if not plain_text.is_name(one)), None):
        raise SettingsError(f"a job's script cannot hold {ascii(odd)[:200]}: leave out its control characters")
    # A requeued job would start a run anew behind our back; a node's failure is to be told.
    lines = {"job-name": name, "output": str(log).replace("%", "%%"), "open-mode": "truncate", "no-requeue": ""}
    asked = [f"--{key}={value}" if value else f"--{key}" for key, value in {**lines, **options}.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(option)}" for option in asked),
            "# srun gives its steps one CPU each unless it is told.",
            'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
            f"exec {shlex.join(words)}",
            "",
        ]
    )


def environment(options: Mapping[str, str]) -> dict[str, str]:
    """Give the variables for `sbatch`, which hands them on to the job.

    Without those that would win over the script's lines, those of an allocation in which this process may be, and the
    fork servers of this machine.
    """
    ours = {VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}") for name in {*options, *RESERVED_OPTIONS}}
    keep = {"SLURM_CONF", "SLURM_CLUSTERS"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ours and (not name.startswith(("SLURM_", *SERVERS)) or name in keep)
    }
