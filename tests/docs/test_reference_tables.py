"""Whatever users can set, read or type has an entry with a meaning in the reference."""

import re

import pytest
import typer

import dsnb
from docs import reference_tables
from docs.code_blocks import ROOT
from docs.reference_tables import MissingMeaning
from dsnb.cli.app import app
from dsnb.results.runs.load import load_runs, load_steps
from dsnb.results.statistics.flags import flags
from dsnb.results.statistics.summary import summarize
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import GPU_COLUMNS, METRIC_LABELS, RUN_COLUMNS, Column

EXAMPLE = ROOT / "outputs" / "examples" / "quickstart"


def entries(markdown):
    """Return the cells of every row of a table by the first one."""
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1]
        for line in markdown.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in rows}


def test_every_setting_and_column_of_runs_has_a_meaning():
    settings = entries(reference_tables.training_settings()) | entries(
        reference_tables.supervision_settings()
    )
    assert list(settings) == list(Experiment.model_fields)
    assert settings["steps"] == ["`int`", "`20`", "Timed optimizer steps."]
    assert all(
        type_ and default and len(meaning) > 10 for type_, default, meaning in settings.values()
    )
    columns = entries(reference_tables.run_columns())
    assert list(columns) == [
        name for name in RUN_COLUMNS if name not in {*settings} - {"device", "deepspeed"}
    ]
    assert columns["samples_per_s"] == [
        "Samples/s. tokens_per_s / seq_len: sequences of all ranks."
    ]
    with pytest.raises(
        MissingMeaning, match="column odd has no meaning: describe it where it is defined"
    ):
        reference_tables.columns([Column("odd", "")])


def test_every_column_of_the_other_tables_has_a_meaning():
    runs = load_runs(EXAMPLE)
    assert list(runs.columns) == RUN_COLUMNS
    assert list(entries(reference_tables.step_columns())) == list(load_steps(EXAMPLE).columns)
    assert list(entries(reference_tables.gpu_columns())) == GPU_COLUMNS
    described = [
        *entries(reference_tables.comparison_columns()),
        "only_in",
    ]  # named in the text above the table
    assert described == list(dsnb.compare(runs, runs).columns)
    assert list(entries(reference_tables.flag_columns())) == list(
        flags(runs).columns[3:]
    )  # after the run's names
    text = reference_tables.summary_columns()
    for column in summarize(runs, metrics="all").columns:
        stem = re.sub(r"_(median|std|min|max|n)$", "", column)
        assert column in entries(text) or (stem in METRIC_LABELS and f"`{stem}`" in text), column


def test_every_command_and_option_has_a_meaning():
    text = reference_tables.command_line()
    for name, command in typer.main.get_command(app).commands.items():
        described = entries(text.split(f"## dsnb {name}\n")[1].split("\n## ")[0])
        for parameter in command.params:
            if parameter.name != "help":
                typed = (
                    parameter.opts[0]
                    if parameter.param_type_name == "option"
                    else parameter.metavar
                )
                (row,) = [
                    row
                    for form, row in described.items()
                    if re.search(rf"(^|, ){typed}( |$)", form)
                ]
                assert len(row[0]) > 5, f"dsnb {name} {parameter.opts[0]}"


def test_former_names_files_and_public_names_are_listed():
    text = reference_tables.former_names()
    assert "| setting | `hang_limit_s` | `step_timeout_s` |" in text
    assert "| column | `not_ok` | `n_failed` |" in text
    assert "| `result.json` | Status and summary, written last" in reference_tables.run_files()
    text = reference_tables.run_fields().split("### `nodes.json`\n")[1].split("\n### ")[0]
    assert list(entries(text)) == ["nodes", "differences"]
    pages = "\n".join(map(reference_tables.api, reference_tables.API))
    public = re.findall(r"^\.\. auto(\w+):: dsnb\.(\w+)$", pages, re.M)
    assert sorted(name for _, name in public) == sorted(dsnb.__all__)
    assert "| {py:obj}`dsnb.compare` | Compare " in reference_tables.python_api()
    assert {("class", "Experiment"), ("function", "launch"), ("exception", "SettingsError")} <= set(
        public
    )
