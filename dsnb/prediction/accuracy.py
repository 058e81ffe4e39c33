"""How accurate predictions are: errors by kind of setting, and what no measured run covers.

Errors are those of settings that nothing was fitted to. Those of the user's own calibration are
measured on models that were left out of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsnb.prediction import tuned
from dsnb.prediction.calibration import Measured, limited_by_cpu
from dsnb.prediction.gpus import Link, find
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import DEFAULT, Constants, stack
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS

ALL = "all"
MIN_SETTINGS = 5
"""Minimum number of settings of a kind to use its error of times; with fewer, a wider kind is
used."""
MIN_PEAKS = 3
"""The same for peaks of memory."""
MOST_NAMED = 3
"""The most names of other settings that a warning lists."""
LIMITS = tuned.numbers("limits")
GPU = "GPU"
FAMILY = "models of the family"
NODES = "number of nodes"
LEFT_OUT = "families left out of the fit"
"""Kind of all settings of models whose family has no run among those that the constants are fitted
to."""
COMPILATION = {"off": "eager", "default": "compiled", **dict.fromkeys(CUDA_GRAPHS, "CUDA graphs")}


class PredictionError(NamedTuple):
    """Errors of predicted figures in per cent of the measured ones, on a number of settings.

    Errors of peak memory are absolute, with their arithmetic mean. Errors of step times are
    factors, the same for step time, tokens/s, days and cost: 25 if a step takes 1.25 or 1 / 1.25
    times as long, with their geometric mean.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    bias_pct: float = 0.0  # of step times: signed mean, above 0 if predicted too long

    @classmethod
    def of(cls, errors_pct: Sequence[float]) -> "PredictionError":
        """Summarize errors of step times, in per cent above (or, negative, below) the measured ones."""
        logs = np.log1p(np.asarray(errors_pct, dtype=float) / 100)
        sizes = np.abs(logs)
        summary = np.expm1([sizes.mean(), sizes.max(), logs.mean()])
        return cls(len(logs), *(round(100 * float(error), 1) for error in summary))


Summary = Callable[[Sequence[float]], PredictionError]
"""What summarizes the errors of some settings."""


class ExpectedError(NamedTuple):
    """The error to expect of a predicted figure: the kind of settings that it was measured on, and the error."""

    kind: str
    error: PredictionError

    def columns(self, figure: str) -> dict[str, Any]:
        """Return the columns of a figure's error: its size, and on what it was measured: `12 settings, LoRA`."""
        measured_on = f"{self.error.settings} settings, {self.kind}"
        return {f"{figure}_error_pct": self.error.mean_pct, f"{figure}_error_on": measured_on}


Errors = Mapping[str, PredictionError]
"""Errors by kind of setting, as `kinds` names them, and of `ALL`."""


def _stated(figure: str) -> dict[str, PredictionError]:
    rows = tuned.rows(tuned.TUNED["errors"][figure])
    return {kind: PredictionError(*row) for kind, row in rows.items()}


TIME_ERRORS = _stated("times")
ELSEWHERE = _stated("elsewhere")
"""Errors on GPUs that the constants were not fitted to."""
PEAK_ERRORS = _stated("peaks")
FAMILY_ERRORS = _stated("families")
"""Errors of step times of families left out of the fit: of each and of all, by what limits a step."""
FAMILY_PEAK_ERRORS = _stated("family_peaks")
"""Errors of peaks of memory of the same families."""
HOST_ERRORS = _stated("host")
"""Errors of host memory; docs/explanation/prediction.md also lists kinds of fewer settings of all
figures."""


def kind(experiment: Experiment) -> str:
    """Return the kind of a setting: its strategy, unless another technique matters more."""
    if experiment.offload != "none":
        return "offload to the CPU"
    if experiment.tensor_parallel > 1 or experiment.pipeline_parallel > 1:
        return "tensor and pipeline parallel"
    if experiment.lora_rank:
        return "LoRA"
    if experiment.gradient_compression != "none":
        return "compressed gradients"
    return experiment.parallel_strategy.kind_of(experiment.zero_stage)


