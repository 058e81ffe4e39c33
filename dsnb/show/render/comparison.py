"""The sections of a report that compare its runs: with an earlier sweep, and with their predictions."""

import html
from collections.abc import Iterator
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
from dsnb.show.render.tables import Html, bullet_list, format_column, subheading, to_html

RATE = "tokens_per_s"
OTHER_HOSTS = (
    "The two sets ran on different hosts, so a difference may come from the hosts: other hosts of the same kind may "
    "differ by more or less."
)
WORDS = {"step_time": "step times", "peak_allocated": "peaks of allocated memory"}
TITLES = {"step_time": "step time", "peak_allocated": "memory"}
SHAPES = "osD^v<>Pp*"


def with_earlier(runs: pd.DataFrame, folder: str | Path) -> list[Html]:
    """Compare runs with those of an earlier folder, as parts to display in turn; empty without a folder."""
    return compared(load_runs(folder), runs, Path(folder).absolute().name) if folder else []


def compared(before: pd.DataFrame, after: pd.DataFrame, name: str) -> list[Html]:
    """Compare two sets of runs; `name` is the name of the earlier one."""
    title = html.escape(displayable(name))
    parts = [Html(f"<h2>Compared with <code>{title}</code></h2>"), environments(before, after)]
    other_hosts = set(hosts(before)).isdisjoint(hosts(after)) and None not in hosts(before) + hosts(
        after
    )
    parts += [Html(f"<p>{OTHER_HOSTS}</p>")] if other_hosts else []
    both = [
        name
        for name in (RATE, *MEMORY)
        if all(name in runs and runs[name].notna().any() for runs in (before, after))
    ]
    measured = both[: 2 if RATE in both else 1]  # of the figures of memory the most informative one
    changes = {name: compare(before, after, name, hosts_alike=other_hosts) for name in measured}
    if not changes:
        return [*parts, Html("<p>Neither speed nor memory was measured in both.</p>")]
    parts += [_changes(table[table["only_in"] == ""], name) for name, table in changes.items()]
    first = next(iter(changes.values()))
    only_in = {when: first.index[first["only_in"] == when] for when in ("before", "after")}
    sentences = [
        f"Only {when}: {', '.join(map(str, names))}."
        for when, names in only_in.items()
        if len(names)
    ]
    parts += [bullet_list(sentences)] if sentences else []
    if (first["only_in"] != "").all():
        return parts
    errs_pct = f"{100 * (1 - CONFIDENCE):.3g}"
    equal = f"where all settings are equal, any two are called different for at most about {errs_pct} % of tasks."
    return [*parts, Html(f"<p>{html.escape(f'{VALUES} {TOGETHER}: {equal}')}</p>")]


def environments(before: pd.DataFrame, after: pd.DataFrame) -> Html:
    """Return the differences in recorded hardware and software; a sentence if there are none."""
    rows = {}
    for name in (*ENVIRONMENT, "inputs"):
        values = [_values(runs, name) for runs in (before, after)]
        if name != "date_utc" and values[0] != values[1]:
            rows[name] = [", ".join(texts) or "unknown" for texts in values]
    if not rows:
        return Html(
            "<p>Both ran in the same recorded environment: hosts, GPUs, drivers and versions.</p>"
        )
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after"]).rename_axis(
        "environment"
    )
    sentences = changed_conditions(before, after)
    return Html(
        f"{to_html(table, text_columns=('before', 'after'))}{bullet_list(sentences) if sentences else ''}"
    )


def _values(runs: pd.DataFrame, name: str) -> list[str]:
    values = runs[name].dropna().unique() if name in runs else []
    return sorted(
        f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in values
    )


def _changes(table: pd.DataFrame, figure: str) -> Html:
    """Return a figure of each setting before and after, with the verdict."""
    label = METRIC_LABELS[figure]
    if table.empty:
        return Html(f"<p>{html.escape(label.title)}: no setting is in both.</p>")
    form, rows = f",.{label.digits}f", table.to_dict("records")
    shown = pd.DataFrame(
        {
            "change": [_change(row) for row in rows],
            "before": format_column(table["base_value"] * label.factor, form),
            "after": format_column(table["value"] * label.factor, form),
            "runs before": [_runs(row["base_n"], row["base_n_failed"]) for row in rows],
            "runs after": [_runs(row["n"], row["n_failed"]) for row in rows],
        },
        index=table.index.rename("setting"),
    )
    listing = to_html(shown, text_columns=("change",), max_rows=len(shown))
    return Html(f'<div class="compared">{subheading(label.heading)}{listing}</div>')


