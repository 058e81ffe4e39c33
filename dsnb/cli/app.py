"""The short commands of `dsnb`, and the entry point."""

import gc
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from dsnb.base.errors import DsnbError, DsnbWarning, SettingsError
from dsnb.base.files import plain_text
from dsnb.base.system import interpreter, signals
from dsnb.cli import import_, predict, probe, sweep
from dsnb.cli.check import check as check_speed
from dsnb.cli.contribute import contribute
from dsnb.cli.predict import LinkName, TableFormat
from dsnb.cli.printing import Format, print_groups, print_summary, say, say_line, show
from dsnb.cli.sweep import Set, option, parse_overrides
from dsnb.measure.sweep.params import SWEEP_SETTINGS
from dsnb.settings import checks
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records.paths import SHIPPED, START_README
from dsnb.version import __version__

UsageError: Any = typer.BadParameter.__base__  # of click or, in newer versions, of typer's own copy
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

EXTRAS = {
    "torch": "to train: pip install 'dsnb[train]'",
    "jupyterlab": "for JupyterLab: pip install 'dsnb[lab]'",
}
"""Libraries that are not always installed -> what to say without them."""
STARTED_WITH = ("notebooks/*.ipynb", "params/*.yaml", "params/*.py")
"""What `dsnb init` writes."""
Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of outputs, or a log.", show_default=False)
]
Hostfile = Annotated[Path | None, option("FILE", "Use the hosts of this hostfile.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"dsnb {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Predict and measure which DeepSpeed settings to train with on your hardware."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to.")] = Path(),
) -> None:
    """Write notebooks, params files and a README to start from; no file is ever overwritten."""
    sources = {folder / "README.md": START_README}
    shipped = [path for pattern in STARTED_WITH for path in SHIPPED.glob(pattern)]
    for path in sorted(shipped):
        sources[folder / path.relative_to(SHIPPED)] = path
    existing = [path for path in sources if path.exists() or path.is_symlink()]
    if existing:
        more = f" and {len(existing) - 1} more" if existing[1:] else ""
        raise SettingsError(
            f"{existing[0]}{more} would be overwritten, so nothing was written: name another folder"
        )
    for target, source in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(source.read_bytes())
    say(f"{folder.absolute()}: notebooks, params and README.md, which says how to begin")
    for library, advice in EXTRAS.items():
        if not find_spec(library):
            say(advice)


def summary(
    folder: Folder,
    format_: TableFormat = Format.table,
    wide: Annotated[
        bool, option("", "Print all columns, however wide the table is.", "--wide")
    ] = False,
    timing: Annotated[
        bool, option("", "Print the wall time of each phase (s) instead.", "--timing")
    ] = False,
    groups: Annotated[
        bool, option("", "Print groups of nodes and slow nodes instead.", "--groups")
    ] = False,
    set_: Annotated[
        list[str] | None, option("KEY=VALUE", "What a log does not say, such as gpus=8.", "--set")
    ] = None,
) -> None:
    """Print medians and spreads of every experiment below a folder."""
    from dsnb.results.runs.load import load_runs, no_runs_message

    runs = load_runs(folder, settings=parse_overrides(set_ or []))
    if runs.empty:
        raise SettingsError(no_runs_message(folder))
    if groups:
        print_groups(runs, format_)
    elif timing:
        from dsnb.results.statistics import summary as statistics
        from dsnb.show.render.tables import format_timing

        seconds = statistics.timing(runs)
        show(seconds, format_timing(seconds), format_, fit=True)
    else:
        print_summary(runs, format_, wide)
        if format_ is Format.table and not wide:
            say(f"Names of the experiments: --wide. Next: dsnb report {folder}")


def report(
    folder: Folder,
    output: Annotated[
        Path | None, option("FILE", "HTML file to write instead of FOLDER/report.html.")
    ] = None,
    compare: Annotated[
        Path | None, option("FOLDER", "Folder of earlier runs to compare these with.")
    ] = None,
    predict_: Annotated[
        list[Path] | None,
        option(
            "PARAMS",
            "Params file: predict its settings that were not run; FOLDER: predict the rest of the sweep.",
            "--predict",
        ),
    ] = None,
    link: LinkName = "nvlink",
) -> None:
    """Execute the report notebook over a folder and write one HTML file."""
    from dsnb.show.report import write_report

    say(write_report(folder, output, compare, predict_ or (), link))


