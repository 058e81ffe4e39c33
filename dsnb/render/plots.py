"""seaborn figures: what a setting does to speed, time, memory and utilization, and how the losses went.

Spread is shown by the single runs themselves and a line from the lowest to the highest of them: with three repeats
anything finer would be guessed.
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
from matplotlib.ticker import FuncFormatter

from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.labels import MEMORY, METRIC_LABELS, PRECISION_COLOURS
from dsnb.runs.load import load_steps

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "axes.edgecolor": "#8a929c",
    "axes.labelcolor": "#30363d",
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
    "font.family": "sans-serif",
}
PIXELS_PER_INCH = 180
PART_COLOURS = {"forward": "#0072b2", "backward": "#56b4e9", "optimizer": "#e69f00"}
PART_COLOURS |= {"handover": "#cc79a7", "between": "#c8ced6"}


class Picture:
    """A figure that shows itself in notebooks and reports as an image with a description."""

    def __init__(self, draw: Callable[[], Figure], description: str) -> None:
        with plt.rc_context(STYLE):
            self.figure = draw()
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
        plt.close(self.figure)
        self.png, self.description = _small(buffer), description

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        width = int(self.figure.get_figwidth() * 100)
        return f'<img alt="{html.escape(self.description)}" width="{width}" src="data:image/png;base64,{data}">'


def _small(png: io.BytesIO) -> bytes:
    """Give a PNG with 64 colours: a third of the size, and no difference that one could see in drawings like these."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(png).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return small.getvalue()


def overview(runs: pd.DataFrame) -> Picture:
    """Draw throughput, step time, memory and utilization against the ZeRO stage, by precision.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it; only ok runs are drawn.
    """
    ok = runs[runs["status"] == "ok"]
    memory = next((name for name in MEMORY if ok[name].notna().any()), MEMORY[-1])
    metrics = ["tokens_per_s_per_gpu", "step_time_s", memory, "gpu_util_pct"]

    def draw() -> Figure:
        figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
        for axis, metric in zip(axes.flat, metrics, strict=True):
            against_stage(ok, metric, axis)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        for axis in axes.flat:
            if axis.get_legend():
                axis.get_legend().remove()
        if handles:
            figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
        return figure

    return Picture(draw, "Throughput, step time, memory and utilization by ZeRO stage and precision")


def against_stage(ok: pd.DataFrame, metric: str, axis: Axes) -> None:
    """Draw one metric of ok runs against the ZeRO stage: medians as bars, the range as a line, every run as a dot."""
    words = METRIC_LABELS[metric]
    axis.set(xlabel="ZeRO stage", ylabel=words.heading)
    shown = ok[ok["precision"].isin(list(PRECISION_COLOURS))].dropna(subset=[metric, "zero_stage"])
    shown = shown.assign(**{metric: shown[metric] * words.factor})
    if shown.empty:
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        axis.text(
            0.5,
            0.5,
            "not measured on this machine",
            ha="center",
            va="center",
            transform=axis.transAxes,
            color="#57606a",
        )
        return
    precisions = [name for name in PRECISION_COLOURS if name in set(shown["precision"])]
    shared = {"data": shown, "x": "zero_stage", "y": metric, "hue": "precision", "hue_order": precisions, "ax": axis}
    sns.barplot(
        **shared,
        palette=PRECISION_COLOURS,
        estimator="median",
        errorbar=("pi", 100),
        alpha=0.55,
        err_kws={"linewidth": 1.3, "color": "#30363d"},
    )
    sns.stripplot(
        **shared, palette=PRECISION_COLOURS, dodge=True, size=4, linewidth=0.6, edgecolor="white", legend=False
    )
    axis.set(xlabel="ZeRO stage", ylabel=words.heading)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"))


