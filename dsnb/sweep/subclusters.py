"""Sub-clusters: the hosts of a hostfile split into groups, and every experiment of a params file on every group.

A run on a group is an ordinary run; its `include` names the group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnb.errors import NoMatchError, SettingsError
from dsnb.settings import hostfile
from dsnb.settings.grid import MAX_RUNS
from dsnb.settings.hostfile import Host
from dsnb.settings.params_file import read_params
from dsnb.sweep.params import Run, Sweep, content, load_sweep, read_with_overrides

Group = tuple[Host, ...]


def split(hosts: Sequence[Host], size: int) -> tuple[tuple[Group, ...], tuple[Host, ...]]:
    """Split hosts into disjoint groups of neighbours; return the groups and the unused hosts.

    Raises
    ------
    SettingsError
        If there are too few hosts for one group.
    """
    if not 1 <= size <= len(hosts):
        raise SettingsError(f"sub-cluster is {size}: there are {len(hosts)} hosts; give 1 to {len(hosts)}")
    whole = len(hosts) - len(hosts) % size
    return tuple(tuple(hosts[at : at + size]) for at in range(0, whole, size)), tuple(hosts[whole:])


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
            sweep, _ = _divide(hosts, hosts, group_sizes, lambda group: load_sweep(path, changes | group, only, output))
        return replace(sweep, runs=tuple(replace(run, lane="") for run in sweep.runs)), []
    where = {**read_params(path).defaults, **changes}
    file, include, exclude = (str(where.get(key) or "") for key in ("hostfile", "include", "exclude"))
    if not file:
        raise SettingsError("sub-cluster needs hosts: name them with --hostfile")
    chosen, whole = hostfile.hosts(file, include, exclude), hostfile.hosts(file)
    sweep, notes = _divide(chosen, whole, group_sizes, lambda group: load_sweep(path, changes | group, only, output))
    # The sweep is started again with these params: on all groups, not on the first.
    return replace(sweep, params=content(read_with_overrides(path, changes))), notes


def _divide(
    hosts: Sequence[Host], whole: Sequence[Host], sizes: Sequence[int], load: Callable[[dict[str, Any]], Sweep]
) -> tuple[Sweep, list[str]]:
    """Return the runs of all groups, and notes about unused hosts; `whole` are the hosts with all of their GPUs."""
    sweeps: list[Sweep] = []
    runs: list[Run] = []
    notes = []
    unnamed: NoMatchError | None = None
    for stage, size in enumerate(sizes):
        groups, rest = split(hosts, size)
        if rest:
            notes.append(f"sub-clusters of {size}: unused hosts: {', '.join(host.name for host in rest)}")
        for gpus, alike in _by_gpus(groups).items():
            names = [_names(group, whole) for group in alike]
            try:
                sweeps.append(load({"include": names[0], "exclude": "", "nodes": size, "gpus": gpus}))
            except NoMatchError as error:  # experiment names differ between group sizes
                unnamed = error
                continue
            runs += _runs_on_groups(sweeps[-1], names, stage)
    if unnamed and not sweeps:
        raise unnamed
    if len(runs) > MAX_RUNS:
        raise SettingsError(f"sub-cluster: {len(runs):,} runs: at most {MAX_RUNS:,} are allowed; split the sweep")
    return replace(sweeps[0], runs=tuple(runs)), notes


def _by_gpus(groups: Sequence[Group]) -> dict[int, list[Group]]:
    """Return groups by their number of GPUs, which is part of the experiment."""
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(sum(len(host.devices) for host in group), []).append(group)
    return found


def _runs_on_groups(sweep: Sweep, lanes: Sequence[str], stage: int) -> Iterator[Run]:
    """Yield every run of a sweep on every group."""
    for run in sweep.runs:
        for group, lane in enumerate(lanes, start=1):
            number = (run.repeat - 1) * len(lanes) + group
            experiment = run.experiment.model_copy(update={"include": lane})
            paths = sweep.paths.run(run.name, number)
            yield replace(run, experiment=experiment, repeat=number, paths=paths, lane=lane, stage=stage)


def _names(group: Group, whole: Sequence[Host]) -> str:
    """Return the hosts of a group as an `include` filter, with the GPUs of hosts that are used in part."""
    known = {host.name: host.devices for host in whole}
    return "@".join(
        host.name if host.devices == known[host.name] else f"{host.name}:{','.join(map(str, host.devices))}"
        for host in group
    )
