"""Figures of runs: speed, step time, memory and utilization by setting, losses, and the parts of one step.

The spread between repeats is drawn as the runs themselves and a line from the lowest to the highest: three repeats are
too few for an error bar.
"""

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from dsnb.render import palette
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.labels import MEMORY, METRIC_LABELS, Metric
from dsnb.runs.load import load_steps

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": palette.GRID,
    "axes.edgecolor": palette.GREY,
    "axes.labelcolor": palette.INK,
    "xtick.color": palette.SOFT_INK,
    "ytick.color": palette.SOFT_INK,
    "font.family": "sans-serif",
}
PIXELS_PER_INCH = 180
PLAIN_TICKS = StrMethodFormatter("{x:,.10g}")
"""Ticks as plain numbers with thousands separators, without an offset or a power of ten beside the axis."""


class Picture:
    """A figure that notebooks and reports display as an image with a description."""

    def __init__(self, draw: Callable[[], Figure], description: str) -> None:
        with plt.rc_context(STYLE):
            self.figure = draw()
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
        plt.close(self.figure)
        self.png, self.description = _compressed(buffer), description

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        width = int(self.figure.get_figwidth() * 100)
        return f'<img alt="{html.escape(self.description)}" width="{width}" src="data:image/png;base64,{data}">'


def _compressed(png: io.BytesIO) -> bytes:
    """Reduce a PNG to 64 colours: a third of the size, and no visible difference in line drawings."""
    from PIL import Image

    compressed = io.BytesIO()
    Image.open(png).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(compressed, format="png", optimize=True)
    return compressed.getvalue()


def note(axis: Axes, text: str) -> None:
    """Write a sentence into the middle of axes that have nothing to draw."""
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, color=palette.SOFT_INK)


def overview(runs: pd.DataFrame) -> Picture:
    """Draw throughput, step time, memory and utilization against the ZeRO stage, by precision.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; only ok runs are drawn.
    """
    ok = runs[runs["status"] == "ok"]
    memory = next((name for name in MEMORY if ok[name].notna().any()), MEMORY[-1])
    metrics = ["tokens_per_s_per_gpu", "step_time_s", memory, "gpu_util_pct"]

    def draw() -> Figure:
        figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
        for axis, metric in zip(axes.flat, metrics, strict=True):
            plot_by_stage(ok, metric, axis)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        for axis in axes.flat:
            if axis.get_legend():
                axis.get_legend().remove()
        if handles:
            figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
        return figure

    return Picture(draw, "Throughput, step time, memory and utilization by ZeRO stage and precision")


def plot_by_stage(ok: pd.DataFrame, metric: str, axis: Axes) -> None:
    """Draw one metric of ok runs against the ZeRO stage: medians as bars, the range as a line, every run as a dot."""
    label = METRIC_LABELS[metric]
    axis.set(xlabel="ZeRO stage", ylabel=label.heading)
    known = ok[ok["precision"].isin(list(palette.PRECISIONS))].dropna(subset=[metric, "zero_stage"])
    if known.empty:
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        note(axis, "no run succeeded" if ok.empty else "no run measured it")
        return
    precisions = [name for name in palette.PRECISIONS if name in set(known["precision"])]
    shared = {
        "x": known["zero_stage"], "y": known[metric] * label.factor, "hue": known["precision"],
        "hue_order": precisions, "palette": palette.PRECISIONS, "ax": axis,
    }  # fmt: skip
    range_line = {"linewidth": 1.3, "color": palette.INK}
    sns.barplot(**shared, estimator="median", errorbar=("pi", 100), alpha=0.55, err_kws=range_line)
    sns.stripplot(**shared, dodge=True, size=4, linewidth=0.6, edgecolor="white", legend=False)
    axis.set(xlabel="ZeRO stage", ylabel=label.heading)
    axis.yaxis.set_major_formatter(PLAIN_TICKS)


