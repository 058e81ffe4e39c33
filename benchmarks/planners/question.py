"""What a planner is asked, a published row without its measurement, and what it may answer.

A planner is a class with the fields of `Planner` in a module of its own, listed in
`benchmarks.planners.registry`. It answers a `Question` with the figures that it claims to give, or
refuses with one sentence. A figure that it does not give stays `None`: absence is never a value.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.outside import rows
from benchmarks.planners import models
from benchmarks.planners.models import ModelSize
from dsnb.prediction import gpus
from dsnb.prediction.gpus import GpuSpec

DEFAULTS = {
    "strategy": "deepspeed",
    "zero_stage": 1,
    "grad_accum": 1,
    "activation_checkpointing": False,
    "checkpoint_every": 1,
    "lora_rank": 0,
    "offload": "none",
}
"""Settings that a row may leave to dsnb's defaults."""


@dataclass(frozen=True)
class Question:
    """One published training, as a planner sees it."""

    published: Mapping[str, Any] = field(repr=False)
    folder: Path = rows.HERE
    """Where the rows' models may lie."""

    @property
    def row(self) -> str:
        """The identifier of the row."""
        return str(self.published["id"])

    @property
    def model_name(self) -> str:
        """The model, as the row names it."""
        return str(self.published["model"])

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return int(self.published["gpus"])

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.published.get("nodes") or 1)

    @property
    def gpu_name(self) -> str:
        """The GPU, as the row names it."""
        return str(self.published["gpu"])

    @property
    def gpu(self) -> GpuSpec:
        """The data sheet of the GPU."""
        return gpus.find(self.gpu_name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the training: those of the row, those that its note names, and defaults."""
        found = {**DEFAULTS, **self.published["settings"]}
        for further in rows.known_settings(self.published):
            found.update(further)
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of the model, in transformers' words."""
        file = rows.find_file(self.published["cfg"], self.folder)
        return dict(json.loads(file.read_text(encoding="utf-8")))

    @property
    def model(self) -> ModelSize:
        """The parameters of the model."""
        return models.size(Path(self.published["cfg"]).stem)

    @property
    def is_lora(self) -> bool:
        """Whether only adapters are trained."""
        return int(self.settings["lora_rank"]) > 0

    @property
    def is_pure_bf16(self) -> bool:
        """Whether weights and optimizer states are in bf16, without fp32 masters."""
        return bool(self.settings.get("mixed_precision") == "none")

    @property
    def offloads(self) -> bool:
        """Whether states are in host memory."""
        return str(self.settings["offload"]) != "none"

    @property
    def is_replicated(self) -> bool:
        """Whether each GPU holds the whole training state."""
        strategy = self.settings["strategy"]
        return self.gpus == 1 or strategy in {"plain", "ddp"}

    @property
    def zero_stage(self) -> int:
        """The stage of ZeRO that shards what this training shards: 3 for FSDP, 0 for replicas."""
        strategy = self.settings["strategy"]
        if strategy == "fsdp":
            return 3
        if strategy == "deepspeed":
            return int(self.settings["zero_stage"])
        return 0

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of a micro-batch of one GPU."""
        return int(self.settings["micro_batch_size"]) * int(self.settings["seq_len"])

    def fits(self, memory_gib: float) -> bool:
        """Return whether the nominal memory of the GPU holds so much."""
        return memory_gib <= self.gpu.memory_gib


@dataclass(frozen=True)
class Answer:
    """What a planner says of one row; figures that it does not give are None."""

    tokens_per_s: float | None = None
    """Of one GPU."""
    low: float | None = None
    """The range of the speed that the planner states, if it states one."""
    high: float | None = None
    memory_gib: float | None = None
    """The peak of one GPU, as far as the planner claims to count it."""
    fits: bool | None = None
    """Whether the training has enough memory."""
    why_not: str = ""
    """Why it gives no figure at all."""


class Planner(ABC):
    """One program or rule that predicts."""

    name: str
    """On the command line, and of its file of predictions."""
    title: str
    """In tables."""
    source: str
    """Where its formula or program is published."""
    version: str
    """Version or date of what was used."""
    claims: str
    """What its figures mean by its own words."""
    memory_of: str
    """What its memory is of, beside its score; empty if it gives none."""
    command: str
    """The command that makes its predictions, with what has to be installed."""

    @abstractmethod
    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the answer to each question."""


class RowPlanner(Planner):
    """A planner that is asked about each row by itself."""

    @abstractmethod
    def answer(self, question: Question) -> Answer:
        """Return what it says of one row, or why it says nothing."""

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the answer to each question."""
        return [self.answer(question) for question in questions]


def read(file: Path = rows.ROWS) -> list[Question]:
    """Return the questions of a file of rows; rows without an identifier get their place in the file."""
    published = json.loads(file.read_text(encoding="utf-8"))
    questions = []
    for number, row in enumerate(published, start=1):
        named = {"id": f"row-{number:03d}", **row}
        questions.append(Question(named, file.parent))
    return questions
