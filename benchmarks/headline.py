"""The README's results and the table of published benchmarks, measured again: `python -m benchmarks.headline`.

The README has the fastest setting of a few tasks. `docs/explanation/published.md` has each
published setting beside the same one on H200, and the picture of both. Figures are medians of
`dsnb.published("h200")` or of the published tables; settings that ran fewer than four times are the
fastest only where none ran more often. Runs with wrong losses (`dsnb.results.statistics.flags`) are
left out.
"""

import functools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

import dsnb
from dsnb.results.literature import tables
from dsnb.results.runs import labels
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.show.render import palette
from dsnb.show.render.picture import Picture

PICTURE = Path(__file__).parents[1] / "docs" / "headline.svg"
FIGURE = "tokens_per_s_per_gpu"
NAMES = {"plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
COMPILED = {"reduce-overhead": "CUDA graphs", "default": "compiled"}
UNSAID = {
    "lora_rank": 0, "precision": "bf16", "optimizer": "adamw", "gradient_compression": "none",
    "activation_checkpointing": False, "tensor_parallel": 1, "pipeline_parallel": 1,
}  # fmt: skip
"""What a published row means where it does not say it."""
SAME = ["model", "parallelism", "micro_batch_size", "seq_len", *UNSAID]
"""Settings in which a row of ours is the published one."""
WORK = ["model", "seq_len", "lora_rank"]
WORKS = {
    "dist_training_gpt2": "gpus == 1",
    "lambda_1cc_opt": "gpus == 8",
    "jean_zay_bloom7b": "gpus <= 8 and grad_accum == 1 and gpu_name == 'A100' and seq_len == 1024",
    "bigscience_1b3": "gpu_name == 'V100-32GB'",
}
"""Tables with rows that were measured again, and the rows to compare ours on one and two GPUs
with."""
RESULTS = {
    "GPT-2 124M, sequence 1024": ("gpt2", 1024, 0, 1),
    "BLOOM-560M, sequence 1024": ("bloom-560m", 1024, 0, 1),
    "OPT-1.3B, sequence 2048": ("opt-1.3b", 2048, 0, 2),
    "BLOOM-7B1, sequence 1024": ("bloom-7b1", 1024, 0, 2),
    "OPT-13B with LoRA, sequence 512": ("opt-13b", 512, 128, 2),
}
"""Tasks of the README's results: model, sequence length, LoRA rank and number of H200."""
RESULTS_HEADER = [
    "| task | H200 | fastest with four runs | tokens/s | lowest to highest | n | MFU | peak memory | measured |",
    "|---|---|---|---|---|---|---|---|---|",
]
HEADER = [
    "| setting | published | dsnb, same settings | ratio | dsnb, fastest | with |",
    "|---|---|---|---|---|---|",
]


@functools.cache
def sound() -> pd.DataFrame:
    """Return the runs of the data set that ended and whose losses are those of the settings that compute the same."""
    runs = dsnb.published("h200")
    flagged = flags(runs, tables.steps("published: h200"))
    wrong = [Flag.LOSS in of_run for of_run in flagged["flags"]]
    return runs[(runs["status"] == "ok") & ~pd.Series(wrong, index=runs.index)]


@dataclass(frozen=True)
class Comparison:
    """A published setting, the same one measured again, and the fastest one of the same work, in tokens/s a GPU."""

    title: str
    published: float
    published_on: str
    again: float
    again_on: str
    fastest: float
    way: str

    def __str__(self) -> str:
        """Return the row of the table."""
        return (
            f"| {self.title} | {self.published:,.0f} ({self.published_on}) | {self.again:,.0f} ({self.again_on}) "
            f"| {self.again / self.published:.2f} | {self.fastest:,.0f} | {self.way} |"
        )


@functools.cache
def comparisons() -> list[Comparison]:
    """Return all published settings that were measured again."""
    ours = sound()
    rows = [row for name in WORKS for row in published_rows(name)]
    return [comparison for row in rows if (comparison := compared(row, ours))]


def published_rows(name: str) -> list[dict[Hashable, Any]]:
    """Return the rows of a published table that ours are compared with, in the words of our settings."""
    rows = dsnb.published(name).query(WORKS[name])
    rows = rows.dropna(subset=FIGURE).replace({"strategy": {"megatron-deepspeed": "deepspeed"}})
    return rows.fillna(UNSAID).to_dict("records")


def compared(row: Mapping[Hashable, Any], ours: pd.DataFrame) -> Comparison | None:
    """Return one published setting beside our runs; None if it was not measured again."""
    same = alike(ours, row, SAME)
    same = same[
        (same["compile"] == "off")
        & (same["mixed_precision"] == "native")
        & (same["memory_limit_gib"] != 16)
    ]
    if same.empty:
        return None
    same = alone(same[same["gpus"] == same["gpus"].max()])
    best = best_of(alike(ours, row, WORK))
    return Comparison(
        title(row),
        float(row[FIGURE]),
        f"{row['gpus']} {row['gpu_name']}",
        float(same[FIGURE].median()),
        f"{labels.count(int(same['gpus'].iloc[0]), 'GPU')}, n = {len(same)}",
        float(best[FIGURE].median()),
        way(best.iloc[0]),
    )


def alone(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that had their host to themselves, or all if none had: beside others, hosts are slower."""
    beside = runs["note"].fillna("").str.contains("at the same time")
    return runs if beside.all() else runs[~beside]


def best_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return all runs of the fastest setting among those that ran `MIN_RUNS` times, or among all if none did."""
    speeds = runs.groupby("experiment")[FIGURE].agg(["median", "size"])
    often = speeds[speeds["size"] >= MIN_RUNS]
    return runs[runs["experiment"] == (often if len(often) else speeds)["median"].idxmax()]


def fastest(
    tasks: Mapping[str, tuple[str, int, int, int]],
) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield each task, its number of H200, and all runs of its fastest setting; `tasks` has the form of `RESULTS`."""
    ours = sound()
    for task, values in tasks.items():
        yield (
            task,
            values[-1],
            best_of(alike(ours, dict(zip((*WORK, "gpus"), values, strict=True)), [*WORK, "gpus"])),
        )


def results() -> Iterator[str]:
    """Yield the rows of the README's results: the fastest setting of each task, with all of its runs."""
    for task, gpus, best in fastest(RESULTS):
        speeds, days = best["tokens_per_s"], sorted(set(best["date_utc"].str[:10]))
        spread = f"{speeds.min():,.0f} to {speeds.max():,.0f}" if len(best) > 1 else "one run"
        yield (
            f"| {task} | {gpus} | {way(best.iloc[0])} | {speeds.median():,.0f} | {spread} | {len(best)} "
            f"| {best['mfu'].median():.1%} | {best['peak_allocated_gib'].median():.1f} GiB ".replace(
                "%", " %"
            )
            + f"| {' and '.join(days)} |"
        )


def picture() -> Picture:
    """Draw what is measured of each published setting, as multiples of the published figure."""
    rows = comparisons()

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(9, 0.9 + 0.32 * len(rows)), layout="constrained")
        for place, comparison in enumerate(rows):
            bars = (
                (comparison.again, -0.17, "the same settings", palette.BLUE),
                (comparison.fastest, 0.17, "fastest", palette.GREEN),
            )
            for value, offset, name, colour in bars:
                ratio, where = value / comparison.published, place + offset
                axis.barh(
                    where, ratio, height=0.32, color=colour, label=name if place == 0 else None
                )
                axis.annotate(
                    f"{value:,.0f}", (ratio, where), (3, 0), textcoords="offset points",
                    va="center", fontsize=7, color=palette.SOFT_INK,
                )  # fmt: skip
        axis.axvline(1, color=palette.INK, linewidth=1, label="published")
        axis.set_yticks(
            range(len(rows)),
            [f"{comparison.title}: {comparison.published:,.0f}" for comparison in rows],
        )
        axis.set(ylim=(len(rows) - 0.5, -0.5), xlabel="multiple of the published figure")
        axis.margins(x=0.08)
        axis.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        return figure

    return Picture(draw, "Tokens/s a GPU on H200, as multiples of the published figures")


def alike(runs: pd.DataFrame, row: Mapping[Hashable, Any], names: list[str]) -> pd.DataFrame:
    """Return the runs that have a row's values of some settings."""
    return runs[(runs[names] == [row[name] for name in names]).all(axis=1)]


def title(row: Mapping[Hashable, Any]) -> str:
    """Name a published setting."""
    parts = [
        str(row["model"]),
        f"LoRA {row['lora_rank']:.0f}" if row["lora_rank"] else "",
        strategy(row),
        "Adafactor" if row["optimizer"] == "adafactor" else "",
        "PowerSGD" if row["gradient_compression"] == "powersgd" else "",
        f"TP {row['tensor_parallel']}" if row["tensor_parallel"] > 1 else "",
        f"PP {row['pipeline_parallel']}" if row["pipeline_parallel"] > 1 else "",
        str(row["precision"]),
        f"micro-batch {row['micro_batch_size']}",
        "recomputed" if row["activation_checkpointing"] else "",
    ]
    return ", ".join(filter(None, parts))


def strategy(run: Mapping[Hashable, Any]) -> str:
    """Name how GPUs share the training."""
    return NAMES.get(run["strategy"]) or f"ZeRO {run['zero_stage']:.0f}"


def way(run: pd.Series) -> str:
    """Name a setting by everything that is unusual about it."""
    return labels.setting(run.to_dict())


def main() -> None:
    """Print both tables, and write the picture."""
    print("\n".join([*RESULTS_HEADER, *results(), "", *HEADER, *map(str, comparisons())]))
    PICTURE.write_text(picture().svg)


if __name__ == "__main__":
    main()
