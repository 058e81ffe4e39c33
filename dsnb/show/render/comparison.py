"""The sections of a report that compare its runs: with an earlier sweep, and with their predictions."""

import html
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.prediction.accuracy import ALL
from dsnb.prediction.predicted import COMPARED, MAX_SETTINGS, errors, parity
from dsnb.prediction.step_time import FITTED_SETTINGS
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS, count
from dsnb.results.runs.load import load_runs
from dsnb.results.runs.names import displayable
from dsnb.results.statistics.comparisons import TOGETHER, VALUES, compare
from dsnb.results.statistics.flags import changed_conditions
from dsnb.results.statistics.intervals import CONFIDENCE, Verdict, hosts
from dsnb.settings.records.columns import ENVIRONMENT
from dsnb.show.render import palette
from dsnb.show.render.picture import PLAIN_TICKS, Picture, note, shared_legend
from dsnb.show.render.tables import (
    Html,
    bullet_list,
    format_column,
    setting_text,
    subheading,
    to_html,
)

RATE = "tokens_per_s"
OTHER_HOSTS = (
    "The two sets ran on different hosts, so a difference may come from the hosts: other hosts of the same kind may "
    "differ by more or less."
)
WORDS = {"step_time": "step times", "peak_allocated": "peaks of allocated memory"}
TITLES = {"step_time": "step time", "peak_allocated": "memory"}
ERRORS = {
    "settings": ("settings", ",.0f"),
    "mean_pct": ("mean error (%)", ".1f"),
    "worst_pct": ("worst (%)", ".1f"),
    "bias_pct": ("bias (%)", "+.1f"),
}
"""Columns of errors, with their titles and formats."""
SIGNS = {"same": "", "better": "▲ better, ", "worse": "▼ worse, "}
SHAPES = "osD^v<>Pp*"


def with_earlier(runs: pd.DataFrame, folder: str | Path) -> list[Html]:
    """Compare runs with those of an earlier folder, as parts to display in turn; empty without a folder."""
    if folder:
        return compared(load_runs(folder), runs, Path(folder).absolute().name)
    return []


def compared(before: pd.DataFrame, after: pd.DataFrame, name: str) -> list[Html]:
    """Compare two sets of runs; `name` is the name of the earlier one."""
    title = html.escape(displayable(name))
    parts = [Html(f"<h2>Compared with <code>{title}</code></h2>"), environments(before, after)]
    places = [set(hosts(runs)) for runs in (before, after)]
    other_hosts = places[0].isdisjoint(places[1]) and None not in set.union(*places)
    if other_hosts:
        parts.append(Html(f"<p>{OTHER_HOSTS}</p>"))
    measured = [
        name for name in (RATE, *MEMORY) if is_known(before, name) and is_known(after, name)
    ]
    if not measured:
        return [*parts, Html("<p>Neither speed nor memory was measured in both.</p>")]
    # Of the figures of memory, the most informative one.
    shown = measured[: 2 if RATE in measured else 1]
    changes = {figure: compare(before, after, figure, hosts_alike=other_hosts) for figure in shown}
    for figure, table in changes.items():
        parts.append(_changes(table[table["only_in"] == ""], figure))
    only_in = changes[shown[0]]["only_in"]
    sentences = []
    for when in ("before", "after"):
        if (only_in == when).any():
            sentences.append(f"Only {when}: {', '.join(map(str, only_in.index[only_in == when]))}.")
    if sentences:
        parts.append(bullet_list(sentences))
    if (only_in == "").any():
        errors_pct = f"{100 * (1 - CONFIDENCE):.3g}"
        equal = f"where all settings are equal, any two are called different for at most about {errors_pct} % of tasks."
        parts.append(Html(f"<p>{html.escape(f'{VALUES} {TOGETHER}: {equal}')}</p>"))
    return parts


def is_known(runs: pd.DataFrame, name: str) -> bool:
    """Return whether any run has a value of a column."""
    return name in runs and bool(runs[name].notna().any())


def environments(before: pd.DataFrame, after: pd.DataFrame) -> Html:
    """Return the differences in recorded hardware and software; a sentence if there are none."""
    names = [name for name in (*ENVIRONMENT, "inputs") if name != "date_utc"]
    texts = {"before": _values(before, names), "after": _values(after, names)}
    table = pd.DataFrame(texts).rename_axis("environment")
    table = table[table["before"] != table["after"]].replace("", "unknown")
    if table.empty:
        return Html(
            "<p>Both ran in the same recorded environment: hosts, GPUs, drivers and versions.</p>"
        )
    sentences = changed_conditions(before, after)
    listed = bullet_list(sentences) if sentences else ""
    return Html(f"{to_html(table, text_columns=('before', 'after'))}{listed}")


def _values(runs: pd.DataFrame, names: list[str]) -> dict[str, str]:
    """Return the distinct values of columns as text."""
    known = runs.reindex(columns=names)
    return {
        name: ", ".join(
            sorted(setting_text(value) or "none" for value in known[name].dropna().unique())
        )
        for name in names
    }


def _changes(table: pd.DataFrame, figure: str) -> Html:
    """Return a figure of each setting before and after, with the verdict."""
    label = METRIC_LABELS[figure]
    if table.empty:
        return Html(f"<p>{html.escape(label.title)}: no setting is in both.</p>")
    form = f",.{label.digits}f"
    shown = pd.DataFrame(
        {
            "change": [_change(row) for row in table.to_dict("records")],
            "before": format_column(table["base_value"] * label.factor, form),
            "after": format_column(table["value"] * label.factor, form),
            "runs before": list(map(_runs, table["base_n"], table["base_n_failed"])),
            "runs after": list(map(_runs, table["n"], table["n_failed"])),
        },
        index=table.index.rename("setting"),
    )
    listing = to_html(shown, text_columns=("change",), max_rows=len(shown))
    return Html(f'<div class="compared">{subheading(label.heading)}{listing}</div>')


