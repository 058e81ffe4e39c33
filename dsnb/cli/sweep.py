"""`dsnb sweep`: its options, and what they say about which runs to execute and where."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsnb.cli.printing import Format, print_groups, print_summary, say, table_width
from dsnb.errors import SettingsError
from dsnb.system import interpreter, signals

if TYPE_CHECKING:
    from dsnb.sweep.allocation import Allocation
    from dsnb.sweep.params import Sweep

NOT_ALL_OK = 3

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run; a list becomes an axis."),
]


def _hosts_option(metavar: str, help_: str) -> Any:
    return typer.Option(metavar=metavar, help=help_, rich_help_panel="Hosts", show_default=False)


def _slurm_option(*names: str, metavar: str | None = None, help_: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help_, rich_help_panel="Slurm", show_default=False)


@dataclass(frozen=True)
class SweepOptions:
    """Which runs of which params file to execute, and where.

    Raises
    ------
    SettingsError
        If options exclude each other.
    """

    params: Path
    changes: list[str] = field(default_factory=list)
    """`KEY=VALUE` words of `--set`."""
    only: str | None = None
    output: Path | None = None
    retry: bool = False
    hostfile: str | None = None
    sub_cluster: str | None = None
    allocation: "Allocation | None" = None
    """What each Slurm job may use; None for runs that are no Slurm jobs."""
    one_allocation: bool = False
    skip_oom: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.allocation is None:
            if self.one_allocation:
                raise SettingsError("--one-allocation is for Slurm: add --slurm, or leave it out")
            return
        if hosts := self.overrides.get("hostfile"):
            raise SettingsError(f"--hostfile is {str(hosts)!r}, but Slurm chooses hosts: leave one of them out")
        if self.sub_cluster and not self.one_allocation:
            raise SettingsError("--sub-cluster divides one set of hosts: add --one-allocation, or leave it out")

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Settings that replace those of the params file."""
        given = {"hostfile": self.hostfile, "skip_oom": self.skip_oom}
        return parse_overrides(self.changes) | {key: value for key, value in given.items() if value}

    def load(self) -> tuple["Sweep", list[str]]:
        """Return the sweep, and notes on what it leaves out."""
        from dsnb.sweep import allocation, params, subclusters

        selection = (self.overrides, self.only, self.output)
        if self.sub_cluster:
            nodes = self.allocation.placeholder_hosts() if self.allocation else None
            return subclusters.load(self.params, subclusters.sizes(self.sub_cluster), *selection, hosts=nodes)
        if self.allocation:
            return allocation.load(self.params, self.allocation, *selection), []
        return params.load_sweep(self.params, *selection), []

    def command_in_job(self, output: Path) -> list[str]:
        """Return the command that executes the whole sweep inside its Slurm job."""
        words = interpreter.command("-m", "dsnb", "sweep", str(self.params.absolute()), "--hostfile", "slurm")
        words += ["--output", str(output.absolute()), *(["--retry"] if self.retry else [])]
        words += [word for change in self.changes for word in ("--set", change)]
        words += ["--only", self.only] if self.only else []
        words += [*(["--skip-oom"] if self.skip_oom else []), *(["--verbose"] if self.verbose else [])]
        return words + (["--sub-cluster", self.sub_cluster] if self.sub_cluster else [])


