"""Larger micro-batches of the fastest settings, and the spread of two anchors: `python -m benchmarks.edges`.

Figures are medians of `dsnb.published("h200")`. The anchors are measured at the start and the end
of most measuring sessions.
"""

import re
from collections.abc import Iterator

import pandas as pd

from benchmarks.headline import sound
from dsnb.results.runs import labels
from dsnb.settings.experiment import Experiment

SWEEP = "h200_edges"
SHOWN, ENOUGH = 5, 0.97
"""Micro-batches of a row, and the share of the highest speed from which on a larger one gains
little."""
HEADER = [
    "| task | H200 | setting | micro-batch: tokens/s (GiB) | gain | 97 % from |",
    "|---|---|---|---|---|---|",
]
ANCHORS = {
    "OPT-1.3B, 8 x 2048, plain loop, compiled": "opt-1.3b_plain_bf16_gpus1_bs8_sl2048_compile",
    "GPT-2, 32 x 128, ZeRO 0, eager": "gpt2_zs0_bf16_gpus1_bs32_sl128",
}
"""The settings of `benchmarks/params/h200/anchors.yaml`: the GPU limits the first one, the CPU the
second."""
ANCHORS_HEADER = [
    "| anchor | runs | hosts | tokens/s | fastest over slowest host | ... run of a host |",
    "|---|---|---|---|---|---|",
]


def measured() -> pd.DataFrame:
    """Return the sound runs of the data set with `name`, and `series`: the name without micro-batch and allocator."""
    runs = sound()
    names = [Experiment.of_row(row).name_with_model for row in runs.to_dict("records")]
    return runs.assign(
        name=names, series=[re.sub(r"_bs\d+(?=_)|_alloc-default", "", name) for name in names]
    )


def edges(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a row for each series of micro-batches that was measured up to the memory."""
    for series in runs[runs["sweep"] == SWEEP]["series"].unique():
        of_series = runs[runs["series"] == series]
        speeds = (
            of_series.groupby("micro_batch_size")[["tokens_per_s", "peak_allocated_gib"]]
            .median()
            .tail(SHOWN)
        )
        if len(speeds) < 2:
            continue
        run, best = of_series.iloc[0], speeds["tokens_per_s"].max()
        enough = speeds.index[speeds["tokens_per_s"] >= ENOUGH * best].min()
        steps = ", ".join(
            f"{batch}: {speed:,.0f} ({gib:.1f})" for batch, speed, gib in speeds.itertuples()
        )
        gain = best / speeds["tokens_per_s"].iloc[0]
        way = labels.setting({**run, "micro_batch_size": None})
        task = f"{run['model']}, sequence {run['seq_len']} | {run['gpus']}"
        yield f"| {task} | {way} | {steps} | {gain:.2f} | {enough} |"


def anchors(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a row for each anchor: what hosts, and runs on one host, differ by at most."""
    for title, name in ANCHORS.items():
        of_anchor = runs[runs["name"] == name]
        speeds, hosts = of_anchor["tokens_per_s"], of_anchor.groupby("host")["tokens_per_s"]
        medians, within = hosts.median(), (hosts.max() / hosts.min()).max()
        yield (
            f"| {title} | {len(speeds)} | {len(medians)} | {speeds.median():,.0f} ({speeds.min():,.0f} to "
            f"{speeds.max():,.0f}) | {medians.max() / medians.min():.2f} | {within:.2f} |"
        )


def main() -> None:
    """Print both tables."""
    runs = measured()
    print("\n".join([*HEADER, *edges(runs), "", *ANCHORS_HEADER, *anchors(runs)]))


if __name__ == "__main__":
    main()