def kinds(experiment: Experiment, by_cpu: bool) -> list[str]:
    """Return the kinds of a setting on a measured GPU, from the narrowest to `ALL`."""
    if experiment.offload != "none":  # always limited by the CPU
        return [kind(experiment), ALL]
    limit = _limit(by_cpu)
    on_gpus = f"{limit}, {'one GPU' if experiment.gpus == 1 else 'several GPUs'}"
    return [f"{kind(experiment)}, {on_gpus}", on_gpus, limit, ALL]


def kinds_of_family(family: str, by_cpu: bool) -> list[str]:
    """Return the kinds of a setting of a family left out of the fit, the narrower one first."""
    limit = _limit(by_cpu)
    return [f"{family}, {limit}", f"{LEFT_OUT}, {limit}"]


def _limit(by_cpu: bool) -> str:
    return f"limited by the {'CPU' if by_cpu else 'GPU'}"


def kinds_elsewhere(experiment: Experiment, gpu: str, nodes: int) -> list[str]:
    """Return the kinds of a setting on a GPU without measured runs, from the narrowest to `ALL`."""
    if experiment.offload != "none":  # the host decides, not the GPU
        return [kind(experiment), ALL]
    place = "one node" if nodes == 1 else "several nodes"
    return [f"{gpu}, {place}", place, ALL]


def host_kind(experiment: Experiment) -> str:
    """Return the kind of a setting by what it keeps in host memory."""
    if experiment.offload == "none":
        return "without offload"
    return "with offload"


def expected_error(
    names: Iterable[str], errors: Errors, min_settings: int = MIN_SETTINGS
) -> ExpectedError:
    """Return the first kind with enough measured settings, else `ALL`, and its error."""
    return _first(names, errors, min_settings) or ExpectedError(ALL, errors[ALL])


def _first(names: Iterable[str], errors: Errors, min_settings: int) -> ExpectedError | None:
    for name in names:
        if name in errors and errors[name].settings >= min_settings:
            return ExpectedError(name, errors[name])
    return None


def peak_error(experiment: Experiment) -> ExpectedError:
    """Return the error to expect of a predicted peak of memory.

    It is that of its kind, or that of its family if the family was left out of the fit and its error
    is larger: both say what a rule may have missed.
    """
    of_kind = expected_error([kind(experiment)], PEAK_ERRORS, MIN_PEAKS)
    family = shape(experiment.model).family
    if is_fitted(family):
        return of_kind
    of_family = _first([family, LEFT_OUT], FAMILY_PEAK_ERRORS, MIN_PEAKS)
    if of_family is None or of_family.error.mean_pct <= of_kind.error.mean_pct:
        return of_kind
    return of_family


def by_kind(
    runs: Sequence[Measured],
    errors_pct: Sequence[float],
    constants: Constants = DEFAULT,
    summary: Summary = PredictionError.of,
) -> dict[str, PredictionError]:
    """Return the errors of runs by each of their kinds; the constants decide whether the CPU limits a step."""
    limits = limited_by_cpu(stack([run.counts for run in runs]), constants)
    names = [kinds(run.experiment, bool(by_cpu)) for run, by_cpu in zip(runs, limits, strict=True)]
    return grouped(names, errors_pct, summary)


def grouped(
    names: Sequence[Sequence[str]],
    errors_pct: Sequence[float],
    summary: Summary = PredictionError.of,
) -> dict[str, PredictionError]:
    """Return the errors of runs by each of their kinds, the wider kinds last."""
    groups: dict[tuple[int, str], list[float]] = {}
    for kinds_of_run, error_pct in zip(names, errors_pct, strict=True):
        for width, name in enumerate(reversed(kinds_of_run)):
            groups.setdefault((-width, name), []).append(error_pct)
    return {name: summary(groups[width, name]) for width, name in sorted(groups)}