def sweep(
    params: Annotated[Path, typer.Argument(metavar="PARAMS", help="Params file (YAML).", show_default=False)],
    set_: Set = None,
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only experiments whose names match, such as 'zs3*'.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the sweep instead of outputs/NAME.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs, and start nothing.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Name every setting that is left out; with --dry-run, print settings, configurations, commands.",
        ),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Repeat failed runs as well as unfinished ones.")] = False,
    skip_oom: Annotated[
        bool, typer.Option("--skip-oom", help="Leave out settings that are predicted not to fit into GPU memory.")
    ] = False,
    hostfile: Annotated[
        str | None, _hosts_option("FILE", "Hostfile (DeepSpeed's format) of the hosts to run on.")
    ] = None,
    sub_cluster: Annotated[
        str | None,
        _hosts_option("SIZES", "Hosts per group, groups side by side: 2, or several sizes one after the other: 1,2,4."),
    ] = None,
    slurm: Annotated[bool, _slurm_option("--slurm", help_="Submit every run as a Slurm job.")] = False,
    partition: Annotated[str | None, _slurm_option(metavar="NAME", help_="Slurm partition.")] = None,
    account: Annotated[str | None, _slurm_option(metavar="NAME", help_="Account to charge.")] = None,
    nodes: Annotated[
        int | None, _slurm_option(metavar="NUMBER", help_="Maximum nodes per job; a run requests as few as it needs.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, _slurm_option(metavar="NUMBER", help_="GPUs per node; on nodes without GPUs, ranks.")
    ] = None,
    time: Annotated[int | None, _slurm_option(metavar="MINUTES", help_="Time limit of a job in minutes.")] = None,
    constraint: Annotated[
        str | None, _slurm_option(metavar="FEATURES", help_="Features that nodes must have, such as 'h100&ib'.")
    ] = None,
    sbatch_option: Annotated[
        list[str] | None, _slurm_option(metavar="KEY=VALUE", help_="A further option of sbatch, such as mem=200G.")
    ] = None,
    one_allocation: Annotated[
        bool, _slurm_option("--one-allocation", help_="Execute the whole sweep in one Slurm job.")
    ] = False,
) -> None:
    """Execute all runs of a params file that are not finished yet. Exit code 3: done, but not every run is ok.

    Exit code 130: stopped by Ctrl-C, SIGTERM or a closed terminal.
    """
    allocation = _allocation(
        slurm,
        partition=partition,
        account=account,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        time_min=time,
        constraint=constraint,
        extra_options=parse_pairs(sbatch_option) if sbatch_option else None,
    )
    options = SweepOptions(
        params, set_ or [], only, output, retry, hostfile, sub_cluster, allocation, one_allocation, skip_oom, verbose
    )
    planned, notes = options.load()
    for note in notes:
        say(f"note: {note}", err=True)
    if dry_run:
        print_plan(planned, allocation, verbose)
    else:
        _execute(planned, options)


def _allocation(slurm: bool, **options: Any) -> "Allocation | None":
    """Return what a Slurm job may use, None without `--slurm`; options that are None were not given."""
    from dsnb.sweep.allocation import Allocation

    given = {name: value for name, value in options.items() if value is not None}
    if slurm:
        return Allocation(**given)
    if name := next(iter(given), None):
        name = {"time_min": "time", "extra_options": "sbatch-option"}.get(name, name.replace("_", "-"))
        raise SettingsError(f"--{name} is for Slurm: add --slurm, or leave it out")
    return None


def _execute(planned: "Sweep", options: SweepOptions) -> None:
    """Execute the sweep and print its summary; exit with a code other than 0 if not every run is ok."""
    from dsnb.runs.load import load_runs

    try:
        all_ok = _run(planned, options)
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept, start the sweep again to go on", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    runs = load_runs(planned.paths.dir)
    print_summary(runs, Format.table)
    if options.sub_cluster:
        print_groups(runs, Format.table)
    say(f"Report: dsnb report {planned.paths.dir}")
    if not all_ok:
        raise typer.Exit(NOT_ALL_OK)


def _run(planned: "Sweep", options: SweepOptions) -> bool:
    """Execute the runs; return whether all of them are ok."""
    from dsnb.sweep.run import run_in_one_job, run_sweep

    if options.allocation and options.one_allocation:
        command = options.command_in_job(planned.paths.dir)
        results = run_in_one_job(planned, options.allocation, command, retry=options.retry, verbose=options.verbose)
    else:
        results = run_sweep(planned, retry=options.retry, slurm=options.allocation, verbose=options.verbose)
    return all(result.status == "ok" for result in results)


def parse_pairs(words: list[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` words, or `KEY` alone."""
    return {key.strip().removeprefix("--"): value for key, _, value in (word.partition("=") for word in words)}


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` words; values are YAML, so `8` is a number and `[1, 2]` a list."""
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


def print_plan(planned: "Sweep", allocation: "Allocation | None" = None, in_full: bool = False) -> None:
    """Print the runs of a sweep, in full with settings and commands, and what this machine cannot run of them."""
    from dsnb.cli.dry_run import lines
    from dsnb.sweep.left_out import without_unfit
    from dsnb.sweep.run import unsupported

    planned = without_unfit(planned, lambda _: None)
    for line in lines(planned, allocation, in_full, table_width()):
        say(line)
    for problem in [] if allocation else unsupported(planned):
        say(f"this machine cannot run it: {problem}", err=True)
