"""Sub-clusters: the hosts of a hostfile split into groups, and every experiment of a params file on every group.

A run on a group is an ordinary run; its `include` names the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnb.errors import NoMatchError, SettingsError
from dsnb.settings import hostfile
from dsnb.settings.hostfile import Host
from dsnb.settings.params_file import MAX_RUNS, read_params
from dsnb.sweep.params import Run, Sweep, content, load_sweep, read_with_overrides


def sizes(text: str) -> list[int]:
    """Parse group sizes, such as `2` or `1,2,4`.

    Raises
    ------
    SettingsError
        If it is not a list of whole numbers, each once.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 6 and int(word) for word in words) or len(set(words)) < len(words):
        raise SettingsError(f"sub-cluster is {text[:80]!r}: give numbers of hosts, each once, for example 2 or 1,2,4")
    return [int(word) for word in words]


def load(
    path: str | Path,
    group_sizes: Sequence[int],
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
    hosts: Sequence[Host] | None = None,
) -> tuple[Sweep, list[str]]:
    """Read a params file and list its runs on every group of hosts, as `dsnb.load_sweep` does for one machine.

    Returns the sweep, and a note for every group size with hosts that are in no group.

    `gpus` and `nodes` of the groups replace those of the file. Sizes are executed one after the other, groups of one
    size in parallel. Runs of one experiment are numbered over the groups, repeats outermost.

    Parameters
    ----------
    hosts
        Placeholders for the hosts of a future Slurm job: the runs then have a number of hosts, but no names.

    Raises
    ------
    SettingsError
        With every problem of the file and of every run at once.
    """
    changes = {key: value for key, value in (overrides or {}).items() if key not in {"gpus", "nodes"}}
    if hosts:
        with hostfile.outside_allocation():
            changes["hostfile"] = hostfile.SLURM
            sweep, _ = _on_groups(hosts, hosts, group_sizes, path, changes, only, output)
        return replace(sweep, runs=tuple(replace(run, lane="") for run in sweep.runs)), []
    where = {**read_params(path).defaults, **changes}
    file, include, exclude = (str(where.get(key) or "") for key in ("hostfile", "include", "exclude"))
    if not file:
        raise SettingsError("sub-cluster needs hosts: name them with --hostfile")
    chosen, whole = hostfile.hosts(file, include, exclude), hostfile.hosts(file)
    sweep, notes = _on_groups(chosen, whole, group_sizes, path, changes, only, output)
    # The sweep is started again with these params: on all groups, not on the first.
    return replace(sweep, params=content(read_with_overrides(path, changes))), notes


def _on_groups(
    hosts: Sequence[Host],
    whole: Sequence[Host],
    group_sizes: Sequence[int],
    path: str | Path,
    changes: Mapping[str, Any],
    only: str | None,
    output: str | Path | None,
) -> tuple[Sweep, list[str]]:
    """Return the runs of all groups, and notes about unused hosts; `whole` are the hosts with all of their GPUs."""
    devices = {host.name: host.devices for host in whole}
    sweeps: list[Sweep] = []
    runs: list[Run] = []
    notes = []
    no_match: NoMatchError | None = None
    for stage, size in enumerate(group_sizes):
        if not 1 <= size <= len(hosts):
            raise SettingsError(f"sub-cluster is {size}: there are {len(hosts)} hosts; give 1 to {len(hosts)}")
        used = len(hosts) - len(hosts) % size
        if rest := hosts[used:]:
            notes.append(f"sub-clusters of {size}: unused hosts: {', '.join(host.name for host in rest)}")
        by_gpus: dict[int, list[str]] = {}  # their number is part of the experiment
        for group in (hosts[at : at + size] for at in range(0, used, size)):
            lane = "@".join(_filter(host, devices[host.name]) for host in group)
            by_gpus.setdefault(sum(len(host.devices) for host in group), []).append(lane)
        for gpus, lanes in by_gpus.items():
            of_group = {**changes, "include": lanes[0], "exclude": "", "nodes": size, "gpus": gpus}
            try:
                sweeps.append(load_sweep(path, of_group, only, output))
            except NoMatchError as error:  # experiment names differ between group sizes
                no_match = error
                continue
            runs += [_on_group(sweeps[-1], run, lanes, lane, stage) for run in sweeps[-1].runs for lane in lanes]
    if no_match and not sweeps:
        raise no_match
    if len(runs) > MAX_RUNS:
        raise SettingsError(f"sub-cluster: {len(runs):,} runs: at most {MAX_RUNS:,} are allowed; split the sweep")
    return replace(sweeps[0], runs=tuple(runs)), notes


def _on_group(sweep: Sweep, run: Run, lanes: list[str], lane: str, stage: int) -> Run:
    """Return a run as it is made on one of the lanes."""
    number = (run.repeat - 1) * len(lanes) + lanes.index(lane) + 1
    experiment = run.experiment.model_copy(update={"include": lane})
    paths = sweep.paths.run(run.name, number)
    return replace(run, experiment=experiment, repeat=number, paths=paths, lane=lane, stage=stage)


def _filter(host: Host, devices: tuple[int, ...]) -> str:
    """Return a host as an `include` filter, with its GPUs if it is used in part."""
    return host.name if host.devices == devices else f"{host.name}:{','.join(map(str, host.devices))}"
