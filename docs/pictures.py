"""The pictures of the gallery and the questions, made from data when the site is built.

`python -m docs.pictures FOLDER` writes those that need no executed notebook.
"""

import base64
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import dsnb
from benchmarks import trainers
from docs.code_blocks import ROOT
from dsnb.prediction import gpus
from dsnb.prediction.step_time import count_step, step_times
from dsnb.show.render import palette
from dsnb.show.render.picture import PLAIN_TICKS, Picture

HOST_TIME = ROOT / "benchmarks" / "host_time.csv"
HOST_TIMES = {
    "plain": "plain loop under autocast",
    "ZeRO 0 autocast": "ZeRO 0 under autocast",
    "ZeRO 0": "ZeRO 0, native bf16",
    "ZeRO 1": "ZeRO 1, native bf16",
    "ZeRO 2": "ZeRO 2, native bf16",
    "ZeRO 3": "ZeRO 3, native bf16",
}
"""Setting of `benchmarks/host_time.csv` -> its name in a text."""
MEASURED = ROOT / "dsnb" / "prediction" / "measured_runs.csv"
WAYS = {
    "trainer": "Trainer",
    "zero2": "Trainer with DeepSpeed ZeRO 2",
    "liger": "Trainer with Liger",
    "compile": "Trainer, compiled",
    "dsnb": "dsnb's recommendation",
}
"""Ways of `benchmarks.trainers` to draw, in this order."""
NETWORKS = (10, 25, 50, 100, 200, 400)
"""Gbit/s of the network for each GPU."""
TWO_NODES = {
    "model": "opt-1.3b",
    "gpus": 16,
    "micro_batch_size": 8,
    "seq_len": 2048,
    "grad_accum": 8,
}
TWO_NODES |= {"precision": "bf16", "device": "cuda"}
FROM_NOTEBOOKS = {"zero": {"stages": 0}}
"""Executed notebook -> name of a picture -> its place among the notebook's figures."""


def network_times() -> pd.DataFrame:
    """Return predicted step times (s) of ZeRO 1 to 3 on two nodes of eight H100, by network speed, and on one node."""
    two = [(network, stage) for network in NETWORKS for stage in (1, 2, 3)]
    settings = [_predicted(f"ib:{network}", zero_stage=stage) for network, stage in two]
    settings += [_predicted("nvlink", zero_stage=stage, gpus=8) for stage in (1, 2, 3)]
    times = np.asarray(step_times(settings).step_time_s).reshape(-1, 3)
    return pd.DataFrame(
        times, [*map(str, NETWORKS), "one node"], [f"ZeRO {stage}" for stage in (1, 2, 3)]
    )


def _predicted(link: str, **changed: int) -> object:
    return count_step(dsnb.Experiment(**TWO_NODES | changed), gpus.find("H100"), gpus.link(link))


def network() -> Picture:
    """Draw the step time by network speed and ZeRO stage."""
    times = network_times()

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
        for name, colour in zip(times, palette.SERIES, strict=False):
            axis.plot(
                NETWORKS, times[name].iloc[:-1], "o-", color=colour, label=f"{name}, two nodes"
            )
            axis.axhline(
                times[name].iloc[-1], color=colour, linestyle=":", label=f"{name}, one node of 8"
            )
        axis.set(
            xscale="log",
            xlabel="network, Gbit/s for each GPU",
            ylabel="predicted step time (s)",
            ylim=(0, None),
        )
        axis.set_xticks(NETWORKS, map(str, NETWORKS))
        axis.minorticks_off()
        axis.legend(ncols=2, fontsize="small")
        return figure

    return Picture(
        draw,
        "Predicted step time of OPT-1.3B on two nodes of eight H100, by network speed and ZeRO stage",
    )


def host_times() -> pd.DataFrame:
    """Return the host's time (in launches) for the parts of a step of 12 blocks of GPT-2 medium, by strategy."""
    measured = pd.read_csv(HOST_TIME, index_col=["model", "setting"]).loc["gpt2-medium"]
    return measured.loc[list(HOST_TIMES), ["forward", "backward", "optimizer"]].rename(HOST_TIMES)


def host_time() -> Picture:
    """Draw the host's time for a step by strategy."""
    times = host_times()

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
        left = np.zeros(len(times))
        for part, colour in zip(times, palette.SERIES, strict=False):
            axis.barh(times.index, times[part], left=left, height=0.6, color=colour, label=part)
            left += times[part].to_numpy()
        for place, total in enumerate(left):
            axis.annotate(
                f"{total:,.0f}", (total, place), (4, 0), textcoords="offset points", va="center"
            )
        axis.set(xlabel="host time of a step, in kernel launches (27 to 40 µs each)")
        axis.xaxis.set_major_formatter(PLAIN_TICKS)
        axis.margins(x=0.08)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        return figure

    return Picture(draw, "The host's time for a step of GPT-2 medium with 12 blocks, by strategy")


