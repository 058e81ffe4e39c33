"""Whether a setting lies within what the constants of the time model were fitted to, in words where it does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsnb.prediction import gpus
from dsnb.prediction.links import Link
from dsnb.prediction.measured import Measured
from dsnb.prediction.mode import shape
from dsnb.settings.derived import CUDA_GRAPHS
from dsnb.settings.experiment import Experiment

MARGIN = 2.0
"""A range is left when a value is this many times below or above it."""
GPU, NODES = "GPU", "number of nodes"


@dataclass(frozen=True)
class Coverage:
    """What a calibration has seen: the names of each kind, and the (least, most) of each number, by its words."""

    names: Mapping[str, frozenset[str]]
    ranges: Mapping[str, tuple[float, float]]

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that runs were measured on."""
        return self.names[GPU]

    @classmethod
    def of(cls, runs: Sequence[Measured], link: Link | None = None) -> "Coverage":
        """Return what measured runs cover; `link` says how many nodes they took.

        Raises
        ------
        ValueError
            If there are no runs.
        """
        if not runs:
            raise ValueError("no runs cover nothing")
        names = [_names(run.experiment, gpus.find(run.gpu_name).name) for run in runs]
        numbers = [_numbers(run.experiment, link or Link()) for run in runs]
        return cls(
            {words: frozenset(one[words] for one in names) for words in names[0]},
            {words: (min(one[words] for one in numbers), max(one[words] for one in numbers)) for words in numbers[0]},
        )


DEFAULT_COVERAGE = Coverage(
    names={
        GPU: frozenset({"H200"}),
        "models of the family": frozenset({"gpt2", "opt", "bloom"}),
        "strategy": frozenset(
            [
                *("plain", "ddp", "fsdp", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3"),
                *(f"ZeRO {stage} with {kind} parallel" for stage in (0, 1) for kind in ("tensor", "pipeline")),
            ]
        ),
        "precision": frozenset({"fp32", "fp16", "bf16"}),
        "mode of compilation": frozenset({"eager", "compiled", "CUDA graphs"}),
        "offload": frozenset({"none"}),  # offloaded optimizers were measured on one CPU thread
        "optimizer": frozenset({"adamw", "adafactor"}),
        "loss": frozenset({"whole", "chunked"}),
        "gradient compression": frozenset({"none", "bf16"}),
    },
    ranges={
        "hidden size": (768, 5120),
        "number of tokens in a micro-batch": (256, 32768),
        "number of GPUs": (1, 4),
        NODES: (1, 1),
    },
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
    sentences = [
        f"no calibration run has the {words} {name}, only {', '.join(sorted(covered.names[words]))}"
        for words, name in _names(experiment, gpus.find(gpu_name).name).items()
        if name not in covered.names[words]
    ]
    for words, number in _numbers(experiment, link or Link()).items():
        least, most = covered.ranges[words]
        margin = 1.0 if words == NODES and most == 1 else MARGIN  # one node tells nothing of a network
        if not least / margin <= number <= most * margin:
            known = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            sentences.append(f"the {words} is {number:,}, calibration runs have {known}")
    return sentences


def _names(experiment: Experiment, gpu: str) -> dict[str, str]:
    modes = {"off": "eager", "default": "compiled", **dict.fromkeys(CUDA_GRAPHS, "CUDA graphs")}
    return {
        GPU: gpu,
        "models of the family": shape(experiment.model).family,
        "strategy": _strategy(experiment),
        "precision": experiment.precision,
        "mode of compilation": modes.get(experiment.compile, experiment.compile),
        "offload": experiment.offload,
        "optimizer": experiment.optimizer,
        "loss": experiment.loss,
        "gradient compression": experiment.gradient_compression,
    }


def _numbers(experiment: Experiment, link: Link) -> dict[str, float]:
    return {
        "hidden size": shape(experiment.model).hidden,
        "number of tokens in a micro-batch": int(experiment.micro_batch_size) * experiment.seq_len,
        "number of GPUs": experiment.gpus,
        NODES: link.nodes(experiment),
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
