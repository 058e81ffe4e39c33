"""Names of GPUs as drivers, publications and data sheets write them: `NVIDIA A100-SXM4-80GB`, `H100 PCIe`, `V100-16GB`.

Every word of a name has to be understood. A part of a card, a laptop's, or one of another memory has the name of the
card with another word (`NVIDIA H100 80GB HBM3 MIG 1g.10gb`, `NVIDIA A10-4Q`), and neither its rates nor its memory.
"""

import re
from functools import lru_cache
from typing import NamedTuple

KINDS: dict[str, dict[str, tuple[int, ...]]] = {
    "b200": {"sxm": (180, 192)},
    "h200": {"sxm": (141,), "nvl": (141,)},
    "h100": {"sxm": (80,), "pcie": (80,), "nvl": (94,)},
    "a100": {"sxm": (80, 40), "pcie": (80, 40)},
    "a10": {"pcie": (24,)},
    "l40s": {"pcie": (48,)},
    "l4": {"pcie": (24,)},
    "v100": {"sxm": (32, 16), "pcie": (32, 16)},
    "t4": {"pcie": (16,)},
    "rtx 4090": {"pcie": (24,)},
    "rtx 3090": {"pcie": (24,)},
    "mi250x": {"oam": (128, 64)},
}
"""Each kind of GPU with its forms, the usual one first, and the nominal memory of each form in GB."""
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
    words = [ALIASES.get(word, word) for word in re.split(r"[\s_-]+", (name or "").strip().lower())]
    words = [word for word in words if word not in MAKERS]
    kind = next((kind for kind in KINDS if words[: len(kind.split())] == kind.split()), None)
    if kind is None:
        return None
    form = memory_gb = None
    for word in words[len(kind.split()) :]:
        if capacity := re.fullmatch(r"(\d{1,4})gb?", word):
            memory_gb = int(capacity[1])
        elif word in MEMORY:
            form = FORM_OF_MEMORY.get((kind, word), form)
        elif re.fullmatch(r"sxm\d?", word):
            form = "sxm"
        elif word in {"pcie", "nvl", "oam"}:
            form = word
        else:
            return None
    forms = KINDS[kind]
    form = form or next(iter(forms))
    if form not in forms or (memory_gb is not None and memory_gb not in forms[form]):
        return None
    return GpuName(kind, form, memory_gb)
