"""The section of a report that holds predictions beside what was measured: how good they are on these GPUs."""

import html
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.parity import FIGURES, Parity, errors, parity
from dsnb.prediction.accuracy import ALL
from dsnb.prediction.constants import FITTED_SETTINGS
from dsnb.prediction.traces import can_trace
from dsnb.render import palette
from dsnb.render.picture import PLAIN_TICKS, Picture, note
from dsnb.render.tables import MAX_ROWS, Html, to_html
from dsnb.runs.labels import METRIC_LABELS, count

WORDS = {"step_time": "step times", "peak_allocated": "peaks of allocated memory"}
TITLES = {"step_time": "step time", "peak_allocated": "memory"}
ERRORS = {"mean": ("mean error (%)", ".1f"), "worst": ("worst (%)", ".1f"), "bias": ("bias (%)", "+.1f")}
SHAPES = "osD^v<>Pp*"
FEW_STEPS = 10
"""A step time over fewer steps is uncertain itself."""


def section(runs: pd.DataFrame, trace: bool = False, link: str = "nvlink") -> list[Html | Picture]:
    """Return predictions beside measurements, as parts to display in turn; nothing without runs on a known GPU.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    trace
        Trace models that were not traced before, for their memory, which takes seconds each.
    link
        How GPUs are connected, as `dsnb.predict` takes it.
    """
    found = parity(runs, trace, link)
    return shown(found) if found else []


def shown(found: Parity) -> list[Html | Picture]:
    """Return the section for settings that were compared."""
    table = errors(found.table)
    said = [_verdict(table), _method(found), _out_of_memory(found.table), _short(found.table), _untraced(found)]
    paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in said if text)
    parts: list[Html | Picture] = [Html(f"<h2>Predicted and measured</h2>{paragraphs}")]
    if not any(table[f"{name}_settings"].any() for name in FIGURES):
        return parts
    listing = to_html(_settings(found.table), text_columns=("strategy",))
    summary = f"<summary>Every setting beside its prediction ({len(found.table):,})</summary>"
    more = f"<p>The {MAX_ROWS} with the largest errors.</p>" if len(found.table) > MAX_ROWS else ""
    details = Html(f"<details>{summary}{more}{listing}</details>")
    return [*parts, to_html(_by_strategy(table)), figure(found.table), details]


def figure(table: pd.DataFrame) -> Picture:
    """Draw predicted against measured figures, a mark for each setting of `dsnb.analysis.parity.Parity.table`."""
    kinds = sorted(set(table["kind"]))

    def draw() -> Figure:
        drawn, axes = plt.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
        for axis, name in zip(axes, FIGURES, strict=True):
            _parity_plot(axis, table, name, kinds)
        named = [axis.get_legend_handles_labels() for axis in axes]
        entries = {label: handle for one in named for handle, label in zip(*one, strict=True)}
        if entries:
            shown_at = {"loc": "outside lower center", "ncols": 5, "frameon": False, "fontsize": "small"}
            drawn.legend(entries.values(), entries, **shown_at)
        return drawn

    about = "Predicted against measured step time and peak memory, a mark for each setting, on the diagonal if equal"
    return Picture(draw, f"{about}: {_verdict(errors(table)).removeprefix('Here, ')}")


def _parity_plot(axis: Axes, table: pd.DataFrame, name: str, kinds: list[str]) -> None:
    label = METRIC_LABELS[FIGURES[name]]
    known = table[table[f"{name}_error_pct"].notna()]
    axis.set(xlabel=f"measured {label.heading}", ylabel=f"predicted {label.heading}")
    if known.empty:
        axis.set(xticks=[], yticks=[])
        note(axis, "nothing to compare")
        return
    pairs = known[[FIGURES[name], f"predicted_{FIGURES[name]}"]] * label.factor
    ends = pairs.min(axis=None) / 1.25, pairs.max(axis=None) * 1.25
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.plot(ends, ends, color=palette.GREY, linewidth=1)
    for number, kind in enumerate(kinds):
        own = pairs[known["kind"] == kind]
        style: dict[str, Any] = {"marker": SHAPES[number % len(SHAPES)], "s": 30, "facecolors": "none"}
        colour = palette.SERIES[number % len(palette.SERIES)]
        axis.scatter(*(own[column] for column in own), edgecolors=colour, label=kind if len(own) else None, **style)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(PLAIN_TICKS)
        side.set_minor_formatter(plt.NullFormatter())
    axis.grid(visible=True, axis="both")


