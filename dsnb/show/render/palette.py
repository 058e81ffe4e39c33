"""The colours of all figures and charts.

The hues are from Okabe and Ito (2008), distinguishable with any colour vision, and one from Paul
Tol.
"""

import itertools
from collections.abc import Sequence

BLUE = "#0072b2"
SKY_BLUE = "#56b4e9"
ORANGE = "#e69f00"
GREEN = "#009e73"
PURPLE = "#cc79a7"
VERMILION = "#d55e00"
YELLOW = "#f0e442"
WINE = "#aa4499"

INK = "#30363d"
SOFT_INK = "#57606a"
GREY = "#8a929c"
LIGHT_GREY = "#c8ced6"
GRID = "#e3e6ea"
SURFACE = "#ffffff"
"""Background of a figure."""
DARK = {
    INK: "#e6e9ed",
    SOFT_INK: "#a3acb7",
    LIGHT_GREY: "#4a525c",
    GRID: "#363d46",
    SURFACE: "#1d2126",
}
"""Colour -> its replacement in a dark theme; all other colours are legible in both themes."""

SERIES = [BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, VERMILION, "#7f7f7f", INK]
"""Colours of the lines of a figure, in this order."""
CATEGORIES = [
    "#1f7fd1", "#e0561a", "#0f9d58", "#8a63e0", "#b8860b", "#c2569f", "#1499a8", "#e0405e", "#7f9b12", "#7d838c",
]  # fmt: skip
"""Values of a setting in the explorer: each has a contrast of 3 or more in its light and dark
theme."""
PARALLELISM = dict(
    zip(("ZeRO 0", "ZeRO 2", "ZeRO 1", "ZeRO 3", "DDP", "FSDP"), CATEGORIES, strict=False),
    plain=CATEGORIES[-1],
)
"""Colours of the ways to share a training; combinations of TP and PP have the remaining
categories."""
SEQUENCE = ["#3b4d8f", "#575d8a", "#70708a", "#88838a", "#a29884", "#bead77", "#dcc463", "#f4dd50"]
"""The middle of cividis, whose lightness increases steadily: for settings with more values than
categories."""
UNSELECTED = "#9aa3ad66"
ONE_RUN = "#3a97d4"
"""A single run over time in the explorer: legible on white and on black."""

PRECISIONS = {"fp32": BLUE, "tf32": SKY_BLUE, "fp16": ORANGE, "bf16": GREEN}
STATUSES = {
    "ok": BLUE,
    "oom": VERMILION,
    "nan": PURPLE,
    "failed": WINE,
    "timeout": ORANGE,
    "interrupted": GREY,
    "untrained": SKY_BLUE,
}
MEMORY_PARTS = [BLUE, SKY_BLUE, ORANGE, PURPLE, GREEN, YELLOW]


def parallelism(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each way to share a training among GPUs."""
    others = [name for name in names if name not in PARALLELISM]
    unused = itertools.cycle(colour for colour in CATEGORIES if colour not in PARALLELISM.values())
    return {**PARALLELISM, **dict(zip(others, unused, strict=False))}


def sequence(count: int) -> list[str]:
    """Return `count` colours for ordered values: categories if there are enough, otherwise a sequence."""
    if count <= len(CATEGORIES):
        return CATEGORIES[:count]
    return [SEQUENCE[round(place * (len(SEQUENCE) - 1) / (count - 1))] for place in range(count)]
