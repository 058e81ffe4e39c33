"""`dsnb sweep`: its options and the runs that they select.

What runs them is imported where it is used, because other commands import options from here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.base.system import signals
from dsnb.cli.printing import Format, print_groups, print_summary, say
from dsnb.measure.sweep.params import load_sweep

if TYPE_CHECKING:
    from dsnb.measure.sweep.allocation import Allocation
    from dsnb.measure.sweep.params import Sweep

NOT_ALL_OK = 3


def option(
    metavar: str | None,
    help_: str,
    *names: str,
    panel: str | None = None,
    default: bool | str = False,
    parser: Callable[[str], Any] | None = None,
) -> Any:
    """Return an option; `default` is whether the help shows the default value, or a text to show instead."""
    return typer.Option(
        *names,
        metavar=metavar,
        help=help_,
        rich_help_panel=panel,
        show_default=default,
        parser=parser,
    )


Params = Annotated[
    Path, typer.Argument(metavar="PARAMS", help="Params file (YAML).", show_default=False)
]
Set = Annotated[
    list[str] | None,
    option("KEY=VALUE", "A setting of every run; a list becomes an axis.", "--set"),
]


def sweep(
    params: Params,
    set_: Set = None,
    only: Annotated[
        str | None, option("PATTERN", "Only experiments whose names match, such as 'zs3*'.")
    ] = None,
    output: Annotated[
        Path | None, option("FOLDER", "Folder of the sweep instead of outputs/NAME.")
    ] = None,
    dry_run: Annotated[bool, option("", "Print the runs, and start nothing.", "--dry-run")] = False,
    verbose: Annotated[
        bool,
        option("", "With --dry-run, print settings, configurations, commands.", "--verbose", "-v"),
    ] = False,
    retry: Annotated[
        bool, option("", "Repeat failed runs as well as unfinished ones.", "--retry")
    ] = False,
    hostfile: Annotated[
        str | None,
        option("FILE", "Hostfile (DeepSpeed's format) of the hosts to run on.", panel="Hosts"),
    ] = None,
    sub_cluster: Annotated[
        str | None,
        option(
            "SIZES",
            "Hosts per group, groups side by side: 2, or several sizes one after the other: 1,2,4.",
            panel="Hosts",
        ),
    ] = None,
    slurm: Annotated[
        bool, option("", "Submit every run as a Slurm job.", "--slurm", panel="Slurm")
    ] = False,
    partition: Annotated[str | None, option("NAME", "Slurm partition.", panel="Slurm")] = None,
    account: Annotated[str | None, option("NAME", "Account to charge.", panel="Slurm")] = None,
    nodes: Annotated[
        int | None,
        option(
            "NUMBER", "Maximum nodes per job; a run requests as few as it needs.", panel="Slurm"
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, option("NUMBER", "GPUs per node; on nodes without GPUs, ranks.", panel="Slurm")
    ] = None,
    time: Annotated[
        int | None, option("MINUTES", "Time limit of a job in minutes.", panel="Slurm")
    ] = None,
    constraint: Annotated[
        str | None,
        option("FEATURES", "Features that nodes must have, such as 'h100&ib'.", panel="Slurm"),
    ] = None,
    sbatch_option: Annotated[
        list[str] | None,
        option("KEY=VALUE", "A further option of sbatch, such as mem=200G.", panel="Slurm"),
    ] = None,
) -> None:
    """Execute all runs of a params file that are not finished yet. Exit code 3: done, but not every run is ok.

    Exit code 130: stopped by Ctrl-C, SIGTERM or a closed terminal.
    """
    from dsnb.measure.sweep import allocation as allocations
    from dsnb.measure.sweep.run import run_sweep

    extra = [word.partition("=") for word in sbatch_option or []]
    limits = {
        "partition": partition,
        "account": account,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "time_min": time,
        "constraint": constraint,
        "extra_options": {key.strip().removeprefix("--"): value for key, _, value in extra} or None,
    }
    allocation = _allocation(slurm, limits)
    overrides = parse_overrides(set_ or [])
    if hostfile:
        overrides["hostfile"] = hostfile
    if allocation and (hosts := overrides.get("hostfile")):
        raise SettingsError(
            f"--hostfile is {str(hosts)!r}, but Slurm chooses hosts: leave one of them out"
        )
    if allocation and sub_cluster:
        raise SettingsError(
            "--sub-cluster divides the hosts of one job: use --hostfile slurm in a job"
        )
    if sub_cluster:
        planned, notes = allocations.load_groups(
            params, allocations.sizes(sub_cluster), overrides, only, output
        )
        for note in notes:
            say(f"note: {note}", err=True)
    elif allocation:
        planned = allocations.load(params, allocation, overrides, only, output)
    else:
        planned = load_sweep(params, overrides, only, output)
    if dry_run:
        _print_plan(planned, allocation, verbose)
        return
    try:
        results = run_sweep(planned, retry=retry, slurm=allocation)
    except KeyboardInterrupt:
        say("interrupted: finished runs are kept, start the sweep again to go on", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    from dsnb.results.runs.load import load_runs

    runs = load_runs(planned.paths.dir)
    print_summary(runs, Format.table)
    if sub_cluster:
        print_groups(runs, Format.table)
    say(f"Next: dsnb report {planned.paths.dir}")
    if any(result.status != "ok" for result in results):
        raise typer.Exit(NOT_ALL_OK)


def _print_plan(planned: "Sweep", allocation: "Allocation | None", verbose: bool) -> None:
    """Print the runs of a sweep and what this machine lacks; raise SettingsError with what no machine would run.

    The program of a command is looked for on this machine all the same: most often it is misspelled.
    """
    from dsnb.cli.plan import plan_lines
    from dsnb.measure.sweep.run import check_models, check_programs, unsupported

    for line in plan_lines(planned, allocation, verbose):
        say(line)
    if allocation:
        return
    check_programs(planned)
    for problem in unsupported(planned):
        say(f"this machine cannot run it: {problem}", err=True)
    check_models(planned)


def _allocation(slurm: bool, limits: dict[str, Any]) -> "Allocation | None":
    """Return the limits of a Slurm job, None without `--slurm`; limits that are None were not given."""
    from dsnb.measure.sweep.allocation import Allocation

    given = {name: value for name, value in limits.items() if value is not None}
    if slurm:
        return Allocation(**given)
    for name in given:
        option_name = {"time_min": "time", "extra_options": "sbatch-option"}.get(name, name)
        shown = option_name.replace("_", "-")
        raise SettingsError(f"--{shown} is for Slurm: add --slurm, or leave it out")
    return None


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` words; values are YAML, so `8` is a number and `[1, 2]` a list."""
    overrides = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SettingsError(
                f"--set is {word[:200]!r}: write KEY=VALUE, for example --set seq_len=256"
            )
        try:
            overrides[key.strip()] = plain_yaml.parse(value)
        except SettingsError as error:
            raise SettingsError(f"--set is {word[:200]!r}: {error}") from error
    return overrides
