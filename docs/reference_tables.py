"""The reference, made from the code: settings, columns, files of a run folder, command line, public names.

Every function returns Markdown. Something without a meaning raises `MissingMeaning`, so that neither a test nor a build
of the documentation lets it pass.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any

import typer

import dsnb
from dsnb.cli.app import app
from dsnb.results.runs.table import ALIASES
from dsnb.results.statistics import comparisons, flags
from dsnb.settings.experiment import CURRENT_NAMES, DEFAULTS, Experiment
from dsnb.settings.records import contributed
from dsnb.settings.records.columns import (
    KEYS,
    METRIC_LABELS,
    RUNS,
    SAMPLES,
    SETTINGS,
    STEPS,
    Column,
)
from dsnb.settings.records.paths import File, RunPaths, SweepPaths
from dsnb.settings.records.record_schema import FILES
from dsnb.settings.training import Training

FORMER = {"setting": CURRENT_NAMES, "column": ALIASES}
TIMES = "\N{MULTIPLICATION SIGN}"
SUMMARY = {
    "n": "Runs that are `ok`; medians and spreads are over these.",
    "n_failed": "Runs with any other status.",
    "<metric>_median": "Median over the `ok` runs; missing where nothing was measured.",
    "<metric>_std": "Sample standard deviation over the `ok` runs (n - 1); missing for a single run.",
    "<metric>_min": "Lowest value of an `ok` run.",
    "<metric>_max": "Highest value of an `ok` run.",
    "<metric>_n": "`ok` runs that measured it.",
    "varies": "Settings and hardware in which the runs of the row differ, such as `compile, gpus`; empty for repeats.",
}
"""Columns of `summarize`; `<metric>` stands for every figure of `METRIC_LABELS`."""


class MissingMeaning(Exception):
    """A name in the reference without a description."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def described(what: str, meaning: str | None) -> str:
    """Return a meaning in one line.

    Raises
    ------
    MissingMeaning
        If there is none.
    """
    if not meaning or not meaning.strip():
        raise MissingMeaning(f"{what} has no meaning: describe it where it is defined")
    return " ".join(meaning.split())


def type_text(annotation: Any) -> str:
    """Return a setting's type as readers know it, such as `fp32`, `bf16` for a choice and `int` for a number."""
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return type_text(typing.get_args(annotation)[0])
    parts = typing.get_args(annotation)
    return " or ".join(map(type_text, parts)) if parts else f"`{annotation.__name__}`"


def settings(names: Iterable[str]) -> str:
    """Return the settings of these names: type, default, meaning."""
    rows = []
    for name in names:
        field = Experiment.model_fields[name]
        meaning = described(f"setting {name}", field.description)
        default = "empty" if field.default == "" else f"`{str(field.default).lower()}`"
        rows.append([f"`{name}`", type_text(field.annotation), default, meaning])
    return table(["setting", "type", "default", "meaning"], rows)


def training_settings() -> str:
    """Return the settings of what is trained."""
    return settings(Training.model_fields)


def supervision_settings() -> str:
    """Return the settings of where and under which limits it runs."""
    return settings(name for name in Experiment.model_fields if name not in Training.model_fields)


def columns(listed: Iterable[Column]) -> str:
    """Return columns with their meanings."""
    return table(
        ["column", "meaning"], ([f"`{column.name}`", meaning(column)] for column in listed)
    )


def meaning(column: Column) -> str:
    """Return what a column means, after its title if it has one."""
    text = described(f"column {column.name}", column.meaning).replace(" x ", f" {TIMES} ")
    title = column.label.title if column.label else ""
    return f"{title[0].upper()}{title[1:]}. {text}" if title else text


def contributed_texts() -> str:
    """Return the texts that may leave a machine in `dsnb contribute`, and what they must match."""
    texts = ((name, contributed.pattern(name)) for name in contributed.COLUMNS)
    rows = [[f"`{name}`", f"`{pattern}`"] for name, pattern in texts if pattern]
    return table(["column", "pattern"], rows)


def run_columns() -> str:
    """Return the columns of `load_runs` that are no settings."""
    return columns(column for name, column in RUNS.items() if name not in SETTINGS)


def step_columns() -> str:
    """Return the columns of `load_steps`."""
    return columns([*(RUNS[name] for name in KEYS), *STEPS.values()])


def gpu_columns() -> str:
    """Return the columns of `gpu.jsonl`."""
    return columns(SAMPLES.values())


def summary_columns() -> str:
    """Return the columns of `summarize`, and the figures that it aggregates."""
    rows = [[f"`{name}`", described(name, about)] for name, about in SUMMARY.items()]
    listed = ", ".join(f"`{name}`" for name in METRIC_LABELS)
    return f"{table(['column', 'meaning'], rows)}\n\n`<metric>` is one of {listed}."


