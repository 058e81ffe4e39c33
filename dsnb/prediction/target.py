"""What a recommendation is for: the hardware to train on, and the training to pay for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.system import hardware
from dsnb.prediction import gpus
from dsnb.prediction.gpus import NODE_GPUS, known_gpu
from dsnb.prediction.predict import Hardware, on_gpu
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


@dataclass(eq=False)
class Target:
    """The hardware to train on, as `dsnb.predict` takes it, and what follows from that.

    Raises SettingsError if the GPU or the link is unknown.
    """

    gpu: str = ""
    """By default that of this machine, or `USUAL_GPU`."""
    link: str = "nvlink"
    calibrate: pd.DataFrame | None = None
    host_memory: float | None = None
    device: str = "cuda"
    gpu_memory_gib: float | None = None
    """Memory of the GPU that runs, which may be another one, or a part of one."""
    hardware: Hardware = field(init=False)
    """The GPU, its links and the time model."""
    installed: int = field(init=False)
    """GPUs of this kind on this machine."""
    half_precision: str = field(init=False)
    """The half precision of the GPU: bf16 unless it is known to have none."""
    assumed: list[str] = field(init=False)
    """What was not asked for, in words."""

    def __post_init__(self) -> None:
        here = [card.name for card in hardware.gpus()]
        known = [name for name in here if known_gpu(name)]
        name = self.gpu or [*known, USUAL_GPU][0]
        on = on_gpu(name, self.link, self.calibrate, host_gib=self.host_memory)
        self.installed = sum(known_gpu(other) == on.gpu for other in known)
        peaks = {form: hardware.peak_tflops(on.gpu.name, form) for form in ("fp32", "bf16")}
        self.half_precision = "fp16" if peaks["fp32"] and not peaks["bf16"] else "bf16"
        if self.gpu_memory_gib is not None:
            memory_gib = min(self.gpu_memory_gib, on.gpu.memory_gib)
            on = replace(on, gpu=replace(on.gpu, memory_gib=memory_gib))
        self.hardware = on
        self.assumed = []
        if not self.gpu and known:
            self.assumed.append(f"the GPU of this machine, {name}")
        elif not self.gpu:
            why = "as no GPU was given"
            if here:
                why = f"as {here[0]} of this machine is unknown"
            self.assumed.append(f"{name}, {why}")

    def assume_network(self, number: int) -> None:
        """Assume a network if this number of GPUs needs several nodes and no link between them is given."""
        link = self.hardware.link
        if number > NODE_GPUS and not link.has_network:
            network = gpus.link(USUAL_NETWORK).network_gb_per_s
            self.hardware = replace(self.hardware, link=replace(link, network_gb_per_s=network))
            self.link = USUAL_NETWORK
            self.assumed.append(f"{USUAL_NETWORK} between nodes, as no link was given")

    def predictable(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Return the settings that can be predicted; raise SettingsError with the reasons if none can."""
        reasons = [problem(one, self.hardware.gpu, self.link) for one in experiments]
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
        if self.tokens is None:
            return [usual_tokens(*_model(experiments))]
        return []


def budgets(
    targets: Sequence[Target],
    price: float | Mapping[str, float] | None,
    tokens: float | None,
    currency: str,
    objective: str,
) -> list[Budget]:
    """Return the budget on each GPU; a mapping has prices by names of GPUs, and `""` is for all others."""
    prices = price
    if not isinstance(prices, Mapping):
        prices = {} if prices is None else {"": prices}
    of_gpus = {name and gpus.find(name).name: price for name, price in prices.items()}
    names = [target.hardware.gpu.name for target in targets]
    unused = sorted(of_gpus.keys() - {"", *names})
    if unused:
        raise SettingsError(
            f"price has {', '.join(unused)}, but the GPUs are {', '.join(names)}: compare them, too, or leave it out"
        )
    usual = of_gpus.get("")
    return [Budget(tokens, of_gpus.get(name, usual), currency, objective) for name in names]


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
