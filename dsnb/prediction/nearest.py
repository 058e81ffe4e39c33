"""The measured run that is nearest to a predicted setting, and how far its own prediction was off.

`measured_runs.csv` has a row for every setting that was measured with dsnb, and for every published
one of other programs, each beside its prediction with the settings of its run (`python -m
benchmarks.ranges` writes it). The distance of two settings is a sum: a weight for each trait that
differs, and one for each factor of two between their numbers (`distance` in `tuned.toml`).
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsnb.prediction import tuned
from dsnb.prediction.gpus import GpuSpec
from dsnb.prediction.shapes import shape
from dsnb.results.runs.labels import count
from dsnb.results.runs.number_text import fixed
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import file_name

FILE = Path(__file__).with_name("measured_runs.csv")
WEIGHTS = {name: row[0] for name, row in tuned.rows(tuned.TUNED["distance"]).items()}
NUMBERS = ("rate", "parameters", "gpus", "seq_len", "tokens")
"""Numbers of a setting that are compared by their ratio; what else has a weight is a trait."""
TRAITS = [name for name in WEIGHTS if name not in NUMBERS]
SAID = ("precision", "compiled", "recomputed", "trained", "offload")
"""Traits that a sentence names where they differ."""
BETWEEN_KINDS = " | "
RANGE = tuned.numbers("range")


class MeasuredRun(NamedTuple):
    """A measured setting beside its own prediction."""

    source: str
    """The table of runs of dsnb, or the project that published it."""
    is_own: bool
    gpu: str
    nodes: int
    model: str
    traits: Mapping[str, str]
    numbers: Mapping[str, float]
    tokens_per_s: float
    predicted: float
    by_sheet: float
    """The predicted speed if its GPU reached as much of its data sheet as H200."""
    mfu: float
    is_checked: bool
    """Whether nothing was fitted to it, so that its error says how wrong predictions are."""
    arithmetic: str
    """What its MFU is a share of (`dsnb.prediction.speed_range.arithmetic`)."""
    kinds: tuple[str, ...]
    """Kinds of settings whose error it tells, the narrowest first."""

    @property
    def log_error(self) -> float:
        """The logarithm of the measured speed over the predicted one."""
        return math.log(self.tokens_per_s / self.predicted)


def features(
    experiment: Experiment, gpu: GpuSpec, nodes: int
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the traits and the numbers of a setting on a GPU that distances compare."""
    model = shape(experiment.model)
    compiled = "not compiled"
    if experiment.compile != "off":
        compiled = "compiled"
    recomputed = "nothing recomputed"
    if experiment.activation_checkpointing:
        recomputed = "blocks recomputed"
    trained = "all weights trained"
    if experiment.lora_rank:
        trained = "LoRA"
        if experiment.frozen_weights != "auto":
            trained = f"LoRA beside {experiment.frozen_weights} weights"
    precision: str = experiment.precision
    if experiment.matmul == "fp8":
        precision = "fp8"
    place = "one node"
    if nodes > 1:
        place = "several nodes"
    offload = "no offload"
    if experiment.offload != "none":
        offload = f"offload {experiment.offload}"
    traits = {
        "gpu": gpu.name,
        "model": file_name(experiment.model),
        "family": model.family,
        "strategy": experiment.label,
        "precision": precision,
        "mixed_precision": experiment.mixed_precision,
        "compiled": compiled,
        "recomputed": recomputed,
        "trained": trained,
        "offload": offload,
        "place": place,
        "loss": f"{experiment.loss} loss",
        "optimizer": experiment.optimizer,
    }
    numbers = {
        "rate": gpu.half_tflops,
        "parameters": model.parameters,
        "gpus": experiment.gpus,
        "seq_len": experiment.seq_len,
        "tokens": experiment.micro_batch_tokens,
    }
    return traits, numbers


@cache
def runs() -> tuple[MeasuredRun, ...]:
    """Return all measured runs."""
    with open(FILE, encoding="utf-8", newline="") as file:
        return tuple(_run(row) for row in csv.DictReader(file))


def _run(row: Mapping[str, str]) -> MeasuredRun:
    return MeasuredRun(
        source=row["source"],
        is_own=row["is_own"] == "1",
        gpu=row["gpu"],
        nodes=int(row["nodes"]),
        model=row["model"],
        traits={name: row[name] for name in TRAITS},
        numbers={name: float(row[name]) for name in NUMBERS},
        tokens_per_s=float(row["tokens_per_s"]),
        predicted=float(row["predicted"]),
        by_sheet=float(row["by_sheet"]),
        mfu=float(row["mfu"]),
        is_checked=row["is_checked"] == "1",
        arithmetic=row["arithmetic"],
        kinds=tuple(row["kinds"].split(BETWEEN_KINDS)),
    )


@cache
def _columns() -> tuple[dict[str, NDArray[np.str_]], dict[str, NDArray[np.float64]]]:
    """Return the traits and the logarithms of the numbers of all runs, a column each."""
    traits = {name: np.array([run.traits[name] for run in runs()]) for name in TRAITS}
    numbers = {name: np.log2([run.numbers[name] for run in runs()]) for name in NUMBERS}
    return traits, numbers


def nearest(asked: Mapping[str, str], sizes: Mapping[str, float]) -> MeasuredRun:
    """Return the measured run that is nearest to the `features` of a setting; of equally near ones, the first."""
    traits, numbers = _columns()
    distance = np.zeros(len(runs()))
    for name, column in traits.items():
        distance += WEIGHTS[name] * (column != asked[name])
    for name, logs in numbers.items():
        distance += WEIGHTS[name] * np.abs(logs - math.log2(sizes[name]))
    return runs()[int(distance.argmin())]


def sentence(experiment: Experiment, gpu: GpuSpec, nodes: int) -> str:
    """Return the nearest run in words: "measured on H200: llama-3.1-8b, 2 GPUs, ZeRO 3, 21,519 tokens/s, ..."."""
    asked, sizes = features(experiment, gpu, nodes)
    run = nearest(asked, sizes)
    where = f"measured on {run.gpu}"
    if not run.is_own:
        where = f"measured by {run.source} on {run.gpu}"
    parts = [run.model, count(int(run.numbers["gpus"]), "GPU"), run.traits["strategy"]]
    for name in SAID:
        if run.traits[name] != asked[name]:
            parts.append(run.traits[name])
    if run.numbers["seq_len"] != sizes["seq_len"]:
        parts.append(f"sequences of {fixed(run.numbers['seq_len'])}")
    parts.append(f"{fixed(run.tokens_per_s)} tokens/s")
    parts.append(_difference(run))
    return f"{where}: {', '.join(parts)}"


def in_short(experiment: Experiment, gpu: GpuSpec, nodes: int) -> str:
    """Return the nearest run in a few words: "llama-3.1-8b on 2 H200, 3 % faster than predicted"."""
    run = nearest(*features(experiment, gpu, nodes))
    return f"{run.model} on {run.numbers['gpus']:g} {run.gpu}, {_difference(run)}"


def _difference(run: MeasuredRun) -> str:
    """Return how far a run's speed was from its own prediction."""
    change_pct: Any = 100 * (run.tokens_per_s / run.predicted - 1)
    if abs(change_pct) < RANGE.as_predicted_pct:
        return "as predicted"
    direction = "faster"
    if change_pct < 0:
        direction = "slower"
    return f"{abs(change_pct):.0f} % {direction} than predicted"
