"""What one change costs: a table of the settings that differ from the best one in a single choice."""

import html

import pandas as pd

from dsnb.analysis.choices import varying, with_choices
from dsnb.analysis.comparisons import effects
from dsnb.analysis.decide import memory_figure
from dsnb.analysis.intervals import RELEVANCE
from dsnb.analysis.words import axis_title
from dsnb.runs import labels, setting_words

RATE, RATE_OF_ALL = "tokens_per_s_per_gpu", "tokens_per_s"


def rate(runs: pd.DataFrame) -> str:
    """Return the figure of speed to compare runs by: per GPU, but of all ranks on CPUs, which share the same cores."""
    on_cpu = "device" in runs and len(runs) and bool((runs["device"].map(labels.text) == "cpu").all())
    return RATE_OF_ALL if on_cpu else RATE


def table(runs: pd.DataFrame, base: str, relevance: float = RELEVANCE) -> str:
    """Return the table as HTML; empty if no setting differs from the base in one choice alone.

    Parameters
    ----------
    runs
        Runs of one task.
    base
        The experiment to compare with.
    relevance
        Smallest change that matters: 0.02 is 2 %.
    """
    names = varying(with_choices(runs))
    memory = memory_figure(runs)
    figures = [name for name in (rate(runs), memory) if name and name in runs]
    found = effects(runs, base, names, figures, relevance)
    if found.empty:
        return ""
    unit = setting_words.unit(runs[runs["experiment"] == base].iloc[0].to_dict())
    titles = [labels.METRIC_LABELS[name].title.replace("GPU", unit) for name in figures]
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in ("one change", *titles))
    rows = [_row(row, figures, unit) for row in found.to_dict("records")]
    return f'<table class="dsnb-differs"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _row(row: dict[str, object], figures: list[str], unit: str) -> str:
    before, after = labels.text(row["before"]), labels.text(row["after"])
    change = f"{axis_title(str(row['axis']), unit)}: {before} → {after}"
    if failed := int(str(row["n_failed"])):
        change += f" ({failed} of {labels.count(int(str(row['n'])) + failed, 'run')} not ok)"
    cells = "".join(f"<td>{html.escape(str(row[f'{name}_words']) if row['n'] else '')}</td>" for name in figures)
    return f'<tr><th scope="row">{html.escape(change)}</th>{cells}</tr>'
