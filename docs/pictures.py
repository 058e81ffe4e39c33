"""The pictures of the gallery and the questions, made from data when the site is built."""

import base64
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import dsnb
from dsnb.prediction import gpus
from dsnb.prediction.step_time import count_step, step_times
from dsnb.results.statistics import scaling
from dsnb.show.render import nodes, palette, plots
from dsnb.show.render.picture import Picture

EXAMPLE = Path(__file__).parents[1] / "outputs" / "examples" / "quickstart"
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
FROM_NOTEBOOKS = {"zero": {"stages": 0, "offload": 6}, "findings": {"graphs": 2, "hosts": 9}}
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


def make(folder: Path) -> None:
    """Write all pictures into a folder that holds the executed notebooks."""
    runs = dsnb.load_runs(EXAMPLE)
    drawn = {
        "network": network(),
        "overview": plots.overview(runs),
        "scaling": nodes.throughput(scaling.scaling(dsnb.published("lambda_1cc_opt"))),
    }
    for name, picture in drawn.items():
        (folder / f"{name}.svg").write_text(picture.svg)
    for notebook, names in FROM_NOTEBOOKS.items():
        cells = nbformat.read(folder / f"{notebook}.ipynb", as_version=4).cells
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        figures = [one["image/png"] for one in data if "image/png" in one]
        for name, place in names.items():
            (folder / f"{name}.png").write_bytes(base64.b64decode(figures[place]))
