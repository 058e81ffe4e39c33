"""The section of a report that holds predictions beside what was measured: how good they are on these GPUs."""

import html

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.parity import FIGURES, MAX_SETTINGS, errors, parity
from dsnb.prediction.accuracy import ALL
from dsnb.prediction.step_time import FITTED_SETTINGS
from dsnb.prediction.traces import can_trace
from dsnb.render import palette
from dsnb.render.picture import PLAIN_TICKS, Picture, note, shared_legend
from dsnb.render.tables import MAX_ROWS, Html, format_column, to_html
from dsnb.runs.labels import METRIC_LABELS, count

WORDS = {"step_time": "step times", "peak_allocated": "peaks of allocated memory"}
TITLES = {"step_time": "step time", "peak_allocated": "memory"}
SHAPES = "osD^v<>Pp*"


def section(runs: pd.DataFrame, link: str = "nvlink") -> list[Html | Picture]:
    """Return predictions beside measurements, as parts to display in turn; nothing without runs on a known GPU.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    link
        How GPUs are connected, as `dsnb.predict` takes it.
    """
    table = parity(runs, link)
    if table is None:
        return []
    summary = errors(table)
    sentences = [_verdict(summary), _method(table), _out_of_memory(table), _untraced(table)]
    paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in sentences if text)
    parts: list[Html | Picture] = [Html(f"<h2>Predicted and measured</h2>{paragraphs}")]
    if not summary.loc[ALL, [f"{name}_settings" for name in FIGURES]].any():
        return parts
    largest_first = table[[f"{name}_error_pct" for name in FIGURES]].abs().max(axis=1).sort_values(ascending=False)
    listing = to_html(_settings(table.loc[largest_first.index].head(MAX_ROWS)), text_columns=("strategy",))
    title = f"<summary>Every setting beside its prediction ({len(table):,})</summary>"
    more = f"<p>The {MAX_ROWS} with the largest errors.</p>" if len(table) > MAX_ROWS else ""
    details = Html(f"<details>{title}{more}{listing}</details>")
    return [*parts, to_html(_by_strategy(summary)), figure(table), details]


def figure(table: pd.DataFrame) -> Picture:
    """Draw predicted against measured figures, a mark for each setting of `dsnb.analysis.parity.parity`."""

    def draw() -> Figure:
        drawn, axes = plt.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
        for axis, name in zip(axes, FIGURES, strict=True):
            _plot(axis, table, name)
        shared_legend(drawn, "lower center", columns=5)
        return drawn

    about = "Predicted against measured step time and peak memory, a mark for each setting, on the diagonal if equal"
    return Picture(draw, f"{about}: {_verdict(errors(table)).removeprefix('Here, ')}")


def _plot(axis: Axes, table: pd.DataFrame, name: str) -> None:
    label, columns = METRIC_LABELS[FIGURES[name]], [FIGURES[name], f"predicted_{FIGURES[name]}"]
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
        axis.scatter(measured, predicted, s=30, marker=shape, facecolors="none", edgecolors=colour, label=kind)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(PLAIN_TICKS)
        side.set_minor_formatter(plt.NullFormatter())
    axis.grid(visible=True, axis="both")


def _verdict(summary: pd.DataFrame) -> str:
    """Return in one sentence how good the predictions are."""
    every = summary.loc[ALL]
    parts = [
        f"{WORDS[name]} are predicted with a mean error of {every[f'{name}_mean_pct']:.1f} % and at worst "
        f"{every[f'{name}_worst_pct']:.1f} % ({count(every[f'{name}_settings'], 'setting')})"
        for name in FIGURES
        if every[f"{name}_settings"]
    ]
    return f"Here, {', '.join(parts)}." if parts else ""


def _method(table: pd.DataFrame) -> str:
    """Return without what each step time was predicted, and what an error means."""
    if table[[f"{name}_error_pct" for name in FIGURES]].isna().all(axis=None):
        return ""
    timed = table[table["predicted_step_time_s"].notna()]
    own = f"those of dsnb's runs on H200 ({FITTED_SETTINGS} settings)"
    text = f"There is no other setting to fit the time model to: its constants are {own}."
    if len(timed) > 1:
        left_out = "model" if timed["model"].nunique() > 1 else "setting"
        text = (
            f"Each step time is predicted without the runs of its own {left_out}: the constants of the time model are "
            f"fitted to the other {left_out}s here on the same GPU, starting from {own}."
        )
    limit = f" At most {MAX_SETTINGS} settings are compared." if len(table) == MAX_SETTINGS else ""
    return f"{text} Nothing is fitted to memory. An error or a bias above 0 means that too much was predicted.{limit}"


def _out_of_memory(table: pd.DataFrame) -> str:
    """Return how many settings that ran out of memory, and that did not, are predicted not to fit."""
    known = table[table["fits"].notna()]
    ran, fits = known["ran"].astype(bool), known["fits"].astype(bool)
    if ran.all():
        return ""
    too_large, wrong = int((~fits[~ran]).sum()), int((~fits[ran]).sum())
    of_others = f"; of {ran.sum():,} that ran, {wrong} {_are(wrong)}" if ran.any() else ""
    return (
        f"Of {count(int((~ran).sum()), 'setting')} that ran out of memory, {too_large} {_are(too_large)} predicted not "
        f"to fit{of_others}."
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _untraced(table: pd.DataFrame) -> str:
    """Return of how many settings the memory is not predicted, and what to do."""
    untraced = int((table["has_rules"] & table["predicted_peak_allocated_gib"].isna()).sum())
    if not untraced:
        return ""
    whose = "its model was" if untraced == 1 else "their models were"
    how = "dsnb predict with their params file traces them, and the next report has it"
    missing = "torch or transformers, with which they are traced, is missing"
    return (
        f"The memory of {count(untraced, 'setting')} is not predicted: {whose} not traced before on this "
        f"machine; {how if can_trace() else missing}."
    )


def _by_strategy(summary: pd.DataFrame) -> pd.DataFrame:
    """Format the errors of each kind of setting."""
    columns = {}
    for name, title in TITLES.items():
        if summary[f"{name}_settings"].any():
            columns[f"{title}: settings"] = format_column(summary[f"{name}_settings"], ",.0f")
            columns[f"{title}: mean error (%)"] = format_column(summary[f"{name}_mean_pct"], ".1f")
            columns[f"{title}: worst (%)"] = format_column(summary[f"{name}_worst_pct"], ".1f")
            columns[f"{title}: bias (%)"] = format_column(summary[f"{name}_bias_pct"], "+.1f")
    return pd.DataFrame(columns, index=summary.index)


def _settings(table: pd.DataFrame) -> pd.DataFrame:
    """Format settings beside their predictions."""
    columns = {"strategy": list(table["kind"])}
    for name, column in FIGURES.items():
        label = METRIC_LABELS[column]
        form = f",.{label.digits}f"
        columns[label.heading] = format_column(table[column] * label.factor, form)
        columns[f"predicted {label.heading}"] = format_column(table[f"predicted_{column}"] * label.factor, form)
        columns[f"error of {TITLES[name]} (%)"] = format_column(table[f"{name}_error_pct"], "+.1f")
    return pd.DataFrame(columns, index=pd.Index(table["experiment"], name="setting"))
