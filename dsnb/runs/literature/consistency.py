"""Consistency of published figures: each is recomputed from the others by its formula."""

from typing import Any

import pandas as pd

from dsnb.formulas import metrics, model_shapes
from dsnb.runs.literature.tables import published

TOLERANCE = 0.1
COLUMNS = ["table", "experiment", "figure", "published", "from", "computed", "ratio"]
Check = tuple[str, float, str, float | None]
"""A figure, its published value, what it is computed from, and the computed value."""
TOKENS = 100e9
"""Tokens that the days of the BLOOM-7B1 table refer to."""
CLAIMED_OF, CLAIMED_TOKENS_PER_S, CLAIMED_TFLOPS = "jean-zay_deepspeed_zs1_gpus8_bs2_sl1024_ga64_ac", 91_168.0, 88.0
"""An experiment of the BLOOM-7B1 table, and figures from the text of its publication that are not in the table."""
CUMULATIVE_TIMER = 5.0
"""True tokens/s divided by published tokens/s of the GPT-2 table.

The benchmark's timer is cumulative in blocks of ten, and it reports the median over steps 21 to 63 of each epoch. The
logged rate at the k-th step of a block is the true rate divided by k, and the median k of those 43 steps is 5. The
table's mean step time agrees within 0.6 %: the mean k is 226/43. The time stamps in logs of the same program yield 5.00
and 5.12 (ZeRO 0 and 3 on an H200).
"""
MEAN_PLACE_IN_BLOCK = 226 / 43


def agreement(name: str) -> pd.DataFrame:
    """Recompute the figures of a table.

    Returns
    -------
    pandas.DataFrame
        One row per figure that follows from others: `table`, `experiment`, `figure`, `published`, `from` (what it was
        computed from), `computed`, `ratio` (computed over published).
    """
    rows = published(name).query("status == 'ok'").to_dict("records")
    checks = [(name, row["experiment"], *check) for row in rows for check in CHECKS.get(name, lambda _: [])(row)]
    table = pd.DataFrame(checks, columns=COLUMNS[:-1]).dropna(subset=["published", "computed"])
    return table.assign(ratio=table["computed"] / table["published"])


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


def _bigscience(row: dict[str, Any]) -> list[Check]:
    tokens, recomputed = row["global_batch_size"] * row["seq_len"], row["activation_checkpointing"]
    computed = metrics.published_tflops(1.3e9, tokens, row["step_time_s"], row["gpus"], recomputed)
    return [("TFLOP/s", row["hardware_tflops_per_gpu"], "the step time", computed)]


def _gpt2(row: dict[str, Any]) -> list[Check]:
    step_time_s = row["step_time_logged_s"] / MEAN_PLACE_IN_BLOCK
    rate = row["micro_batch_size"] * row["seq_len"] / step_time_s / CUMULATIVE_TIMER
    return [("tokens/s", row["tokens_per_s_logged"], "the mean step time", rate)]


def _bloom(row: dict[str, Any]) -> list[Check]:
    if row["experiment"] != CLAIMED_OF:
        return []
    shape, gpus, days = model_shapes.PRESETS[row["model"]], row["gpus"], row["days_per_100b_tokens"]
    work = shape.layers, shape.hidden, row["seq_len"]
    per_token = metrics.model_flops_per_token(shape.parameters, *work)
    per_token += metrics.recomputed_flops_per_token(shape.block_parameters, *work, 1)
    tokens_per_s, tflops, in_days = CLAIMED_TOKENS_PER_S, CLAIMED_TFLOPS, "days per 100 B tokens"
    rate, by_flops = f"{tokens_per_s:,.0f} tokens/s", tflops * 1e12 / per_token * gpus
    return [
        (in_days, days, rate, metrics.days(TOKENS, tokens_per_s)),
        (in_days, days, f"{tflops:g} TFLOP/s on {gpus} GPUs", metrics.days(TOKENS, by_flops)),
        ("tokens/s", tokens_per_s, f"{days:g} {in_days}", row["tokens_per_s"]),
        ("TFLOP/s", tflops, rate, metrics.tflops(per_token, tokens_per_s / gpus)),
    ]


CHECKS = {"bigscience_1b3": _bigscience, "dist_training_gpt2": _gpt2, "jean_zay_bloom7b": _bloom}
