"""LLaMA-Factory's table of hardware requirements, by method, bits and size.

README of hiyouga/LLaMA-Factory, "Hardware Requirement", marked as estimated, read at commit
ff6d4d12 of 2026-08-18. The rows that apply here: full training in bf16, full training in pure bf16,
and LoRA on 16-bit weights. The table knows neither sharding nor sequence length nor micro-batch,
so a training whose states are sharded has no answer.
"""

from typing import NamedTuple

from benchmarks.planners.question import Answer, Question, RowPlanner
from dsnb.base.system.hardware import GIB

GB = 1e9
BILLION = 1e9
NEAR = 0.1
"""Share of a listed size by which a model may differ from it; other models take the formula."""


class Need(NamedTuple):
    """One line of the table, in GB: by size in billions of parameters, and of each further billion."""

    listed: dict[int, int]
    per_billion: float


FULL = Need({7: 120, 14: 240, 30: 600, 70: 1200}, 18)
PURE_BF16 = Need({7: 60, 14: 120, 30: 300, 70: 600}, 8)
LORA = Need({7: 16, 14: 32, 30: 64, 70: 160}, 2)


class LlamaFactory(RowPlanner):
    """The table of LLaMA-Factory."""

    name = "llama-factory"
    title = "LLaMA-Factory's table"
    source = "https://github.com/hiyouga/LLaMA-Factory#hardware-requirement"
    version = "2026-08-18"
    claims = "memory by method, bits and size; any sequence length and micro-batch"
    memory_of = "any length and micro-batch"
    command = "python -m benchmarks.planners predict llama-factory"

    def answer(self, question: Question) -> Answer:
        """Return the memory of one row."""
        if not question.is_replicated:
            return Answer(why_not="the table does not say how sharding over GPUs divides it")
        if question.offloads:
            return Answer(why_not="the table has no offload")
        memory_gib = needed_gb(need(question), question.model.parameters) * GB / GIB
        return Answer(memory_gib=memory_gib, fits=question.fits(memory_gib))


def need(question: Question) -> Need:
    """Return the line of the table for a training."""
    if question.is_lora:
        return LORA
    if question.is_pure_bf16:
        return PURE_BF16
    return FULL


def needed_gb(line: Need, parameters: float) -> float:
    """Return the listed GB of the nearest size, or those of the formula where no listed size is near."""
    billions = parameters / BILLION
    nearest = min(line.listed, key=lambda size: abs(size - billions))
    if abs(nearest - billions) <= NEAR * nearest:
        return line.listed[nearest]
    return line.per_billion * billions
