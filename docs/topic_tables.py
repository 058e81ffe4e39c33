"""Tables of the pages on what people search for: predictions of many settings, each by `dsnb.predict`."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

import dsnb
from benchmarks.outside.rows import ROWS
from benchmarks.outside.summary import speed_error
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction.nearest import runs
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import significant, span
from dsnb.settings.experiment import Experiment

COMMON: Mapping[str, Any] = {
    "device": "cuda",
    "precision": "bf16",
    "strategy": "plain",
    "gpus": 1,
    "micro_batch_size": 1,
    "seq_len": 2048,
    "loss": "chunked",
    "activation_checkpointing": True,
}
"""One sequence, every block recomputed, the loss in chunks: what needs least without offload."""
FINE_TUNED = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b", "qwen2.5-72b")
PURE: Mapping[str, Any] = {"mixed_precision": "none", "optimizer": "adamw-8bit"}
LORA: Mapping[str, Any] = {"lora_rank": 16}
QLORA: Mapping[str, Any] = {**LORA, "frozen_weights": "nf4"}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "all weights, fp32 AdamW": {},
    "all weights in bf16, 8-bit AdamW": PURE,
    "LoRA": LORA,
    "QLoRA": QLORA,
}
CARDS = {"RTX 4090": "24 GB", "RTX 6000 Ada": "48 GB", "H100": "80 GB"}
SMALL_CARDS = {"RTX 3080": "10 GB", "RTX 4080": "16 GB", "RTX 4090": "24 GB"}
SIZES = CARDS | SMALL_CARDS
"""Cards and their sizes of memory, the smallest first."""
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
LONG: Mapping[str, Any] = {"model": "llama-3.1-8b", "strategy": "fsdp", "gpus": 8}
WHOLE = {"loss": "whole"}
KEPT = {"activation_checkpointing": False}
SPLIT = {"strategy": "plain", "tensor_parallel": 8}
AGAINST_LENGTH: Mapping[str, Mapping[str, Any]] = {
    "nothing": {**WHOLE, **KEPT},
    "loss in chunks": KEPT,
    "blocks recomputed": WHOLE,
    "both": {},
    "both, TP 8": SPLIT,
}
SMALL: Mapping[str, Any] = {"model": "llama-3.2-1b", "seq_len": 1024, "micro_batch_size": 8}
ONE_BY_ONE: Mapping[str, Any] = {"micro_batch_size": 1, "grad_accum": 8}
BF16: Mapping[str, Any] = {"mixed_precision": "none"}
OFFLOADED: Mapping[str, Any] = {
    "strategy": "deepspeed",
    "zero_stage": 2,
    "offload": "optimizer-cpu",
}
HOST_GIB = 64.0
STEPS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("all weights, AdamW in fp32", {**WHOLE, **KEPT}),
    ("the loss in chunks", KEPT),
    ("every block recomputed", {}),
    ("weights, gradients and moments in bf16", BF16),
    ("AdamW's moments in 8 bits", PURE),
    ("the same, micro-batch 1, 8 accumulated", {**PURE, **ONE_BY_ONE}),
    ("instead LoRA, rank 16", LORA),
    ("instead LoRA beside weights of 4 bits", QLORA),
    ("instead AdamW in fp32 on the CPU, ZeRO 2", OFFLOADED),
)
"""What to try on a small GPU, in this order."""
EXAMPLE_PRICES = {
    "B200": 5.00,
    "H200": 3.50,
    "H100": 2.50,
    "MI300X": 2.20,
    "A100": 1.50,
    "L40S": 0.90,
    "RTX 4090": 0.40,
}
"""Prices of a GPU-hour for examples, not offers."""
RENTED = "llama-3.1-8b"


def _predicted(settings: Sequence[Mapping[str, Any]], gpu: str) -> pd.DataFrame:
    """Return the predictions of settings on a GPU."""
    return dsnb.predict(
        [Experiment(**{**COMMON, **one}) for one in settings],
        gpu,
        probe=False,
        host_memory=HOST_GIB,
    )


def _header(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def fine_tuning() -> Iterator[str]:
    """Yield the memory of each way to train each model, and the smallest card on which it fits."""
    yield from _header(["model", *WAYS])
    for model in FINE_TUNED:
        settings = [{"model": model, **way} for way in WAYS.values()]
        on_cards = {card: _predicted(settings, card) for card in CARDS}
        cells = []
        for place in range(len(settings)):
            memory, card = _smallest(on_cards, place)
            cells.append(f"{memory} ({card})")
        hub_name = PRESETS[model].hub_id or model
        yield _row([hub_name.rpartition("/")[2], *cells])


def _smallest(on_cards: Mapping[str, pd.DataFrame], place: int) -> tuple[str, str]:
    """Return the memory of a setting and the smallest card on which it fits with room for what torch reserves."""
    for card, table in on_cards.items():
        row = table.iloc[place]
        if row["fits"] and not row["tight"]:
            return significant(row["peak_allocated_gib"]), SIZES[card]
    return significant(row["peak_allocated_gib"]), "more"


def lengths() -> Iterator[str]:
    """Yield the memory by length of sequences and by what was done about it; in brackets what does not fit."""
    yield from _header(["tokens", *AGAINST_LENGTH, "tokens/s, with both"])
    for length in LENGTHS:
        settings = [{**LONG, "seq_len": length, **one} for one in AGAINST_LENGTH.values()]
        table = _predicted(settings, "H100")
        cells = []
        for row in table.to_dict("records"):
            need = significant(row["peak_allocated_gib"])
            cells.append(need if row["fits"] else f"({need})")
        both = table.iloc[list(AGAINST_LENGTH).index("both")]
        speed = span(both["tokens_per_s_low"], both["tokens_per_s_high"])
        yield _row([f"{length:,}", *cells, speed])


def small_gpus() -> Iterator[str]:
    """Yield the memory and the relative speed of a small model with each of `STEPS`."""
    yield from _header(["setting", "GiB", "speed, of the first", "fits on"])
    settings = [{**SMALL, **one} for _, one in STEPS]
    on_cards = {card: _predicted(settings, card) for card in SMALL_CARDS}
    speeds = on_cards["RTX 4090"]["tokens_per_s"]
    for place, (words, _) in enumerate(STEPS):
        memory, card = _smallest(on_cards, place)
        yield _row([words, memory, f"{100 * speeds[place] / speeds[0]:.0f} %", card])


def rent() -> Iterator[str]:
    """Yield days and cost of a training on eight of each GPU, the cheapest first."""
    found = dsnb.recommend(
        RENTED, list(EXAMPLE_PRICES), gpus=8, price=EXAMPLE_PRICES, objective="cost"
    )
    measured = Counter(run.gpu for run in runs())
    yield _row(
        [
            "8 of",
            "example price",
            "days",
            "cost",
            "peak of usable GiB",
            "setting",
            "settings measured there",
        ]
    )
    yield "|---" * 7 + "|"
    for place, row in enumerate(found.table.to_dict("records")):
        name = row["gpu"]
        days = span(row["days_low"], row["days_high"])
        ends = [row["cost"] * row[end] / row["days"] for end in ("days_low", "days_high")]
        cost = f"${span(*ends)}"
        if row["tight"]:
            days = f"at least {row['days']:.0f}"
            cost = f"at least ${row['cost']:,.0f}"
        room = significant(row["peak_allocated_gib"] + row["headroom_gib"])
        memory = f"{significant(row['peak_allocated_gib'])} of {room}"
        price = f"${EXAMPLE_PRICES[name]:.2f}"
        setting = found.experiments[place].label
        yield _row([name, price, days, cost, memory, setting, measured[name]])


def experts() -> Iterator[str]:
    """Yield what is recommended for mixtures of experts."""
    yield from _header(["model", "GPUs", "setting", "GiB of each", "tokens/s"])
    for model, number, link in MIXTURES:
        found = dsnb.recommend(model, "H100", gpus=number, link=link)
        row = found.table.iloc[0]
        speed = span(row["tokens_per_s_low"], row["tokens_per_s_high"])
        if row["tight"]:
            speed = f"at most {significant(row['tokens_per_s'])}"
        memory = significant(row["peak_allocated_gib"])
        yield _row(
            [model, f"{number} H100", labels.setting(vars(found.experiments[0])), memory, speed]
        )


MIXTURES = (("qwen3-30b-a3b", 8, "nvlink"), ("mixtral-8x7b", 16, "ib:400"))
"""Model, number of GPUs, and link."""


def long_sequences() -> Iterator[str]:
    """Yield the errors of predictions for other projects' runs by the length of their sequences."""
    published = {}
    for row in json.loads(ROWS.read_text(encoding="utf-8")):
        if row["tps"]:
            key = (row["source"], row["gpu"], row["nodes"], f"{row['tps']:.6g}")
            published[key] = row["settings"].get("seq_len", 0)
    table = pd.read_csv(OUTSIDE)
    keys = zip(table["source"], table["gpu"], table["nodes"], table["measured"], strict=True)
    length = pd.Series([published.get((*key, f"{rate:.6g}"), 0) for *key, rate in keys])
    yield from _header(["sequences", "runs", "predicted speed off by", "within the range"])
    for title, low, high in BANDS:
        part = table[(length >= low) & (length < high)]
        error = speed_error(title, part.assign(error_pct=math.nan))
        yield _row([title, error.rows, f"{error.mean_pct:.0f} %", f"{error.within_pct:.0f} %"])


BANDS = (
    ("below 8,192 tokens", 1, 8192),
    ("8,192 to 16,384", 8192, 16385),
    ("32,768 to 65,536", 16385, 10**9),
)
"""Lengths of sequences: in words, from, below."""
OUTSIDE = ROWS.with_name("predicted.csv")
"""Predictions of the published rows, which `python -m benchmarks.outside --write` makes."""
