"""Names of GPUs as drivers, publications and data sheets write them: `NVIDIA A100-SXM4-80GB`, `H100 PCIe`, `V100-16GB`.

Every word of a name has to be understood. A part of a card, a laptop's, or one of another memory
has the name of the card with another word (`NVIDIA H100 80GB HBM3 MIG 1g.10gb`, `NVIDIA A10-4Q`),
and neither its rates nor its memory.
"""

import csv
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


class DataSheet(NamedTuple):
    """Nominal memory sizes of a GPU in GB with their bandwidths, and its dense rates in TFLOP/s by precision.

    Rates are printed twice as high "with sparsity". That of `fp32` is outside the matrix units; a
    format that the chip lacks has none.
    """

    memory_gb: tuple[int, ...]
    memory_gb_per_s: tuple[float, ...]
    tflops: dict[str, float]


def _read() -> dict[str, dict[str, DataSheet]]:
    kinds: dict[str, dict[str, DataSheet]] = {}
    with open(Path(__file__).with_name("gpus.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            memory_gb = tuple(map(int, row["memory_gb"].split()))
            memory_gb_per_s = tuple(map(float, row["memory_gb_per_s"].split()))
            tflops = {name: float(row[name]) for name in PRECISIONS if row[name]}
            sheet = DataSheet(memory_gb, memory_gb_per_s, tflops)
            kinds.setdefault(row["kind"], {})[row["form"]] = sheet
    return kinds


KINDS = _read()
"""Each kind of GPU with its forms, the usual one first."""
FORM_OF_MEMORY = {("h100", "hbm2e"): "pcie"}
"""Kinds of memory that tell the form: `NVIDIA H100 80GB HBM2e` is the PCIe card."""
MAKERS = {"nvidia", "tesla", "geforce", "amd", "instinct", "gpu"}
MEMORY = {"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x"}
ALIASES = {"mi150x": "mi250x"}
"""A publication's name for one of the two dies."""


class GpuName(NamedTuple):
    """What a name says."""

    kind: str
    form: str
    """`sxm`, `pcie`, `nvl` or `oam`; the usual one if the name has none."""
    memory_gb: int | None
    """Nominal memory, if the name has it."""


@lru_cache
def parse(name: str | None) -> GpuName | None:
    """Return the parts of a name; None if one of its words is unknown."""
    words = re.split(r"[\s_-]+", (name or "").strip().lower())
    words = [ALIASES.get(word, word) for word in words if word not in MAKERS]
    kind = next((kind for kind in KINDS if words[: len(kind.split())] == kind.split()), None)
    if kind is None:
        return None
    forms = KINDS[kind]
    form = next(iter(forms))
    memory_gb = None
    for word in words[len(kind.split()) :]:
        capacity = re.fullmatch(r"(\d{1,4})gb?", word)
        if capacity:
            memory_gb = int(capacity[1])
        elif word in MEMORY:
            form = FORM_OF_MEMORY.get((kind, word), form)
        else:
            form = re.sub(r"^sxm\d$", "sxm", word)
        if form not in forms:
            return None
    if memory_gb is not None and memory_gb not in forms[form].memory_gb:
        return None
    return GpuName(kind, form, memory_gb)
