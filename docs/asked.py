"""Predictions in texts: each is the answer of a `dsnb recommend` that a page shows.

`docs.figures` writes its figures and its lines. The first answer about a model traces it for up to a
minute, so these figures are among those that `python -m docs.figures slow` writes.
"""

import contextlib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache

from dsnb.cli.app import app

COMMANDS = {
    "asked_cost": "llama-3.1-8b --gpu H100 --gpus 8 --tokens 15B --price 2.50",
    "asked_8k": "llama-3.1-8b --gpu H100 --gpus 8 --seq-len 8192",
    "asked_32k": "llama-3.1-8b --gpu H100 --gpus 8 --seq-len 32768",
    "asked_128k": "llama-3.1-8b --gpu H100 --gpus 8 --seq-len 131072",
    "asked_13b": "llama-2-13b --gpu A100 --least-gpus",
    "asked_70b": "llama-3.1-70b --gpu H100 --least-gpus",
    "asked_qlora": "llama-3.1-8b --gpu 4090 --gpus 1 --seq-len 2048 --set lora_rank=16 "
    "--set frozen_weights=nf4",
    "asked_moe": "qwen3-30b-a3b --gpu H100 --gpus 8",
    "asked_pcie": "llama-3.2-1b --gpu 4090 --gpus 4 --link pcie",
    "asked_64": "llama-3.1-70b --gpu H100 --gpus 64 --link ib:400 --tokens 300B",
    "asked_language": "qwen3-8b --gpu H100 --least-gpus",
    "asked_gpus": "llama-3.1-8b --gpu A100 --gpu H100 --gpu B200 --gpu MI300X --gpus 8",
    "asked_gpt2": "gpt2 --gpu H100 --gpus 2",
}
"""Name of a prediction -> the arguments of its `dsnb recommend`."""
SHOWN = ("cost", "qlora", "gpus", "gpt2")
"""Predictions whose whole answer is shown, without `asked_`."""
COLUMNS = {
    "speed": "tokens_per_s",
    "low": "tokens_per_s_low",
    "high": "tokens_per_s_high",
    "gib": "peak_allocated_gib",
    "days": "days",
    "from": "days_low",
    "to": "days_high",
    "hours": "gpu_hours",
    "cost": "cost",
}
"""Field -> column of the recommended setting."""
WIDTH = "100"
"""Columns of the terminal in which an answer is printed."""


@cache
def recommended(name: str) -> Mapping[str, float]:
    """Return the figures of the setting that a command recommends."""
    [best, *_] = json.loads(_run(name, "--format", "json"))
    found = {field: float(best[column] or "nan") for field, column in COLUMNS.items()}
    for speed in ("speed", "low", "high"):
        found[speed] = float(f"{found[speed]:.3g}")  # the digits of the printed answer
    found["gpus"] = float(re.findall(r"gpus(\d+)", best["experiment"])[0])
    found["error"] = found["gib"] * best["peak_allocated_error_pct"] / 100
    found["mfu"] = 100 * best["mfu"]
    return found


def lines(name: str) -> Iterator[str]:
    """Yield the answer of a command as a block of text."""
    yield "<!-- not run: an answer that `python -m docs.figures slow` wrote -->"
    yield "```text"
    yield from _run(name).splitlines()
    yield "```"


def _run(name: str, *options: str) -> str:
    """Return what a command prints on a terminal of `WIDTH` columns."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            app(["recommend", *shlex.split(COMMANDS[name]), *options], standalone_mode=False)
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return out.getvalue()
