"""Whether the records of a finished run agree: settings, summary and steps say several things twice.

dsnb computes the summary from the same steps and settings, so figures that differ by more than rounding mean that a
file was edited, cut off or replaced. Such a run is not evidence. What a record does not say is not compared.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def contradiction(
    settings: Mapping[str, Any], result: Mapping[str, Any], steps: TimedSteps | None = None
) -> str | None:
    """Return the first contradiction between the records of a run, in words; None if they agree.

    `steps` is None for steps that are known to be unchanged since the result was written.
    """
    summary = result.get("summary") or {}
    found = [
        *_steps(settings, summary, steps),
        *_ranks(settings, result),
        *_speeds(settings, summary, steps),
    ]
    return found[0] if found else None


def _steps(
    settings: Mapping[str, Any], summary: Mapping[str, Any], steps: TimedSteps | None
) -> Iterator[str]:
    wanted, counted = settings.get("steps"), summary.get("timed_steps")
    if wanted is not None and counted is not None and wanted != counted:
        yield f"steps is {wanted} in {_SETTINGS}, but timed_steps is {counted} in {_RESULT}"
    expected = wanted if wanted is not None else counted
    if steps is None:
        return
    if expected is not None and steps.count < expected:
        yield f"{_STEPS} has {steps.count} of {expected} timed steps"
    if expected is not None and steps.count > expected:
        yield f"{_STEPS} has {steps.count} timed steps instead of {expected}"
    if steps.distinct < steps.count:
        yield f"{_STEPS} has {steps.count - steps.distinct} timed steps more than once"


def _ranks(settings: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[str]:
    """Compare the ranks with their exit codes; codes may be missing where the launch ended after the last step."""
    gpus, ranks = settings.get("gpus"), len(result.get("exit_codes") or ())
    has_rate = (result.get("summary") or {}).get(
        "tokens_per_s_per_gpu"
    ) is not None  # which tells the GPUs as well
    if gpus is not None and (ranks > gpus or (0 < ranks < gpus and not has_rate)):
        yield f"gpus is {gpus} in {_SETTINGS}, but {_RESULT} has exit codes of {ranks} ranks"


def _speeds(
    settings: Mapping[str, Any], summary: Mapping[str, Any], steps: TimedSteps | None
) -> Iterator[str]:
    rate, mean_s = _number(summary.get("tokens_per_s")), _number(summary.get("step_time_mean_s"))
    per_gpu, gpus = _number(summary.get("tokens_per_s_per_gpu")), _number(settings.get("gpus"))
    yield from _differing(
        f"tokens_per_s in {_RESULT}",
        rate,
        f"its tokens_per_s_per_gpu on {gpus:g} GPUs",
        per_gpu * gpus,
    )
    by_settings = _tokens_per_step(settings) / mean_s
    yield from _differing(
        f"tokens_per_s in {_RESULT}",
        rate,
        f"its step time and the batch in {_SETTINGS}",
        by_settings,
    )
    if steps is None:
        return
    time_s = _number(steps.mean_time_s)
    by_steps = _number(steps.mean_tokens) / time_s
    yield from _differing(f"tokens_per_s in {_RESULT}", rate, f"the steps in {_STEPS}", by_steps)
    yield from _differing(
        f"step_time_mean_s in {_RESULT}", mean_s, f"the steps in {_STEPS}", time_s
    )


def _differing(what: str, value: float, other: str, stated: float) -> Iterator[str]:
    """Yield a sentence if two statements of one figure differ by more than rounding; unknown ones do not."""
    if abs(value / stated - 1) > TOLERANCE:
        yield f"{what} is {value:,.4g}, but by {other} it is {stated:,.4g}"


def _tokens_per_step(settings: Mapping[str, Any]) -> float:
    """Return the tokens of a step over all ranks; NaN if the settings do not say."""
    sequences = math.prod(_number(settings.get(name)) for name in _SEQUENCES)
    return sequences / math.prod(_number(settings.get(name, 1)) for name in _SPLITS)


def _number(value: object) -> float:
    """Return a positive number as it is; NaN for anything else, which is unknown."""
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else math.nan
