"""Figures of runs: one category for each strategy, in one order, with the figure of speed that fits the hardware."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from dsnb.render import plots

ROWS = [
    ("deepspeed", 3, 1, "bf16", 10.0), ("deepspeed", 3, 1, "bf16", 30.0), ("deepspeed", 0, 1, "bf16", 40.0),
    ("fsdp", 0, 1, "bf16", 50.0), ("ddp", 0, 1, "fp32", 60.0), ("plain", 0, 1, "bf16", 70.0),
    ("deepspeed", 1, 2, "bf16", 80.0), ("deepspeed", None, 1, "bf16", 90.0),
]  # fmt: skip
NAMES = ["plain", "DDP", "FSDP", "ZeRO 0", "ZeRO 3", "TP 2 x ZeRO 1"]


@pytest.fixture
def runs():
    names = ["strategy", "zero_stage", "tensor_parallel", "precision", "tokens_per_s"]
    table = pd.DataFrame(ROWS, columns=names).astype({"zero_stage": "Int64"})
    figures = {"tokens_per_s_per_gpu": table["tokens_per_s"] / 2, "gpu_util_pct": None, "device": "cuda"}
    memory = dict.fromkeys(("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib"), 1.0)
    names = {"sweep": "s", "experiment": [f"e{row}" for row in range(len(ROWS))], "repeat": 1, "status": "ok"}
    return table.assign(**figures, **memory, **names, step_time_s=0.25)


def ticks(axis):
    return [text.get_text().replace("\n", " ") for text in axis.get_xticklabels()]


def test_each_strategy_is_a_category_of_its_own(runs):
    speed, step_time, *_ = plots.overview(runs).figure.axes
    assert ticks(speed) == ticks(step_time) == NAMES
    assert (speed.get_xlabel(), speed.get_ylabel()) == ("strategy", "tokens/s/GPU")
    bars = {
        NAMES[round(bar.get_x() + bar.get_width() / 2)]: bar.get_height() for bar in speed.patches if bar.get_width()
    }
    wanted = dict(zip(NAMES, [35, 30, 25, 20, 10, 40], strict=True))  # ZeRO 3: the median of 5 and 15
    assert bars == wanted
    assert step_time.patches[0].get_height() == 250


def test_ranks_without_gpus_are_compared_by_their_sum(runs):
    speed = plots.overview(runs.assign(device="cpu")).figure.axes[0]
    assert speed.get_ylabel() == "tokens/s"
    assert max(bar.get_height() for bar in speed.patches) == 80


def test_losses_are_told_apart_by_strategy(runs):
    steps = pd.concat([runs[["sweep", "experiment", "repeat"]].assign(step=step, loss=9.0 - step) for step in (1, 2)])
    (axis,) = plots.losses(steps, runs).figure.axes
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    assert legend == ["precision", "fp32", "bf16", "strategy", *NAMES]


def test_the_dots_of_many_runs_are_one_bitmap(runs, monkeypatch):
    for most, is_bitmap in ((200, False), (2, True)):
        monkeypatch.setattr(plots, "MOST_SHAPES", most)
        figure, axis = plt.subplots()
        plots.plot_by_strategy(plots._ok(runs), "tokens_per_s", axis)
        assert {bool(dots.get_rasterized()) for dots in axis.collections} == {is_bitmap}
        plt.close(figure)
