"""The number format that `precision: auto` stands for: bf16 where this machine computes it fast, fp32 elsewhere.

GPUs of compute capability 8.0 and higher have bf16 products. A CPU without bf16 instructions emulates them and can take
a hundred times as long. Neither its name nor its flags decide that, because an environment variable can forbid
instructions. So a CPU is timed: one short product in each format, in a separate process that imports torch. The result
is kept in the user's cache, so that a sweep that continues later has the same settings.
"""

import contextlib
import hashlib
import json
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dsnb.base.files import cache as user_cache
from dsnb.base.files import json_files
from dsnb.base.system import hardware, interpreter

SLOWEST = 2.0
"""Largest ratio of a product's time in bf16 to that in fp32 with which bf16 is used."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability of the first NVIDIA GPUs with bf16 products."""
VARIABLES = ("ONEDNN_", "DNNL_", "ATEN_CPU_", "MKL_")
"""Beginnings of the names of environment variables that choose a CPU's instructions."""
TIME_LIMIT_S = 120


def precision_of(device: str) -> str:
    """Return what `precision: auto` is on a device of this machine: `bf16` or `fp32`.

    Without torch a CPU cannot be timed, and nothing can be trained: `fp32`, which every machine has.
    """
    if device == "cuda":
        return (
            "bf16" if all(gpu.capability >= LEAST_CAPABILITY for gpu in hardware.gpus()) else "fp32"
        )
    ratio = bf16_over_fp32()
    return "bf16" if ratio is not None and ratio <= SLOWEST else "fp32"


def bf16_over_fp32() -> float | None:
    """Return the time of a product in bf16 on this CPU over that in fp32; None if it cannot be timed."""
    return _timed(_machine())


@cache
def _timed(machine: str) -> float | None:
    """Return the ratio of the times from the cache, or time the products now."""
    file = _file(machine)
    kept = json_files.read_json(file) if file else None
    seconds = kept or _seconds()
    try:
        ratio = float(seconds["bf16"]) / float(seconds["fp32"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if file and not kept:
        _keep(file, seconds)
    return ratio


def _machine() -> str:
    """Return all that the times depend on: the CPU, torch, and the variables that choose instructions."""
    facts = hardware.cpu_facts()
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    return json.dumps(
        [facts.get("model name"), facts.get("flags"), hardware.cores(), torch, chosen],
        sort_keys=True,
    )


def _file(machine: str) -> Path | None:
    folder = user_cache.home()
    return (
        folder / "products" / f"{hashlib.sha256(machine.encode()).hexdigest()[:16]}.json"
        if folder
        else None
    )


def _keep(file: Path, seconds: dict[str, float]) -> None:
    with contextlib.suppress(OSError):  # it is timed again next time
        json_files.write_json(file, seconds)


def _seconds() -> dict[str, float]:
    """Return the time of a product by number format; empty if torch is missing or fails."""
    command = interpreter.command("-m", "dsnb.measure.train.time_products")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=True
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return {}
