"""What a recommendation is for: the hardware to train on, and the training to pay for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.system import hardware
from dsnb.prediction import gpus
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.prediction.predict import On, on_gpu
from dsnb.prediction.predicted import known_gpu
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import problem
from dsnb.results.answers.decide import Question
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs.number_text import amount
from dsnb.settings.experiment import Experiment

USUAL_GPU = "H200"
"""GPU assumed if none is given and this machine has none that dsnb knows."""
USUAL_NETWORK = "ib:400"
"""Link between nodes assumed where the smallest number of GPUs needs several."""
Objective = Literal["days", "tokens_per_s", "memory", "cost"]
OBJECTIVES = {"days": "time", "tokens_per_s": "time", "memory": "memory", "cost": "cost"}
"""Objective of `dsnb.recommend` -> objective of `dsnb.results.answers.decide`."""


@dataclass(frozen=True, eq=False)
class Target:
    """The hardware to train on, as `dsnb.predict` takes it."""

    gpu: str = ""
    """By default that of this machine, or `USUAL_GPU`."""
    link: str = "nvlink"
    calibrate: pd.DataFrame | None = None
    host_memory: float | None = None
    device: str = "cuda"
    gpu_memory_gib: float | None = None
    """Memory of the GPU that runs, which may be another one, or a part of one."""
    network: str = ""
    """The assumed link between nodes."""

    @cached_property
    def _here(self) -> list[str]:
        return [card.name for card in hardware.gpus() if known_gpu(card.name)]

    @cached_property
    def hardware(self) -> On:
        """The GPU, its links and the time model. Raises SettingsError if the GPU or the link is unknown."""
        name = self.gpu or [*self._here, USUAL_GPU][0]
        on = on_gpu(name, self.link, self.calibrate, host_gib=self.host_memory)
        if self.network:
            network = gpus.link(self.network).network_gb_per_s
            on = replace(on, link=replace(on.link, network_gb_per_s=network))
        if self.gpu_memory_gib is not None:
            memory_gib = min(self.gpu_memory_gib, on.gpu.memory_gib)
            on = replace(on, gpu=replace(on.gpu, memory_gib=memory_gib))
        return on

    @property
    def assumed(self) -> list[str]:
        """What was not asked for, in words."""
        texts = []
        if not self.gpu and self._here:
            texts.append(f"the GPU of this machine, {self._here[0]}")
        elif not self.gpu:
            unknown = [f", as {card.name} of this machine is unknown" for card in hardware.gpus()]
            texts.append(f"{USUAL_GPU}{''.join(unknown[:1])} (--gpu for another)")
        if self.network:
            texts.append(f"{self.network} between nodes (--link for another)")
        return texts

    @property
    def installed(self) -> int:
        """GPUs of this kind on this machine."""
        return sum(known_gpu(name) == known_gpu(self.hardware.gpu.name) for name in self._here)

    @property
    def half_precision(self) -> str:
        """The half precision of the GPU: bf16 unless it is known to have none."""
        name = self.hardware.gpu.name
        has_fp32_only = hardware.peak_tflops(name, "fp32") and not hardware.peak_tflops(
            name, "bf16"
        )
        return "fp16" if has_fp32_only else "bf16"

    @property
    def path(self) -> str:
        """The link that predictions are for."""
        return self.network or self.link

    def check_network(self, number: int, nodes: object) -> None:
        """Raise SettingsError if this number of GPUs is on several nodes, and nothing connects them."""
        if isinstance(nodes, int):
            least = math.ceil(number / NODE_GPUS)
            self.hardware.link.check(number, max(nodes, least))

    def with_network(self, number: int) -> "Target":
        """Assume a network if this number of GPUs needs several nodes and no link between them is given."""
        if number <= NODE_GPUS or self.hardware.link.network_gb_per_s:
            return self
        return replace(self, network=USUAL_NETWORK)

    def predictable(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Return the settings that can be predicted; raise SettingsError with the reasons if none can."""
        reasons = [problem(one, self.hardware.gpu.name, self.path) for one in experiments]
        if all(reasons):
            raise SettingsError(list(dict.fromkeys(reasons)))
        return [one for one, why in zip(experiments, reasons, strict=True) if not why]


@dataclass(frozen=True)
class Budget:
    """Tokens to train on, the price of a GPU-hour, and what is to be least or most."""

    tokens: float | None = None
    """By default as many as are usual for the model."""
    price: float | None = None
    currency: str = "$"
    objective: str = "days"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise SettingsError(f"objective is {self.objective!r}: use one of {known}")
        if self.objective == "cost" and not self.price:
            raise SettingsError(
                "objective is 'cost', but price is missing or 0: give the price of a GPU-hour"
            )
        planning.check(1 if self.tokens is None else self.tokens, {}, price=self.price)

    def question(self, experiments: Sequence[Experiment]) -> Question:
        """Return the question about settings of one task."""
        tokens = self.tokens
        if tokens is None:
            tokens = planning.usual_tokens(*_model(experiments))
        return Question(
            tokens,
            OBJECTIVES[self.objective],
            prices={} if self.price is None else {"": self.price},
            currency=self.currency,
            max_days=math.inf,
        )

    def assumed(self, experiments: Sequence[Experiment]) -> list[Sentence]:
        """Return the tokens that are assumed; none if they were given."""
        return [usual_tokens(*_model(experiments))] if self.tokens is None else []


def _model(experiments: Sequence[Experiment]) -> tuple[float, bool]:
    """Return the parameters of the model of a task, and whether all settings adapt a trained one."""
    is_fine_tuning = all(planning.is_fine_tuning(vars(one)) for one in experiments)
    return shape(experiments[0].model).parameters, is_fine_tuning


def usual_tokens(parameters: float, fine_tuning: bool) -> Sentence:
    """Return the tokens that are assumed if none are given, and why, as in "140 billion tokens, 20 per parameter"."""
    name = "unknown"
    if fine_tuning:
        name = "fine_tuning"
    elif parameters > 0:
        name = "size"
    tokens = amount(planning.usual_tokens(parameters, fine_tuning))
    return say(f"usual_tokens.{name}", tokens=tokens, per=planning.TOKENS_PER_PARAMETER)