def _verdict(table: pd.DataFrame) -> str:
    """Return in one sentence how good the predictions are."""
    every = table.loc[ALL]
    said = [
        f"{WORDS[name]} are predicted with a mean error of {every[f'{name}_mean_pct']:.1f} % and at worst "
        f"{every[f'{name}_worst_pct']:.1f} % ({count(every[f'{name}_settings'], 'setting')})"
        for name in FIGURES
        if every[f"{name}_settings"]
    ]
    return f"Here, {', '.join(said)}." if said else ""


def _method(found: Parity) -> str:
    """Return without what each step time was predicted, and what an error means."""
    sign = "Nothing is fitted to memory. An error or a bias above 0 means that too much was predicted."
    if found.table[[f"{name}_error_pct" for name in FIGURES]].isna().all(axis=None):
        return ""
    if len(found.table) < found.found:
        sign += f" {len(found.table):,} of {found.found:,} settings are compared."
    rest = {"model": "the other models", "setting": "the other settings"}.get(found.left_out)
    own = f"those of dsnb's runs on H200 ({FITTED_SETTINGS} settings)"
    if rest is None:
        return f"There is no other setting to fit the time model to: its constants are {own}. {sign}"
    start = own if found.starts_from_own else "some that none of these runs had a part in"
    return (
        f"Each step time is predicted without the runs of its own {found.left_out}: the constants of the time model "
        f"are fitted to {rest} here on the same GPU, starting from {start}. {sign}"
    )


def _out_of_memory(table: pd.DataFrame) -> str:
    """Return how many settings that ran out of memory, and that did not, are predicted not to fit."""
    known = table[table["fits"].notna()]
    ran, fits = known["ran"].astype(bool), known["fits"].astype(bool)
    if ran.all():
        return ""
    foretold, wrong = int((~fits[~ran]).sum()), int((~fits[ran]).sum())
    of_others = f"; of {ran.sum():,} that ran, {wrong} {_are(wrong)}" if ran.any() else ""
    bad = count(int((~ran).sum()), "setting")
    return f"Of {bad} that ran out of memory, {foretold} {_are(foretold)} predicted not to fit{of_others}."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _short(table: pd.DataFrame) -> str:
    few = int((table["timed_steps"] < FEW_STEPS)[table["step_time_error_pct"].notna()].sum())
    if not few:
        return ""
    were = "setting was" if few == 1 else "settings were"
    return f"{few:,} {were} timed over fewer than {FEW_STEPS} steps: part of the errors is that of the measurement."


def _untraced(found: Parity) -> str:
    """Return of how many settings the memory is not predicted, and what to do."""
    if not found.untraced:
        return ""
    whose = "its model was" if found.untraced == 1 else "their models were"
    how = "dsnb predict with their params file traces them, and the next report has it"
    missing = "torch or transformers, with which they are traced, is missing"
    return (
        f"The memory of {count(found.untraced, 'setting')} is not predicted: {whose} not traced before on this "
        f"machine; {how if can_trace() else missing}."
    )


def _by_strategy(table: pd.DataFrame) -> pd.DataFrame:
    """Format the errors of each kind of setting."""
    columns = {}
    for name, title in TITLES.items():
        if not table[f"{name}_settings"].any():
            continue
        columns[f"{title}: settings"] = [f"{number:,.0f}" for number in table[f"{name}_settings"]]
        for error, (words, form) in ERRORS.items():
            columns[f"{title}: {words}"] = _texts(table[f"{name}_{error}_pct"], form)
    return pd.DataFrame(columns, index=table.index)


def _settings(table: pd.DataFrame) -> pd.DataFrame:
    """Format every setting beside its prediction, the largest error first."""
    largest = table[[f"{name}_error_pct" for name in FIGURES]].abs().max(axis=1)
    rows = table.loc[largest.sort_values(ascending=False, na_position="last").index].head(MAX_ROWS)
    columns: dict[str, Any] = {"strategy": list(rows["kind"])}
    for name, column in FIGURES.items():
        label = METRIC_LABELS[column]
        for words, own in (("", column), ("predicted ", f"predicted_{column}")):
            columns[f"{words}{label.heading}"] = _texts(rows[own] * label.factor, f",.{label.digits}f")
        columns[f"error of {TITLES[name]} (%)"] = _texts(rows[f"{name}_error_pct"], "+.1f")
    return pd.DataFrame(columns, index=pd.Index(rows["experiment"], name="setting"))


def _texts(values: Iterable[float], form: str) -> list[str]:
    return ["" if pd.isna(value) else format(value, form) for value in values]