def _runs(number: int, failed: int) -> str:
    if failed:
        return f"{number}, {failed} not ok"
    return str(number)


def _change(row: dict[Any, Any]) -> Html:
    """Return a verdict with a sign and a word for readers who do not see its colour."""
    kind = "same"
    if row["verdict"] == Verdict.LIKELY and row["better"] is not None:
        kind = "better" if row["better"] else "worse"
    remark = f" ({row['note']})" if row["note"] else ""
    text = html.escape(f"{SIGNS[kind]}{row['words']}{remark}")
    return Html(f'<span class="{kind}">{text}</span>')


def with_predictions(runs: pd.DataFrame, link: str = "nvlink") -> list[Html | Picture]:
    """Compare runs with their predictions, as parts to display in turn; empty without runs on a known GPU.

    `link` is how GPUs are connected, as `dsnb.predict` takes it.
    """
    table = parity(runs, link)
    if table is None:
        return []
    summary = errors(table)
    paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in _sentences(table, summary))
    title = Html(f"<h2>Predicted and measured</h2>{paragraphs}")
    if not summary.loc[ALL, [f"{name}_settings" for name in COMPARED]].any():
        return [title]
    return [title, to_html(_by_kind(summary)), figure(table)]


def figure(table: pd.DataFrame) -> Picture:
    """Draw predicted against measured figures, a mark for each setting of `dsnb.prediction.predicted.parity`."""

    def draw() -> Figure:
        drawn, axes = plt.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
        for axis, name in zip(axes, COMPARED.values(), strict=True):
            _plot(axis, table, name)
        shared_legend(drawn, "lower center", columns=5)
        return drawn

    about = "Predicted against measured step time and peak memory, a mark for each setting, on the diagonal if equal"
    return Picture(draw, f"{about}: {_verdict(errors(table)).removeprefix('Here, ')}")


def _plot(axis: Axes, table: pd.DataFrame, measured: str) -> None:
    label = METRIC_LABELS[measured]
    predicted = f"predicted_{measured}"
    axis.set(xlabel=f"measured {label.heading}", ylabel=f"predicted {label.heading}")
    pairs = table[[measured, predicted]].dropna() * label.factor
    if pairs.empty:
        note(axis, "nothing to compare")
        return
    ends = (pairs.min(axis=None) / 1.25, pairs.max(axis=None) * 1.25)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.plot(ends, ends, color=palette.GREY, linewidth=1)
    # The marks of a kind are the same in both figures.
    looks = zip(sorted(set(table["kind"])), cycle(palette.SERIES), cycle(SHAPES), strict=False)
    for kind, colour, shape in looks:
        of_kind = pairs[table["kind"].loc[pairs.index] == kind]
        axis.scatter(
            measured,
            predicted,
            data=of_kind,
            s=30,
            marker=shape,
            facecolors="none",
            edgecolors=colour,
            label=kind,
        )
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(PLAIN_TICKS)
        side.set_minor_formatter(plt.NullFormatter())
    axis.grid(visible=True, axis="both")


def _verdict(summary: pd.DataFrame) -> str:
    """Return the mean and worst errors of predictions in one sentence."""
    every = summary.loc[ALL]
    parts = [
        f"{words} are predicted with a mean error of {every[f'{name}_mean_pct']:.1f} % and at worst "
        f"{every[f'{name}_worst_pct']:.1f} % ({count(every[f'{name}_settings'], 'setting')})"
        for name, words in WORDS.items()
        if every[f"{name}_settings"]
    ]
    return f"Here, {', '.join(parts)}." if parts else ""


def _sentences(table: pd.DataFrame, summary: pd.DataFrame) -> Iterator[str]:
    """Yield the errors of predictions, how they were made, and how many failures for lack of memory they predict."""
    verdict = _verdict(summary)
    if verdict:
        yield verdict
    if table[[f"{name}_error_pct" for name in COMPARED]].notna().any(axis=None):
        timed = table[table["predicted_step_time_mean_s"].notna()]
        left_out = "setting"
        if timed["model"].nunique() > 1:
            left_out = "model"
        yield (
            f"Each step time is predicted without the runs of the same {left_out}: the constants of the time model "
            f"come from dsnb's runs on H200 ({FITTED_SETTINGS} settings) and are fitted to the other {left_out}s here "
            "on the same GPU, if there are any. Nothing is fitted to memory. An error or bias above 0 means that the "
            f"prediction was too high. At most {MAX_SETTINGS} settings are compared."
        )
    judged = table[table["fits"].notna()]
    ran = judged["ran"].astype(bool)
    refused = ~judged["fits"].astype(bool)
    if not ran.all():
        others = ""
        if ran.any():
            others = f", {refused[ran].sum():,} of {ran.sum():,} that ran"
        failed = count((~ran).sum(), "setting")
        yield f"Predicted not to fit: {refused[~ran].sum():,} of {failed} that ran out of memory{others}."
    untraced = int((table["has_rules"] & table["predicted_peak_allocated_gib"].isna()).sum())
    if untraced:
        yield (
            f"The memory of {count(untraced, 'setting')} is not predicted: this machine has no trace of the model. "
            "Run dsnb predict with a params file to make one, which needs torch and transformers."
        )


def _by_kind(summary: pd.DataFrame) -> pd.DataFrame:
    """Format the errors by kind of setting."""
    columns = {}
    for name, title in TITLES.items():
        if summary[f"{name}_settings"].any():
            for column, (words, form) in ERRORS.items():
                columns[f"{title}: {words}"] = format_column(summary[f"{name}_{column}"], form)
    return pd.DataFrame(columns, index=summary.index)