class Coverage(NamedTuple):
    """The runs of a calibration: the names of each kind, and the range of each number, by their words."""

    names: Mapping[str, frozenset[str]]
    ranges: Mapping[str, tuple[float, float]]
    beside_nearest: bool = False
    """Whether the nearest measured run is named beside a prediction, which says more of a GPU or a family."""

    @classmethod
    def of(cls, runs: Sequence[Measured], link: Link) -> "Coverage":
        """Return what one or more measured runs cover; `link` determines their number of nodes."""
        names: dict[str, set[str]] = {}
        numbers: dict[str, list[float]] = {}
        for run in runs:
            named, counted = _covered(run.experiment, find(run.gpu_name).name, link)
            for words, name in named.items():
                names.setdefault(words, set()).add(name)
            for words, number in counted.items():
                numbers.setdefault(words, []).append(number)
        return cls(
            {words: frozenset(found) for words, found in names.items()},
            {words: (min(found), max(found)) for words, found in numbers.items()},
        )

    def outside(self, experiment: Experiment, gpu: str, link: Link) -> list[str]:
        """Return a sentence for each way in which an experiment on a GPU differs from all of these runs."""
        sentences = []
        named, counted = _covered(experiment, gpu, link)
        for words, name in named.items():
            if words in (GPU, FAMILY) and self.beside_nearest:
                continue
            if name not in self.names[words]:
                sentences.append(f"no calibration run used {words} {name}{self._only(words)}")
        for words, number in counted.items():
            least, most = self.ranges[words]
            margin = LIMITS.range_margin
            if words == NODES and most == 1:  # runs on one node say nothing about a network
                margin = 1
            if not least / margin <= number <= most * margin:
                seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
                sentences.append(f"the {words} is {number:,}, calibration runs have {seen}")
        return sentences

    def _only(self, words: str) -> str:
        """Return what the runs used instead, if it is little enough to read."""
        known = sorted(self.names[words] - {"none"})
        if not 0 < len(known) <= MOST_NAMED:
            return ""
        return f", only {', '.join(known)}"


_COVERED = tuned.TUNED["covered"]
LEFT_OUT_COVERAGE = {
    words: frozenset(names) for words, names in tuned.rows(_COVERED["left_out"]).items()
}
"""The GPUs and families of models of `FAMILY_ERRORS`."""
DEFAULT_COVERAGE = Coverage(
    {words: frozenset(names) for words, names in tuned.rows(_COVERED["names"]).items()},
    {words: (row[0], row[1]) for words, row in tuned.rows(_COVERED["ranges"]).items()},
    beside_nearest=True,
)
"""Coverage of `dsnb.prediction.step_time.DEFAULT`."""


def is_fitted(family: str) -> bool:
    """Return whether runs of a family of models are among those that the default constants are fitted to."""
    return family in DEFAULT_COVERAGE.names[FAMILY]


def _formats(experiment: Experiment) -> str:
    """Return the number formats of a setting in words: the precision, and what differs from it."""
    words = str(experiment.precision)
    if experiment.mixed_precision == "none":
        words = f"pure {words}"
    if experiment.matmul == "fp8":
        words += " with products in fp8"
    if experiment.frozen_weights == "nf4":
        words += " with frozen weights in NF4"
    return words


def _covered(
    experiment: Experiment, gpu: str, link: Link
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the names and the numbers of a setting that a calibration covers, by their words."""
    model = shape(experiment.model)
    strategy = experiment.parallel_strategy
    sharing = strategy.label_of(experiment.zero_stage) if strategy.is_deepspeed else strategy.name
    techniques = []
    if experiment.tensor_parallel > 1:
        techniques.append("tensor parallel")
    if experiment.pipeline_parallel > 1:
        techniques.append("pipeline parallel")
    if experiment.shard_size:
        techniques.append("copies of shards")
    if experiment.zeropp != "none":
        techniques.append("ZeRO++")
    if techniques:
        sharing = f"{sharing} with {' and '.join(techniques)}"
    names = {
        GPU: gpu,
        FAMILY: model.family,
        "strategy": sharing,
        "precision": _formats(experiment),
        "mode of compilation": COMPILATION.get(experiment.compile, experiment.compile),
        "offload": experiment.offload,
        "optimizer": experiment.optimizer,
        "loss": experiment.loss,
        "gradient compression": experiment.gradient_compression,
    }
    numbers: dict[str, float] = {
        "hidden size": model.hidden,
        "number of tokens in a micro-batch": experiment.micro_batch_tokens,
        "number of GPUs": experiment.gpus,
        NODES: link.nodes(experiment),
    }
    return names, numbers
