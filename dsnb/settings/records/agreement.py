"""Whether the records of a finished run agree: settings, summary and steps say several things twice.

dsnb computes the summary from the same steps and settings, so figures that differ by more than
rounding mean that a file was edited, cut off or replaced. Such a run is not evidence. What a record
does not say is not compared.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from dsnb.settings import programs
from dsnb.settings.records.paths import RunPaths

TOLERANCE = 0.01
"""Largest relative difference of two statements of one speed; those of dsnb's runs are equal but for rounding."""
_RUN = RunPaths(Path())
_STEPS, _SETTINGS, _RESULT = _RUN.steps.name, _RUN.experiment.name, _RUN.result.name
_SEQUENCES = ("micro_batch_size", "grad_accum", "gpus", "seq_len")
_SPLITS = ("tensor_parallel", "pipeline_parallel")


@dataclass(frozen=True)
class TimedSteps:
    """What the timed steps in `steps.jsonl` say together."""

    count: int
    distinct: int
    """Different step numbers."""
    mean_time_s: float = math.nan
    """Mean time of a step; NaN if no step has one."""
    mean_tokens: float = math.nan
    """Mean tokens of a step; NaN if no step has them."""

    @classmethod
    def of(cls, timed: Sequence[Mapping[str, Any]]) -> Self:
        """Return what these rows of `steps.jsonl` say together."""
        distinct = {step.get("step") for step in timed}
        return cls(len(timed), len(distinct), _mean(timed, "step_time_s"), _mean(timed, "tokens"))


def contradiction(
    settings: Mapping[str, Any], result: Mapping[str, Any], steps: TimedSteps | None = None
) -> str | None:
    """Return the first contradiction between the records of a run, in words; None if they agree.

    `steps` is None for steps that are known to be unchanged since the result was written.
    """
    summary = result.get("summary") or {}
    found = itertools.chain(
        _steps(settings, summary, steps),
        _ranks(settings, result, summary),
        _speeds(settings, summary, steps),
    )
    return next(found, None)


def _steps(
    settings: Mapping[str, Any], summary: Mapping[str, Any], steps: TimedSteps | None
) -> Iterator[str]:
    wanted = settings.get("steps")
    counted = summary.get("timed_steps")
    if wanted is None:
        wanted = counted
    elif counted not in {None, wanted}:
        yield f"steps is {wanted} in {_SETTINGS}, but timed_steps is {counted} in {_RESULT}"
    if steps is None:
        return
    if wanted is not None and steps.count < wanted:
        yield f"{_STEPS} has {steps.count} of {wanted} timed steps"
    if wanted is not None and steps.count > wanted:
        yield f"{_STEPS} has {steps.count} timed steps instead of {wanted}"
    if steps.distinct < steps.count:
        yield f"{_STEPS} has {steps.count - steps.distinct} timed steps more than once"


def _ranks(
    settings: Mapping[str, Any], result: Mapping[str, Any], summary: Mapping[str, Any]
) -> Iterator[str]:
    """Compare the ranks with their exit codes.

    Codes may be missing if the launch ended after the last step; then the speed per GPU tells the
    number of GPUs.
    """
    gpus = settings.get("gpus")
    ranks = len(result.get("exit_codes") or ())
    has_rate = summary.get("tokens_per_s_per_gpu") is not None
    if gpus is not None and (ranks > gpus or (0 < ranks < gpus and not has_rate)):
        yield f"gpus is {gpus} in {_SETTINGS}, but {_RESULT} has exit codes of {ranks} ranks"


def _speeds(
    settings: Mapping[str, Any], summary: Mapping[str, Any], steps: TimedSteps | None
) -> Iterator[str]:
    rate = _number(summary.get("tokens_per_s"))
    mean_s = _number(summary.get("step_time_mean_s"))
    gpus = _number(settings.get("gpus"))
    by_gpus = gpus * _number(summary.get("tokens_per_s_per_gpu"))
    by_settings = math.nan
    if programs.is_own(settings):  # others pad or pack sequences
        by_settings = _tokens_per_step(settings) / mean_s
    stated = f"tokens_per_s in {_RESULT}"
    yield from _differing(stated, rate, f"its tokens_per_s_per_gpu on {gpus:g} GPUs", by_gpus)
    yield from _differing(stated, rate, f"its step time and the batch in {_SETTINGS}", by_settings)
    if steps is None:
        return
    time_s = _number(steps.mean_time_s)
    by_steps = _number(steps.mean_tokens) / time_s
    said = f"the steps in {_STEPS}"
    yield from _differing(stated, rate, said, by_steps)
    yield from _differing(f"step_time_mean_s in {_RESULT}", mean_s, said, time_s)


def _differing(what: str, value: float, other: str, stated: float) -> Iterator[str]:
    """Yield a sentence if two statements of one figure differ by more than rounding; unknown ones do not."""
    if abs(value / stated - 1) > TOLERANCE:
        yield f"{what} is {value:,.4g}, but by {other} it is {stated:,.4g}"


def _mean(timed: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the mean of a figure; NaN if no step has it."""
    values = [step[name] for step in timed if step.get(name) is not None]
    return fmean(values) if values else math.nan


def _tokens_per_step(settings: Mapping[str, Any]) -> float:
    """Return the tokens of a step over all ranks; NaN if the settings do not say."""
    sequences = math.prod(_number(settings.get(name)) for name in _SEQUENCES)
    return sequences / math.prod(_number(settings.get(name, 1)) for name in _SPLITS)


def _number(value: object) -> float:
    """Return a positive number as it is; NaN for anything else, which is unknown."""
    if isinstance(value, int | float) and 0 < value < math.inf:
        return float(value)
    return math.nan