def losses(steps: pd.DataFrame, runs: pd.DataFrame) -> Picture:
    """Draw the median loss of ok runs over their optimizer steps, by precision and ZeRO stage.

    Parameters
    ----------
    steps, runs
        As `dsnb.load_steps` and `dsnb.load_runs` return them, for runs of one variant (`summary.variants`).
    """
    keys = ["sweep", "experiment", "repeat"]
    ok = runs[runs["status"] == "ok"]
    known = ok[ok["precision"].isin(list(palette.PRECISIONS))].dropna(subset=["zero_stage"])
    table = steps.dropna(subset=["loss"]).merge(known[[*keys, "zero_stage", "precision"]], on=keys)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
        if table.empty:
            axis.set_axis_off()
            note(axis, "no run recorded a loss")
            return figure
        sns.lineplot(
            data=table.rename(columns={"zero_stage": "ZeRO stage"}),
            x="step",
            y="loss",
            hue="precision",
            style="ZeRO stage",
            estimator="median",
            errorbar=None,
            palette=palette.PRECISIONS,
            hue_order=[name for name in palette.PRECISIONS if name in set(table["precision"])],
            linewidth=1.4,
            ax=axis,
        )
        axis.set(xlabel="optimizer step", ylabel="loss")
        sns.move_legend(axis, "upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return figure

    return Picture(draw, "Loss by optimizer step for every experiment")


def run_steps(run_dir: str | Path) -> Picture:
    """Draw loss and step time of one run by step, with the warm-up shaded."""
    steps = load_steps(run_dir)

    def draw() -> Figure:
        figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
        warm = steps[steps["phase"] == "warmup"]["step"].max()
        for axis, column in zip(axes, ("loss", "step_time_s"), strict=True):
            label = METRIC_LABELS.get(column, Metric("loss"))
            axis.set(xlabel="optimizer step", ylabel=label.heading)
            axis.yaxis.set_major_formatter(PLAIN_TICKS)
            if steps[column].notna().any():
                axis.plot(steps["step"], steps[column] * label.factor, color=palette.BLUE, linewidth=1.4)
            else:
                axis.set(xticks=[], yticks=[])
                note(axis, "no step was recorded")
            if pd.notna(warm):
                axis.axvspan(0.5, warm + 0.5, color=palette.GREY, alpha=0.15, label="warm-up")
        if pd.notna(warm):
            axes[0].legend(frameon=False)
        return figure

    return Picture(draw, "Loss and step time of one run by optimizer step")


def step_parts(run_dir: str | Path) -> Picture | None:
    """Draw the parts of one step of a profiled run as one bar; None if they were not measured.

    Communication overlaps with the parts and is measured in another step, so it is in the label, not in the bar.
    """
    profile = record_schema.read(RunPaths(Path(run_dir)).profile) or {}
    parts_s = {name: profile.get(f"{name}_s") or 0.0 for name in palette.STEP_PARTS}
    step_s = profile.get("step_s") or 0.0
    if not step_s or not sum(parts_s.values()):
        return None
    parts_s["between"] = max(step_s - sum(parts_s.values()), 0.0)
    parts_s = {name: duration_s for name, duration_s in parts_s.items() if duration_s}
    communication_s, traced_s = profile.get("communication_s"), profile.get("traced_step_s")
    title = f"one step: {_ms(step_s)}"
    if communication_s and traced_s:
        title += f"; traced step: {_ms(traced_s)}, of which {_ms(communication_s)} in collectives"

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6), layout="constrained")
        start_s = 0.0
        for name, duration_s in parts_s.items():
            label = f"{name} {_ms(duration_s)}"
            axis.barh(0, duration_s, left=start_s, height=0.6, color=palette.STEP_PARTS[name], label=label)
            start_s += duration_s
        axis.xaxis.set_major_formatter(lambda time_s, _: f"{1000 * time_s:,.10g}")
        axis.set(xlabel=f"time (ms) in {title}", yticks=[], ylim=(-0.5, 0.5))
        axis.grid(visible=False)
        axis.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=len(parts_s), frameon=False)
        return figure

    return Picture(draw, "Time of one step by part: " + ", ".join(parts_s))


def _ms(duration_s: float) -> str:
    return f"{1000 * duration_s:,.1f} ms"