def comparison_columns() -> str:
    """Return the columns of a comparison of settings."""
    return described_columns(comparisons.COLUMNS)


def flag_columns() -> str:
    """Return the columns of what is unusual about runs."""
    return described_columns(flags.COLUMNS)


def described_columns(about: dict[str, str]) -> str:
    """Return columns with their meanings."""
    return table(
        ["column", "meaning"],
        ([f"`{name}`", described(name, text)] for name, text in about.items()),
    )


def files(paths: type[RunPaths] | type[SweepPaths]) -> dict[str, str]:
    """Return the files that a class of paths names, each with its meaning."""
    listed = [
        item
        for base in reversed(paths.__mro__)
        for item in vars(base).values()
        if isinstance(item, File)
    ]
    return {file.name: described(f"file {file.name}", file.meaning) for file in listed}


def former_names() -> str:
    """Return the names of settings and columns that changed; the former ones are still read."""
    rows = [
        [what, f"`{old}`", f"`{new}`"]
        for what, names in FORMER.items()
        for old, new in names.items()
    ]
    return table(["", "former name", "name"], rows)


def run_files() -> str:
    """Return the files of a run folder."""
    return table(
        ["file", "content"], ([f"`{name}`", about] for name, about in files(RunPaths).items())
    )


def sweep_files() -> str:
    """Return the files of a sweep's folder."""
    return table(
        ["file", "content"], ([f"`{name}`", about] for name, about in files(SweepPaths).items())
    )


def run_fields() -> str:
    """Return the fields of the files of a run folder that are validated when they are read, with their meanings."""
    parts = []
    for file, by_name in FILES.items():
        fields = by_name.values()
        begin, listed = "", [*fields]
        if file == "experiment.json":
            begin, listed = (
                "All settings, and:\n\n",
                [field for field in fields if field.name not in DEFAULTS],
            )
        parts.append(f"### `{file}`\n\n{begin}{columns(listed)}")
    return "\n\n".join(parts)


def command_line() -> str:
    """Return every command with its arguments and options."""
    parts = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        context = command.make_context(name, [], resilient_parsing=True)
        rows = []
        for parameter in command.params:
            form, text = parameter.get_help_record(context) or (parameter.name, "")
            if parameter.name != "help":
                about = described(f"dsnb {name} {form}", parameter.help and text)
                repeats = " May be given several times." if parameter.multiple else ""
                rows.append([f"`{form}`", about + repeats])
        paragraphs = described(f"dsnb {name}", command.help and command.help.replace("\n\n", " "))
        parts.append(
            f"## dsnb {name}\n\n{paragraphs}\n\n{table(['argument or option', 'meaning'], rows)}"
        )
    return "\n\n".join(parts)


def python_api() -> str:
    """Return every public name of dsnb with the first sentence of its documentation."""
    names = [name for listed in API.values() for name in listed]
    rows = [
        [f"{{py:obj}}`dsnb.{name}`", described(name, inspect.getdoc(getattr(dsnb, name)))]
        for name in names
    ]
    return table(
        ["name", "meaning"],
        ([name, about.split(". ")[0].rstrip(".") + "."] for name, about in rows),
    )


def api(page: str) -> str:
    """Return the public names of a page, for autodoc."""
    parts = []
    for name in API[page]:
        options = "".join(f"   {option}\n" for option in API_OPTIONS.get(name, []))
        parts.append(
            f"```{{eval-rst}}\n.. auto{_kind(getattr(dsnb, name))}:: dsnb.{name}\n{options}```"
        )
    return "\n\n".join(parts)


def _kind(thing: Any) -> str:
    if isinstance(thing, type):
        return "exception" if issubclass(thing, Exception) else "class"
    return "function"


API = {
    "api_measure": (
        "Experiment", "launch", "load_sweep", "run_sweep", "adapt", "design", "check_parameters", "record",
        "TrainerCallback", "DsnbError", "SettingsError",
    ),
    "api_results": (
        "load_runs", "load_steps", "published", "summarize", "differences", "compare", "explore", "write_report",
    ),
    "api_predict": ("predict", "recommend", "rampup"),
}  # fmt: skip
"""The public names by page."""
API_OPTIONS = {
    "Experiment": [
        ":members: name, name_with_model, data_parallel, global_batch_size, tokens_per_step, hosts, from_namespace",
    ],
}
"""Options of autodoc for a name; the settings themselves are in a separate table."""
TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        training_settings,
        supervision_settings,
        run_columns,
        step_columns,
        gpu_columns,
        summary_columns,
        comparison_columns,
        flag_columns,
        former_names,
        run_files,
        sweep_files,
        run_fields,
        command_line,
        python_api,
        contributed_texts,
    )
}
TABLES |= {page: functools.partial(api, page) for page in API}
"""By the name that a page asks for them with: `{generated} run_columns`."""