def within_a_quarter() -> dict[str, float]:
    """Return the share (%) of settings whose speed is within 25 % of the predicted one."""
    runs = pd.read_csv(MEASURED)
    ratio = runs["tokens_per_s"] / runs["predicted"]
    shares = 100 * ratio.between(1 / 1.25, 1.25).groupby(runs["is_own"]).mean()
    return {"own": shares[1], "others": shares[0]}


def predicted() -> Picture:
    """Draw the measured speed of every setting beside its prediction."""
    runs = pd.read_csv(MEASURED)
    kinds = {
        "other programs": (runs[runs["is_own"] == 0], palette.ORANGE),
        "dsnb": (runs[runs["is_own"] == 1], palette.BLUE),
    }

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
        for name, (of_kind, colour) in kinds.items():
            axis.scatter(
                of_kind["predicted"], of_kind["tokens_per_s"], s=12, alpha=0.6, color=colour,
                linewidths=0, label=f"{name}, {len(of_kind)} settings", rasterized=True,
            )  # fmt: skip
        ends = np.array([runs["predicted"].min(), runs["predicted"].max()])
        axis.plot(ends, ends, color=palette.INK, linewidth=1, label="as predicted")
        for factor in (0.8, 1.25):
            axis.plot(ends, factor * ends, color=palette.GREY, linewidth=1, linestyle=":")
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="predicted tokens/s (dotted: 25 % off)",
            ylabel="measured tokens/s",
        )
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_formatter(PLAIN_TICKS)
        axis.minorticks_off()
        axis.legend(loc="upper left", markerscale=3)
        return figure

    return Picture(
        draw, "Measured speed beside predicted speed, of dsnb's runs and of other programs"
    )


def trainer_speeds() -> pd.DataFrame:
    """Return the median tokens/s of each way to train (column) of each model (row) on one H100."""
    runs = pd.DataFrame(trainers.read(trainers.RESULTS))
    runs = runs[(runs["status"] == "ok") & runs["gpu"].str.contains("H100")]
    medians = runs.groupby(["name", "way"])["tokens_per_s"].median().unstack()
    return medians[list(WAYS)].rename(columns=WAYS)


def beside_trainers() -> Picture:
    """Draw the speed of the Trainer and of the recommended setting, by model."""
    speeds = trainer_speeds()
    relative = speeds.div(speeds["Trainer"], axis=0)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(9, 4.2), layout="constrained")
        height = 0.8 / len(WAYS)
        colours = reversed(palette.SERIES[: len(WAYS)])  # the recommendation is blue
        for order, (way, colour) in enumerate(zip(relative, colours, strict=True)):
            places = np.arange(len(relative)) + (order - len(WAYS) / 2) * height
            axis.barh(places, relative[way].fillna(0), height=height, color=colour, label=way)
            for place, ratio, speed in zip(places, relative[way], speeds[way], strict=True):
                if np.isfinite(ratio):
                    axis.annotate(
                        f"{speed:,.0f}", (ratio, place), (3, 0), textcoords="offset points",
                        va="center", fontsize=7, color=palette.SOFT_INK,
                    )  # fmt: skip
        axis.set_yticks(range(len(relative)), relative.index)
        axis.set(xlabel="multiple of the Trainer's tokens/s")
        axis.invert_yaxis()
        axis.margins(x=0.08)
        axis.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        return figure

    return Picture(
        draw, "Tokens/s of the Trainer and of dsnb's recommended setting on one H100, by model"
    )


def draw(folder: Path) -> None:
    """Write the pictures that are drawn from data."""
    drawn = {
        "network": network(),
        "host_time": host_time(),
        "predicted": predicted(),
        "trainers": beside_trainers(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        (folder / f"{name}.svg").write_text(picture.svg)


def make(folder: Path) -> None:
    """Write all pictures into a folder that holds the executed notebooks."""
    draw(folder)
    for notebook, names in FROM_NOTEBOOKS.items():
        cells = nbformat.read(folder / f"{notebook}.ipynb", as_version=4).cells
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        figures = [one["image/png"] for one in data if "image/png" in one]
        for name, place in names.items():
            (folder / f"{name}.png").write_bytes(base64.b64decode(figures[place]))


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
