"""`dsnb sweep`: its options, and which way of making runs they choose."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsnb.cli.printing import Format, print_groups, print_summary, say
from dsnb.errors import SettingsError
from dsnb.system import interpreter, signals

if TYPE_CHECKING:
    from dsnb.sweep.params import Sweep
    from dsnb.sweep.slurm.allocation import Allocation

NOT_ALL_OK = 3
SLURM = "Slurm"


Set = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for every run; a list becomes an axis.")]


def _slurm(help_: str) -> Any:
    return typer.Option(help=help_, rich_help_panel=SLURM, show_default=False)


@dataclass
class SweepOptions:
    """What the command line says of which runs, and where."""

    params: Path
    overrides: dict[str, Any]
    only: str | None
    output: Path | None
    sub_cluster: str | None
    allocation: "Allocation | None" = None
    one_allocation: bool = False
    notes: list[str] = field(default_factory=list)

    def load(self) -> "Sweep":
        """List the runs."""
        from dsnb.sweep import params, subclusters
        from dsnb.sweep.slurm import allocation

        asked = (self.overrides, self.only, self.output)
        if self.sub_cluster:
            nodes = self.allocation.placeholder_hosts() if self.allocation else None
            division = subclusters.load(self.params, subclusters.sizes(self.sub_cluster), *asked, hosts=nodes)
            self.notes += division.notes()
            return division.sweep
        if self.allocation:
            return allocation.load(self.params, self.allocation, *asked)
        return params.load_sweep(self.params, *asked)


def sweep(
    params: Annotated[Path, typer.Argument(help="A params file.", show_default=False)],
    set_: Set = None,
    only: Annotated[str | None, typer.Option(help="Experiments whose names match, for example 'zs3*'.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write here instead.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and start nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Repeat runs that failed as well.")] = False,
    hostfile: Annotated[
        str | None, typer.Option(help="Run on the hosts of this file.", rich_help_panel="Hosts", show_default=False)
    ] = None,
    sub_cluster: Annotated[
        str | None,
        typer.Option(
            help="Split the hosts into groups of so many, all at once: 2, or 1,2,4 one size after the other.",
            rich_help_panel="Hosts",
            show_default=False,
        ),
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Make every run as a Slurm job.", rich_help_panel=SLURM)
    ] = False,
    partition: Annotated[str | None, _slurm("Where.")] = None,
    account: Annotated[str | None, _slurm("For whom.")] = None,
    nodes: Annotated[int | None, _slurm("The most that a job may have; it asks for what its run needs.")] = None,
    gpus_per_node: Annotated[int | None, _slurm("GPUs of a node; without GPUs, ranks.")] = None,
    time: Annotated[int | None, _slurm("Minutes after which Slurm ends a job.")] = None,
    constraint: Annotated[str | None, _slurm("Features that nodes must have.")] = None,
    sbatch_option: Annotated[list[str] | None, _slurm("KEY=VALUE for sbatch, such as mem=200G.")] = None,
    one_allocation: Annotated[
        bool, typer.Option("--one-allocation", help="Make the whole sweep as one job.", rich_help_panel=SLURM)
    ] = False,
) -> None:
    """Make all runs of a params file that are not finished yet. Exit code 3: done, but not every run is ok.

    Exit code 130: stopped, by Ctrl-C, SIGTERM or a terminal that closed.
    """
    changes = overrides(set_ or []) | ({"hostfile": hostfile} if hostfile else {})
    given = SweepOptions(params, changes, only, output, sub_cluster)
    asked = {
        "partition": partition,
        "account": account,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "time_min": time,
        "constraint": constraint,
        "further": pairs(sbatch_option or []) or None,
    }
    _choose(given, slurm, {key: value for key, value in asked.items() if value is not None}, one_allocation)
    planned = given.load()
    for note in given.notes:
        say(f"note: {note}", err=True)
    if dry_run:
        print_plan(planned, given.allocation)
    else:
        _make(planned, given, set_ or [], retry)


def _choose(given: SweepOptions, slurm: bool, asked: dict[str, Any], one_allocation: bool) -> None:
    """Settle whether Slurm makes the runs, and with what."""
    from dsnb.sweep.slurm.allocation import Allocation

    if not slurm:
        if asked or one_allocation:
            name = {"time_min": "time", "further": "sbatch-option"}.get(next(iter(asked), ""), next(iter(asked), ""))
            odd = f"--{name.replace('_', '-')}" if asked else "--one-allocation"
            raise SettingsError(f"{odd} is for Slurm: add --slurm, or leave it out")
        return
    if hosts := given.overrides.get("hostfile"):
        raise SettingsError(f"--hostfile is {str(hosts)!r}, but Slurm chooses hosts: leave one of them out")
    if given.sub_cluster and not one_allocation:
        raise SettingsError("--sub-cluster divides one set of hosts: add --one-allocation, or leave it out")
    given.allocation, given.one_allocation = Allocation(**asked), one_allocation


def _make(planned: "Sweep", given: SweepOptions, set_: list[str], retry: bool) -> None:
    from dsnb.runs.load import load_runs, write_index
    from dsnb.sweep.run import run_in_one_job, run_sweep

    try:
        if given.allocation and given.one_allocation:
            fine = run_in_one_job(planned, given.allocation, _in_job(planned, given, set_, retry), retry=retry)
        else:
            results = run_sweep(planned, retry=retry, slurm=given.allocation)
            fine = all(result.status == "ok" for result in results)
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept, start the sweep again to go on", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    write_index(planned.paths.dir)
    runs = load_runs(planned.paths.dir)
    print_summary(runs, Format.table)
    if given.sub_cluster:
        print_groups(runs, Format.table)
    say(f"Report: dsnb report {planned.paths.dir}")
    if not fine:
        raise typer.Exit(NOT_ALL_OK)


def _in_job(planned: "Sweep", given: SweepOptions, set_: list[str], retry: bool) -> list[str]:
    """Give the command that makes the sweep inside of its job."""
    words = interpreter.command("-m", "dsnb", "sweep", str(given.params.absolute()), "--hostfile", "slurm")
    words += ["--output", str(planned.paths.dir.absolute()), *(["--retry"] if retry else [])]
    words += [word for one in set_ for word in ("--set", one)]
    words += ["--only", given.only] if given.only else []
    return words + (["--sub-cluster", given.sub_cluster] if given.sub_cluster else [])


def pairs(words: list[str]) -> dict[str, str]:
    """Read `KEY=VALUE` words, or `KEY` alone."""
    return {key.strip().removeprefix("--"): value for key, _, value in (word.partition("=") for word in words)}


def overrides(words: list[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` words; values are YAML, so `8` is a number and `[1, 2]` a list."""
    from dsnb.files import plain_yaml

    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"--set is {word[:200]!r}: write KEY=VALUE, for example --set seq_len=256")
        try:
            found[key.strip()] = plain_yaml.parse(value)
        except SettingsError as error:
            raise SettingsError(f"--set is {word[:200]!r}: {error}") from error
    return found


def print_plan(planned: "Sweep", asked: "Allocation | None" = None) -> None:
    """Print the runs of a sweep with their settings and commands, and what this machine cannot do of them."""
    from dsnb.cli.dry_run import lines
    from dsnb.sweep.run import unsupported

    for line in lines(planned, asked):
        say(line)
    for problem in [] if asked else unsupported(planned):
        say(f"this machine could not run it: {problem}", err=True)
