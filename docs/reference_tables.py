"""The reference, made from the code: settings, columns, files of a run folder, command line, public names.

Every function returns Markdown. Something without a meaning raises `MissingMeaning`, so that neither a test nor a build
of the documentation lets it pass.
"""

import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import dsnb
from dsnb.analysis import comparisons, flags
from dsnb.cli.app import app
from dsnb.run_folder import column_meanings as meanings
from dsnb.run_folder.field_meanings import FIELDS
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.run_folder.record_schema import FORMS
from dsnb.run_folder.table_columns import GPU_COLUMNS, RUN_COLUMNS, STEP_COLUMNS
from dsnb.runs.column_aliases import ALIASES
from dsnb.runs.labels import METRIC_LABELS
from dsnb.settings.aliases import CURRENT_NAMES
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import Training

FORMER = {"setting": CURRENT_NAMES, "column": ALIASES}
TIMES = "\N{MULTIPLICATION SIGN}"


class MissingMeaning(Exception):
    """Something in the reference that nobody has described."""


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
    """Return the settings of these names: type, default, unit, meaning."""
    rows = []
    for name in names:
        field = Experiment.model_fields[name]
        meaning = described(f"setting {name}", field.description)
        default = "empty" if field.default == "" else f"`{str(field.default).lower()}`"
        rows.append([f"`{name}`", type_text(field.annotation), default, meanings.unit(name), meaning])
    return table(["setting", "type", "default", "unit", "meaning"], rows)


def training_settings() -> str:
    """Return the settings of what is trained."""
    return settings(Training.model_fields)


def supervision_settings() -> str:
    """Return the settings of where and under which limits it runs."""
    return settings(name for name in Experiment.model_fields if name not in Training.model_fields)


def run_meaning(name: str) -> str:
    """Return what a column of the table of runs means."""
    if name in Experiment.model_fields and name not in meanings.RUNS:
        return f"Setting: {described(name, Experiment.model_fields[name].description)}"
    if name in METRIC_LABELS and METRIC_LABELS[name].about:
        title = METRIC_LABELS[name].title
        return f"{title[0].upper()}{title[1:]}. {METRIC_LABELS[name].about}"
    return described(f"column {name} of runs", meanings.TITLED.get(name) or meanings.RUNS.get(name))


def run_columns() -> str:
    """Return the columns of `load_runs` that are no settings, with unit, meaning and formula."""
    names = [name for name in RUN_COLUMNS if name not in Experiment.model_fields or name in {"device", "deepspeed"}]
    rows = [[f"`{name}`", meanings.unit(name), run_meaning(name), formula(name)] for name in names]
    return table(["column", "unit", "meaning", "formula"], rows)


def formula(name: str) -> str:
    """Return how a column of runs is derived; empty for a measured one."""
    return meanings.FORMULAS.get(name, "").replace(" x ", f" {TIMES} ")


def columns(names: Iterable[str], about: dict[str, str]) -> str:
    """Return columns with unit and meaning."""
    rows = [[f"`{name}`", meanings.unit(name), described(f"column {name}", about.get(name))] for name in names]
    return table(["column", "unit", "meaning"], rows)


def step_columns() -> str:
    """Return the columns of `load_steps`."""
    return columns(["sweep", "experiment", "repeat", *STEP_COLUMNS], meanings.STEPS)


def gpu_columns() -> str:
    """Return the columns of `gpu.jsonl`."""
    return columns(GPU_COLUMNS, meanings.GPU_SAMPLES)


def summary_columns() -> str:
    """Return the columns of `summarize`, and the figures that it aggregates."""
    rows = [[f"`{name}`", described(name, about)] for name, about in meanings.SUMMARY.items()]
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
    return table(["column", "meaning"], ([f"`{name}`", described(name, text)] for name, text in about.items()))


def files(paths: type[RunPaths] | type[SweepPaths]) -> dict[str, str]:
    """Return the files that a class of paths names, each with its meaning."""
    example = paths(Path())
    names = [
        name for base in reversed(paths.__mro__) for name, item in vars(base).items() if isinstance(item, property)
    ]
    found = {}
    for name in dict.fromkeys(names):
        value = getattr(example, name)
        if isinstance(value, Path):
            found[value.name] = described(f"file {value.name}", getattr(paths, name).__doc__)
    return found


def former_names() -> str:
    """Return the names of settings and columns that changed; the former ones are still read."""
    rows = [[what, f"`{old}`", f"`{new}`"] for what, names in FORMER.items() for old, new in names.items()]
    return table(["", "former name", "name"], rows)


def run_files() -> str:
    """Return the files of a run folder."""
    return table(["file", "content"], ([f"`{name}`", about] for name, about in files(RunPaths).items()))


def sweep_files() -> str:
    """Return the files of a sweep's folder."""
    return table(["file", "content"], ([f"`{name}`", about] for name, about in files(SweepPaths).items()))


def field_meaning(file: str, name: str) -> str:
    """Return what a field of a run's file means: its own text, or that of the setting or column of its name."""
    if about := FIELDS.get(file, {}).get(name):
        return about
    columns_of = {"gpu.jsonl": meanings.GPU_SAMPLES, "steps.jsonl": meanings.STEPS}
    if file in columns_of:
        return described(f"{file}: {name}", columns_of[file].get(name))
    return described(f"{file}: {name}", run_meaning(name))


def run_fields() -> str:
    """Return the fields of every file of a run folder, with what they may hold and what they mean."""
    parts = []
    for file, kind in FORMS.items():
        names = [name for name in kind.fields if name not in Experiment.model_fields or file != "experiment.json"]
        rows = [[f"`{name}`", kind.fields[name].name, field_meaning(file, name)] for name in names]
        begin = "All settings, and:\n\n" if file == "experiment.json" else ""
        parts.append(f"### `{file}`\n\n{begin}{table(['field', 'holds', 'meaning'], rows)}")
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
        parts.append(f"## dsnb {name}\n\n{paragraphs}\n\n{table(['argument or option', 'meaning'], rows)}")
    return "\n\n".join(parts)


def python_api() -> str:
    """Return every public name of dsnb, for autodoc."""
    parts = []
    for name in dsnb.__all__:
        thing = getattr(dsnb, name)
        target = thing.__name__ if isinstance(thing, ModuleType) else f"dsnb.{name}"
        options = "".join(f"   {option}\n" for option in API_OPTIONS.get(name, []))
        parts.append(f"```{{eval-rst}}\n.. auto{_kind(thing)}:: {target}\n{options}```")
    return "\n\n".join(parts)


def _kind(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return "module"
    if isinstance(thing, type):
        return "exception" if issubclass(thing, Exception) else "class"
    return "function"


API_OPTIONS = {
    "Experiment": [
        ":members: name, name_with_model, data_parallel, global_batch_size, tokens_per_step, hosts, from_namespace",
    ],
}
"""What autodoc is told about a name; the settings themselves are in a table of their own."""
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
    )
}
"""By the name that a page asks for them with: `{generated} run_columns`."""