def doctor(hostfile: Hostfile = None, set_: Set = None) -> None:
    """Check what this machine, or the hosts of a hostfile, can run, what is missing, and how to fix it."""
    from dsnb.cli.doctor import check_hosts, check_machine

    settings = {"gpus": "auto", **parse_overrides(set_ or [])}
    if hostfile:
        settings["hostfile"] = str(hostfile)
    checks = check_hosts(Experiment(**settings)) if settings.get("hostfile") else check_machine()
    for check in checks:
        advice = f" -> {check.advice}" if check.advice else ""
        say_line(f"{check.state:8} {check.what}: {check.finding}{advice}")
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)


def bandwidth(
    output: Annotated[
        Path | None, option("FOLDER", "Sweep folder to write the results to.")
    ] = None,
    most_bytes: Annotated[
        int | None, option("NUMBER", "Largest message in bytes.", default="by device")
    ] = None,
    hostfile: Hostfile = None,
    set_: Set = None,
    format_: TableFormat = Format.table,
) -> None:
    """Measure collectives by message size over all ranks, in nccl-tests' columns."""
    from dsnb.measure.launcher.probe import SETTINGS, measure_bandwidth
    from dsnb.results.runs.sweeps import load_bandwidth
    from dsnb.show.render.nodes import format_bandwidth

    settings = {**SETTINGS, "hostfile": str(hostfile or ""), **parse_overrides(set_ or [])}
    result = measure_bandwidth(Experiment(**settings), output, most_bytes=most_bytes)
    table = load_bandwidth(result.run_dir)
    show(table.set_index("bytes"), format_bandwidth(table), format_)
    result.raise_for_status()


def page(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="HTML file to write.")] = Path(
        "calculator.html"
    ),
) -> None:
    """Write the calculator: recommendations for known models and GPUs, looked up in one offline page."""
    from dsnb.show.calculator.page import write

    say(write(file))


EXAMPLES: dict[Callable[..., None], str] = {
    init: "dsnb init benchmarks",
    doctor: "dsnb doctor",
    predict.predict: "dsnb predict params/memory.yaml --gpu H100 --tokens 300B",
    predict.recommend: "dsnb recommend opt-13b --gpu H100 --gpus 8 --tokens 300B",
    page: "dsnb page calculator.html",
    check_speed: "dsnb check llama-3.1-8b --gpu H100 --gpus 8 --tokens-per-s 41000",
    probe.probe: "dsnb probe --output probe.json",
    import_.import_: "dsnb import ds_config.json --model llama-3.1-8b --output params.yaml",
    sweep.sweep: "dsnb sweep params/quickstart.yaml --set seq_len=256 --dry-run",
    summary: "dsnb summary outputs/quickstart",
    report: "dsnb report outputs/quickstart --output quickstart.html",
    bandwidth: "dsnb bandwidth --hostfile hosts",
    contribute: "dsnb contribute outputs/quickstart --contributor octocat",
}
"""The commands in the order of use, each with an example."""
for command, example in EXAMPLES.items():
    app.command(command.__name__.rstrip("_"), epilog=f"Example: {example}")(command)


def usage_problem(error: Any) -> str:
    """Return what is wrong with a command line, in one sentence."""
    key = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
    if key in {*DEFAULTS, *SWEEP_SETTINGS}:
        return f"{error.option_name} is no option: write --set {key}=VALUE"
    if isinstance(error.__cause__, ValidationError):
        wrong: Any = error.__cause__.errors()[0]
        allowed = checks.allowed_values(wrong)
        if wrong["type"] == "value_error":  # of a format
            allowed = f"allowed are {', '.join(Format)}"
        return f"{error.param.opts[0]} is {plain_text.short_repr(wrong['input'])}: {allowed}"
    if isinstance(error.__cause__, ValueError):  # of a parser of an option
        return f"{error.param.opts[0]} is {error.message}"
    return str(error.format_message())


def main() -> None:
    """Run the command line; expected errors are printed as one line each."""
    warnings.showwarning = lambda message, category, *_: say(
        f"{'note' if issubclass(category, DsnbWarning) else 'warning'}: {message}", err=True
    )
    signals.install_handlers()
    gc.set_threshold(100_000)  # collecting garbage takes a tenth of the time of imports
    interpreter.end_quickly()
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        say(f"error: {usage_problem(error)}" if str(error) else "", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(signals.INTERRUPTED)
    except DsnbError as error:
        for line in str(error).splitlines():
            say(f"error: {line}", err=True)
        sys.exit(1)
    except OSError as error:
        say(f"error: {error.filename or 'writing'}: {error.strerror or error}", err=True)
        sys.exit(1)
