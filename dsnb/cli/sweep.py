"""`dsnb sweep`: its options, and what they say about which runs to execute and where."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsnb.cli.printing import Format, print_groups, print_summary, say
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
    overrides = parse_overrides(set_ or []) | ({"hostfile": hostfile} if hostfile else {})
    overrides |= {"skip_oom": True} if skip_oom else {}
    planned, notes = load(params, overrides, only, output, sub_cluster, allocation, one_allocation)
    for note in notes:
        say(f"note: {note}", err=True)
    if dry_run:
        print_plan(planned, allocation, verbose)
        return
    from dsnb.sweep.run import run_in_one_job, run_sweep

    try:
        if allocation and one_allocation:
            command = interpreter.command("-m", "dsnb", "sweep", str(params.absolute()), "--hostfile", "slurm")
            command += ["--output", str(planned.paths.dir.absolute()), *(["--retry"] if retry else [])]
            command += [word for change in set_ or [] for word in ("--set", change)]
            command += [*(["--only", only] if only else []), *(["--sub-cluster", sub_cluster] if sub_cluster else [])]
            command += [*(["--skip-oom"] if skip_oom else []), *(["--verbose"] if verbose else [])]
            results = run_in_one_job(planned, allocation, command, retry=retry, verbose=verbose)
        else:
            results = run_sweep(planned, retry=retry, slurm=allocation, verbose=verbose)
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept, start the sweep again to go on", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    from dsnb.runs.load import load_runs

    runs = load_runs(planned.paths.dir)
    print_summary(runs, Format.table)
    if sub_cluster:
        print_groups(runs, Format.table)
    say(f"Report: dsnb report {planned.paths.dir}")
    if any(result.status != "ok" for result in results):
        raise typer.Exit(NOT_ALL_OK)


def load(
    params: Path,
    overrides: dict[str, Any],
    only: str | None = None,
    output: Path | None = None,
    sub_cluster: str | None = None,
    allocation: "Allocation | None" = None,
    one_allocation: bool = False,
) -> tuple["Sweep", list[str]]:
    """Return the sweep, and notes on what it leaves out; parameters as the options of `dsnb sweep`.

    Raises
    ------
    SettingsError
        If options exclude each other, or settings cannot be used.
    """
    from dsnb.sweep import allocation as places
    from dsnb.sweep.params import load_sweep

    if one_allocation and not allocation:
        raise SettingsError("--one-allocation is for Slurm: add --slurm, or leave it out")
    if allocation and (hosts := overrides.get("hostfile")):
        raise SettingsError(f"--hostfile is {str(hosts)!r}, but Slurm chooses hosts: leave one of them out")
    if allocation and sub_cluster and not one_allocation:
        raise SettingsError("--sub-cluster divides one set of hosts: add --one-allocation, or leave it out")
    if sub_cluster:
        nodes = allocation.placeholder_hosts() if allocation else None
        return places.load_groups(params, places.sizes(sub_cluster), overrides, only, output, hosts=nodes)
    if allocation:
        return places.load(params, allocation, overrides, only, output), []
    return load_sweep(params, overrides, only, output), []


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
    from dsnb.sweep.params import without_unfit
    from dsnb.sweep.run import unsupported

    planned = without_unfit(planned, lambda _: None)
    for line in lines(planned, allocation, in_full):
        say(line)
    for problem in [] if allocation else unsupported(planned):
        say(f"this machine cannot run it: {problem}", err=True)
