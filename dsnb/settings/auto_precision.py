"""The number format that `precision: auto` stands for: bf16 where this machine computes it fast, fp32 elsewhere.

GPUs of compute capability 8.0 and higher have bf16 products. A CPU without bf16 instructions
emulates them and can take a hundred times as long. Neither its name nor its flags decide that,
because an environment variable can forbid instructions. So a CPU is timed: one short product in
each format, in a separate process that imports torch. The result is kept in the user's cache, so
that a sweep that continues later has the same settings.
"""

import contextlib
import hashlib
import json
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsnb.base.files import cache as user_cache
from dsnb.base.files import json_files
from dsnb.base.system import hardware, interpreter

SLOWEST = 2.0
"""Largest ratio of a product's time in bf16 to that in fp32 with which bf16 is used."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability of the first NVIDIA GPUs with bf16 products."""
VARIABLES = ("ONEDNN_", "DNNL_", "ATEN_CPU_", "MKL_")
"""Beginnings of the names of environment variables that choose a CPU's instructions."""


def precision_of(device: str) -> str:
    """Return what `precision: auto` is on a device of this machine: `bf16` or `fp32`.

    Without torch a CPU cannot be timed, and nothing can be trained: `fp32`, which every machine
    has. The device `auto` is this machine's.
    """
    if device == "auto":
        device = hardware.default_device()
    if device == "cuda":
        is_fast = all(gpu.capability >= LEAST_CAPABILITY for gpu in hardware.gpus())
    else:
        ratio = bf16_over_fp32()
        is_fast = ratio is not None and ratio <= SLOWEST
    return "bf16" if is_fast else "fp32"


def bf16_over_fp32() -> float | None:
    """Return the time of a product in bf16 on this CPU over that in fp32; None if it cannot be timed."""
    return _timed(_machine())


@cache
def _timed(machine: str) -> float | None:
    """Return the ratio of the times from the cache, or time the products now."""
    folder = user_cache.home()
    seconds = None
    if folder:
        digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
        file = folder / "products" / f"{digest}.json"
        seconds = json_files.read_json(file)
    is_kept = bool(seconds)
    seconds = seconds or _seconds()
    try:
        ratio = float(seconds["bf16"]) / float(seconds["fp32"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if folder and not is_kept:
        with contextlib.suppress(OSError):  # it is timed again next time
            json_files.write_json(file, seconds)
    return ratio


def _machine() -> str:
    """Return all that the times depend on: the CPU, torch, and the variables that choose instructions."""
    facts = hardware.cpu_facts()
    torch = ""
    with contextlib.suppress(PackageNotFoundError):
        torch = version("torch")
    chosen = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    known = [facts.get("model name"), facts.get("flags"), hardware.cores(), torch, chosen]
    return json.dumps(known, sort_keys=True)


def _seconds() -> Any:
    """Return the time of a product by number format; None if torch is missing or fails."""
    return interpreter.ask("dsnb.measure.train.time_products")
