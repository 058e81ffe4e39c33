"""Whether a setting lies within what the constants of the time model were fitted to, in words where it does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsnb.prediction import gpus
from dsnb.prediction.links import Link
from dsnb.prediction.measured import Measured
from dsnb.prediction.shapes import shape
from dsnb.settings.derived import CUDA_GRAPHS
from dsnb.settings.experiment import Experiment

MARGIN = 2.0
"""A range is left when a value is this many times below or above it."""


@dataclass(frozen=True)
class Coverage:
    """What a calibration has seen: sets of names, and (least, most) of ranges."""

    gpus: frozenset[str]
    families: frozenset[str]
    strategies: frozenset[str]
    precisions: frozenset[str]
    modes: frozenset[str]
    offloads: frozenset[str]
    optimizers: frozenset[str]
    losses: frozenset[str]
    compressions: frozenset[str]
    hidden: tuple[float, float]
    tokens: tuple[float, float]
    ranks: tuple[float, float]
    nodes: tuple[float, float]

    @classmethod
    def of(cls, runs: Sequence[Measured], link: Link | None = None) -> "Coverage":
        """Return what measured runs cover; `link` says how many nodes they took.

        Raises
        ------
        ValueError
            If there are no runs.
        """
        path = link or Link()
        names = [_names(run.experiment, gpus.find(run.gpu_name).name) for run in runs]
        numbers = [_numbers(run.experiment, path) for run in runs]
        found: dict[str, Any] = {name: frozenset(one[name] for one in names) for name in NAMES}
        for name in RANGES:
            values = [one[name] for one in numbers]
            found[name] = (min(values), max(values))
        return cls(**found)


NAMES = {
    "gpus": "GPU",
    "families": "models of the family",
    "strategies": "strategy",
    "precisions": "precision",
    "modes": "mode of compilation",
    "offloads": "offload",
    "optimizers": "optimizer",
    "losses": "loss",
    "compressions": "gradient compression",
}
RANGES = {
    "hidden": "hidden size",
    "tokens": "number of tokens in a micro-batch",
    "ranks": "number of GPUs",
    "nodes": "number of nodes",
}


DEFAULT_COVERAGE = Coverage(
    gpus=frozenset({"H200"}),
    families=frozenset({"gpt2", "opt", "bloom"}),
    strategies=frozenset(
        [
            "plain",
            "ddp",
            "fsdp",
            "ZeRO 0",
            "ZeRO 1",
            "ZeRO 2",
            "ZeRO 3",
            "ZeRO 0 with tensor parallel",
            "ZeRO 0 with pipeline parallel",
            "ZeRO 1 with tensor parallel",
            "ZeRO 1 with pipeline parallel",
        ]
    ),
    precisions=frozenset({"fp32", "fp16", "bf16"}),
    modes=frozenset({"eager", "compiled", "CUDA graphs"}),
    offloads=frozenset({"none"}),  # offloaded optimizers were measured on one CPU thread
    optimizers=frozenset({"adamw", "adafactor"}),
    losses=frozenset({"whole", "chunked"}),
    compressions=frozenset({"none", "bf16"}),
    hidden=(768, 5120),
    tokens=(256, 32768),
    ranks=(1, 4),
    nodes=(1, 1),
)
"""What `dsnb.prediction.constants.DEFAULT` was fitted to."""


def outside(
    experiment: Experiment, gpu_name: str, covered: Coverage = DEFAULT_COVERAGE, link: Link | None = None
) -> list[str]:
    """Return a sentence for each thing in which an experiment differs from all runs of a calibration; empty for none.

    Parameters
    ----------
    gpu_name
        As `gpus.find` takes it.
    """
    found = []
    own, numbers = _names(experiment, gpus.find(gpu_name).name), _numbers(experiment, link or Link())
    for name, words in NAMES.items():
        known = getattr(covered, name)
        if own[name] not in known:
            found.append(f"no calibration run has the {words} {own[name]}, only {', '.join(sorted(known))}")
    for name, words in RANGES.items():
        least, most = getattr(covered, name)
        margin = 1.0 if name == "nodes" and most == 1 else MARGIN  # one node tells nothing of a network
        if not least / margin <= numbers[name] <= most * margin:
            known = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            found.append(f"the {words} is {numbers[name]:,}, calibration runs have {known}")
    return found


def _names(experiment: Experiment, gpu: str) -> dict[str, str]:
    return {
        "gpus": gpu,
        "families": shape(experiment.model).family,
        "strategies": _strategy(experiment),
        "precisions": experiment.precision,
        "modes": _mode(experiment),
        "offloads": experiment.offload,
        "optimizers": experiment.optimizer,
        "losses": experiment.loss,
        "compressions": experiment.gradient_compression,
    }


def _numbers(experiment: Experiment, link: Link) -> dict[str, float]:
    return {
        "hidden": shape(experiment.model).hidden,
        "tokens": int(experiment.micro_batch_size) * experiment.seq_len,
        "ranks": experiment.gpus,
        "nodes": link.nodes(experiment),
    }


def _strategy(experiment: Experiment) -> str:
    name = f"ZeRO {experiment.zero_stage}" if experiment.strategy == "deepspeed" else experiment.strategy
    more = {
        "tensor parallel": experiment.tensor_parallel > 1,
        "pipeline parallel": experiment.pipeline_parallel > 1,
        "ZeRO++": experiment.zeropp != "none",
    }
    used = [words for words, is_used in more.items() if is_used]
    return f"{name} with {' and '.join(used)}" if used else name


def _mode(experiment: Experiment) -> str:
    if experiment.compile in CUDA_GRAPHS:
        return "CUDA graphs"
    return {"off": "eager", "default": "compiled"}.get(experiment.compile, experiment.compile)