def _runs(number: int, failed: int) -> str:
    return f"{number}, {failed} not ok" if failed else str(number)


def _change(row: dict[Any, Any]) -> Html:
    """Return a verdict with a sign and a word for readers who do not see its colour."""
    kind, sign = "same", ""
    if row["verdict"] == Verdict.LIKELY and row["better"] is not None:
        kind, sign = ("better", "▲ better, ") if row["better"] else ("worse", "▼ worse, ")
    remark = f" ({row['note']})" if row["note"] else ""
    text = html.escape(f"{sign}{row['words']}{remark}")
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
    parts: list[Html | Picture] = [Html(f"<h2>Predicted and measured</h2>{paragraphs}")]
    if not summary.loc[ALL, [f"{name}_settings" for name in COMPARED]].any():
        return parts
    return [*parts, to_html(_by_kind(summary)), figure(table)]


def figure(table: pd.DataFrame) -> Picture:
    """Draw predicted against measured figures, a mark for each setting of `dsnb.prediction.predicted.parity`."""

    def draw() -> Figure:
        drawn, axes = plt.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
        for axis, name in zip(axes, COMPARED, strict=True):
            _plot(axis, table, name)
        shared_legend(drawn, "lower center", columns=5)
        return drawn

    about = "Predicted against measured step time and peak memory, a mark for each setting, on the diagonal if equal"
    return Picture(draw, f"{about}: {_verdict(errors(table)).removeprefix('Here, ')}")


def _plot(axis: Axes, table: pd.DataFrame, name: str) -> None:
    label, columns = METRIC_LABELS[COMPARED[name]], [COMPARED[name], f"predicted_{COMPARED[name]}"]
    axis.set(xlabel=f"measured {label.heading}", ylabel=f"predicted {label.heading}")
    pairs = table[columns].dropna() * label.factor
    if pairs.empty:
        note(axis, "nothing to compare")
        return
    ends = pairs.min(axis=None) / 1.25, pairs.max(axis=None) * 1.25
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.plot(ends, ends, color=palette.GREY, linewidth=1)
    for number, kind in enumerate(sorted(set(table["kind"]))):
        of_kind = pairs[table["kind"].loc[pairs.index] == kind]
        colour, shape = palette.SERIES[number % len(palette.SERIES)], SHAPES[number % len(SHAPES)]
        measured, predicted = (of_kind[name] for name in columns)
        axis.scatter(
            measured,
            predicted,
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
    if verdict := _verdict(summary):
        yield verdict
    if table[[f"{name}_error_pct" for name in COMPARED]].notna().any(axis=None):
        timed = table[table["predicted_step_time_mean_s"].notna()]
        left_out = "model" if timed["model"].nunique() > 1 else "setting"
        yield (
            f"Each step time is predicted without the runs of the same {left_out}: the constants of the time model "
            f"come from dsnb's runs on H200 ({FITTED_SETTINGS} settings) and are fitted to the other {left_out}s here "
            "on the same GPU, if there are any. Nothing is fitted to memory. An error or bias above 0 means that the "
            f"prediction was too high. At most {MAX_SETTINGS} settings are compared."
        )
    judged = table[table["fits"].notna()]
    ran, fits = judged["ran"].astype(bool), judged["fits"].astype(bool)
    if not ran.all():
        others = f", {(~fits[ran]).sum():,} of {ran.sum():,} that ran" if ran.any() else ""
        failed = count((~ran).sum(), "setting")
        yield f"Predicted not to fit: {(~fits[~ran]).sum():,} of {failed} that ran out of memory{others}."
    if untraced := int((table["has_rules"] & table["predicted_peak_allocated_gib"].isna()).sum()):
        yield (
            f"The memory of {count(untraced, 'setting')} is not predicted: this machine has no trace of the model. "
            "Run dsnb predict with a params file to make one, which needs torch and transformers."
        )


def _by_kind(summary: pd.DataFrame) -> pd.DataFrame:
    """Format the errors by kind of setting."""
    columns = {}
    for name, title in TITLES.items():
        if summary[f"{name}_settings"].any():
            columns[f"{title}: settings"] = format_column(summary[f"{name}_settings"], ",.0f")
            columns[f"{title}: mean error (%)"] = format_column(summary[f"{name}_mean_pct"], ".1f")
            columns[f"{title}: worst (%)"] = format_column(summary[f"{name}_worst_pct"], ".1f")
            columns[f"{title}: bias (%)"] = format_column(summary[f"{name}_bias_pct"], "+.1f")
    return pd.DataFrame(columns, index=summary.index)