def losses(steps: pd.DataFrame, runs: pd.DataFrame) -> Picture:
    """Draw the median loss of ok runs over their optimizer steps, by precision and ZeRO stage.

    Parameters
    ----------
    steps, runs
        As `dsnb.load_steps` and `dsnb.load_runs` give them; runs that differ in nothing else (`summary.variants`).
    """
    keys = ["sweep", "experiment", "repeat"]
    ok = runs[runs["status"] == "ok"]
    known = ok[ok["precision"].isin(list(PRECISION_COLOURS))].dropna(subset=["zero_stage"])
    table = steps.dropna(subset=["loss"]).merge(known[[*keys, "zero_stage", "precision"]], on=keys)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
        if table.empty:
            axis.set_axis_off()
            axis.text(0.5, 0.5, "no run has written a loss", ha="center", va="center", color="#57606a")
            return figure
        sns.lineplot(
            data=table,
            x="step",
            y="loss",
            hue="precision",
            style="zero_stage",
            estimator="median",
            errorbar=None,
            palette=PRECISION_COLOURS,
            hue_order=[name for name in PRECISION_COLOURS if name in set(table["precision"])],
            linewidth=1.4,
            ax=axis,
        )
        axis.set(xlabel="optimizer step", ylabel="loss")
        sns.move_legend(axis, "upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return figure

    return Picture(draw, "Loss by optimizer step for every experiment")


def run_steps(run_dir: str | Path) -> Picture:
    """Draw the loss and the step time of one run over its steps, the warm-up shaded."""
    steps = load_steps(run_dir)

    def draw() -> Figure:
        figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
        warm = steps[steps["phase"] == "warmup"]["step"].max()
        for axis, column, label in zip(axes, ("loss", "step_time_s"), ("loss", "step time (s)"), strict=True):
            axis.set(xlabel="optimizer step", ylabel=label)
            if steps[column].notna().any():
                axis.plot(steps["step"], steps[column], color="#0072B2", linewidth=1.4)
            else:
                axis.text(0.5, 0.5, "no step was recorded", ha="center", va="center", transform=axis.transAxes)
            if warm == warm:
                axis.axvspan(0.5, warm + 0.5, color="#8a929c", alpha=0.15, label="warm-up")
        if warm == warm:
            axes[0].legend(frameon=False)
        return figure

    return Picture(draw, "Loss and step time of one run by optimizer step")


def step_parts(run_dir: str | Path) -> Picture | None:
    """Draw where the time of one step of a profiled run goes, as one bar; None if that was not measured.

    Communication overlaps with the parts, and is that of another step, so it is told in words, not in the bar.
    """
    profile = record_schema.read(RunPaths(Path(run_dir)).profile) or {}
    parts_ms = {name: (profile.get(f"{name}_s") or 0) * 1000 for name in PART_COLOURS}
    step_ms = (profile.get("step_s") or 0) * 1000
    if not step_ms or not sum(parts_ms.values()):
        return None
    parts_ms["between"] = max(step_ms - sum(parts_ms.values()), 0)
    parts_ms = {name: width_ms for name, width_ms in parts_ms.items() if width_ms}
    sent_s, traced_s = profile.get("communication_s"), profile.get("traced_step_s")
    words = ""
    if sent_s and traced_s:
        words = f"; in a traced one of {traced_s * 1000:,.1f} ms, collectives ran for {sent_s * 1000:,.1f} ms"

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6), layout="constrained")
        begin_ms = 0.0
        for name, width_ms in parts_ms.items():
            label = f"{name} {width_ms:,.1f} ms"
            axis.barh(0, width_ms, left=begin_ms, height=0.6, color=PART_COLOURS[name], label=label)
            begin_ms += width_ms
        axis.set(xlabel=f"one step of {step_ms:,.1f} ms{words}", yticks=[], ylim=(-0.5, 0.5))
        axis.grid(visible=False)
        axis.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=len(parts_ms), frameon=False)
        return figure

    return Picture(draw, "Where the time of one step goes: " + ", ".join(parts_ms))
