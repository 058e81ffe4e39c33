"""Consistency of published figures: each is recomputed from the others by its formula."""

import math
from typing import Any

import pandas as pd

from dsnb.formulas import metrics, model_shapes
from dsnb.runs.literature.tables import CUMULATIVE_TIMER, TOKENS, published

TOLERANCE = 0.1
CLAIMS: dict[str, Any] = {
    "jean-zay_deepspeed_zs1_gpus8_bs2_sl1024_ga64_ac": {
        "table": "jean_zay_bloom7b",
        "tokens_per_s": 91_168.0,
        "hardware_tflops_per_gpu": 88.0,
    },
}
"""Figures from the text of a publication, by experiment."""
Row = dict[str, Any]
COLUMNS = ["table", "experiment", "figure", "published", "from", "computed", "ratio"]
BIGSCIENCE_PARAMETERS = 1.3e9
MEAN_PLACE_IN_BLOCK = 226 / 43


def agreement(name: str) -> pd.DataFrame:
    """Recompute the figures of a table.

    Returns
    -------
    pandas.DataFrame
        One row per figure that follows from others: `table`, `experiment`, `figure`, `published`, `from` (what it was
        computed from), `computed`, `ratio` (computed over published).
    """
    table = published(name)
    known = table[table["status"] == "ok"]
    found = [check for row in known.to_dict("records") for check in CHECKS.get(name, _nothing)(row)]
    return pd.DataFrame([{"table": name, **check} for check in found], columns=COLUMNS)


def contradictions(name: str) -> list[str]:
    """Return a sentence for each published figure that contradicts another."""
    checks = agreement(name)
    wrong = checks[(checks["ratio"] - 1).abs() > TOLERANCE]
    return [
        f"{row['experiment']}: {row['figure']} is published as {_text(row['published'])}, "
        f"but {row['from']} would be {_text(row['computed'])}, {row['ratio']:.2g} times as much"
        for row in wrong.to_dict("records")
    ]


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"


def _check(row: Row, figure: str, value: float, source: str, computed: float | None) -> list[Row]:
    if computed is None or math.isnan(value) or math.isnan(computed):
        return []
    words = {"experiment": row["experiment"], "figure": figure, "from": source}
    return [{**words, "published": value, "computed": computed, "ratio": computed / value}]


def _bigscience(row: Row) -> list[Row]:
    computed = metrics.published_tflops(
        BIGSCIENCE_PARAMETERS,
        row["global_batch_size"] * row["seq_len"],
        row["step_time_s"],
        int(row["gpus"]),
        row["activation_checkpointing"],
    )
    return _check(row, "TFLOP/s", row["hardware_tflops_per_gpu"], "the step time", computed)


def _gpt2(row: Row) -> list[Row]:
    tokens = row["micro_batch_size"] * row["seq_len"]
    rate = tokens / (row["step_time_logged_s"] / MEAN_PLACE_IN_BLOCK) / CUMULATIVE_TIMER
    return _check(row, "tokens/s", row["tokens_per_s_logged"], "the mean step time", rate)


def _bloom(row: Row) -> list[Row]:
    claim = CLAIMS.get(row["experiment"])
    if not claim:
        return []
    shape = model_shapes.PRESETS[row["model"]]
    work = shape.layers, shape.hidden, int(row["seq_len"])
    per_token = metrics.model_flops_per_token(shape.parameters, *work)
    every = int(row["activation_checkpointing"])
    per_token += metrics.recomputed_flops_per_token(shape.block_parameters, *work, every)
    gpus = int(row["gpus"])
    by_tokens = metrics.days(TOKENS, claim["tokens_per_s"])
    by_flops = claim["hardware_tflops_per_gpu"] * 1e12 / per_token * gpus
    published_days, days = row["days_per_100b_tokens"], "days per 100 B tokens"
    rate = f"{claim['tokens_per_s']:,.0f} tokens/s"
    flops = claim["hardware_tflops_per_gpu"]
    return [
        *_check(row, days, published_days, rate, by_tokens),
        *_check(row, days, published_days, f"{flops:g} TFLOP/s on {gpus} GPUs", metrics.days(TOKENS, by_flops)),
        *_check(row, "tokens/s", claim["tokens_per_s"], f"{published_days:g} {days}", row["tokens_per_s"]),
        *_check(row, "TFLOP/s", flops, rate, metrics.tflops(per_token, claim["tokens_per_s"] / gpus)),
    ]


def _nothing(_row: Row) -> list[Row]:
    return []


CHECKS = {"bigscience_1b3": _bigscience, "dist_training_gpt2": _gpt2, "jean_zay_bloom7b": _bloom}
