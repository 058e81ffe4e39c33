"""Sentences about attention and loss kernels that take much more than their FLOPs and bytes need."""

import math
from collections.abc import Mapping
from typing import Any

from dsnb.base.formulas import metrics
from dsnb.settings.records.advice import SLOW_KERNELS
from dsnb.settings.records.columns import MASKED, PARTLY_MASKED

FIGURES = (
    "step_time_median_s", "attention_kernels_s", "attention_needed_s", "loss_kernels_s", "loss_needed_s",
)  # fmt: skip
"""The figures that `slow_kernels` compares, besides the name of the attention kernel."""


def slow_kernels(figures: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each part of a profiled run whose kernels are slow, by the run's figures.

    Nothing is said of a run whose figures are missing (None or NaN).
    """
    kernel = figures.get("attention_kernel")
    causes = {"attention": "unfused", "loss": "unfused"}
    if str(kernel).endswith((MASKED, PARTLY_MASKED)):
        causes["attention"] = "mask"
    step_s = _known(figures, "step_time_median_s")
    sentences = []
    for part, cause in causes.items():
        kernels_s = _known(figures, f"{part}_kernels_s")
        needed_s = _known(figures, f"{part}_needed_s")
        if not needed_s or not metrics.are_slow_kernels(kernels_s, needed_s, step_s):
            continue
        sentence = SLOW_KERNELS["sentence"].format(
            part=part,
            kernels_ms=1e3 * kernels_s,
            needed_ms=1e3 * needed_s,
            cause=SLOW_KERNELS[cause].format(kernel=kernel),
        )
        sentences.append(sentence)
    return sentences


def _known(figures: Mapping[str, Any], name: str) -> float:
    """Return a figure; NaN, which is neither large nor small, if it is missing."""
    value = figures.get(name)
    return math.nan if value is None else float(value)
