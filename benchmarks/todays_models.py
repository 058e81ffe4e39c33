"""What each axis costs today's models, measured on H200: `python -m benchmarks.todays_models`.

Figures are medians of `dsnb.published("h200")` over all runs of a setting.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

import dsnb
from benchmarks.headline import COMPILED, NAMES, strategy

MODELS = {
    "Qwen3 0.6B, 16 x 1024": ("qwen3-0.6b", 16, 1024, 1),
    "Llama 3.2 1B, 8 x 2048": ("llama-3.2-1b", 8, 2048, 1),
    "Mixtral 8 x 100M, 16 x 1024": ("benchmarks/params/h100/mixtral-8x100m.json", 16, 1024, 1),
    "Llama 3.1 8B, 4 x 2048": ("llama-3.1-8b", 4, 2048, 1),
    "the same, two H200": ("llama-3.1-8b", 4, 2048, 2),
}
"""Columns: model, micro-batch, sequence length and number of H200."""
TASK = ["model", "micro_batch_size", "seq_len", "gpus"]
USUAL = {
    "precision": "bf16",
    "data": "synthetic",
    "matmul": "auto",
    "grad_accum": 1,
    "optimizer": "adamw",
}
HEADER = [f"| setting | {' | '.join(MODELS)} |", "|---" * (len(MODELS) + 1) + "|"]
ORDER = [*NAMES.values(), *(f"ZeRO {stage}" for stage in range(4))]


def way(run: Mapping[Hashable, Any]) -> str:
    """Name a setting of one of the models."""
    parts = [
        f"LoRA {run['lora_rank']:.0f}" if run["lora_rank"] else None,
        strategy(run),
        "autocast"
        if run["strategy"] == "deepspeed" and run["mixed_precision"] == "autocast"
        else None,
        COMPILED.get(run["compile"], "eager"),
        "chunked loss" if run["loss"] == "chunked" else None,
        "recomputed" if run["activation_checkpointing"] else None,
    ]
    return ", ".join(filter(None, parts))


def rows() -> Iterator[str]:
    """Yield a row for each setting, with tokens/s and the peak of memory for each model."""
    runs = dsnb.published("h200").query("status == 'ok' and sweep in ('h200_today', 'h200_fp8')")
    runs = runs[(runs[[*USUAL]] == [*USUAL.values()]).all(axis=1)]
    runs = runs.assign(way=[way(run) for run in runs.to_dict("records")])
    figures = runs.groupby([*TASK, "way"])[["tokens_per_s", "peak_allocated_gib"]].median()
    for name in sorted(set(runs["way"]), key=_place):
        cells = [
            figures.loc[key] if (key := (*task, name)) in figures.index else None
            for task in MODELS.values()
        ]
        if any(cell is not None for cell in cells):
            yield f"| {name} | {' | '.join(map(_cell, cells))} |"


def _place(name: str) -> tuple[bool, int, bool, str]:
    """Return where a setting stands in the table: LoRA last, and eager ones before others of their strategy."""
    return (
        "LoRA" in name,
        next(place for place, each in enumerate(ORDER) if each in name),
        "eager" not in name,
        name,
    )


def _cell(figures: pd.Series | None) -> str:
    return (
        ""
        if figures is None
        else f"{figures['tokens_per_s']:,.0f} ({figures['peak_allocated_gib']:.1f} GiB)"
    )


def main() -> None:
    """Print the table."""
    print("\n".join([*HEADER, *rows()]))


if __name__ == "__main__":
    main()
