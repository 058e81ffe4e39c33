"""How much longer another training loop takes than dsnb's, and how much more memory its logits need.

One factor, the median of measured over predicted step times, is known from the first run on. The
fit of all constants (`dsnb.prediction.calibration`) takes its place only where it predicts settings
that are left out better. Loops are told apart by their program and never pooled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsnb.base.system.hardware import GIB
from dsnb.prediction import accuracy, traces, tuned
from dsnb.prediction.calibration import (
    MIN_CALIBRATED,
    Measured,
    Method,
    calibrate,
    left_out,
)
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.shapes import shape
from dsnb.prediction.speed_range import of_errors
from dsnb.prediction.step_time import DEFAULT, Constants, step_times
from dsnb.prediction.traces import MemoryTrace
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs.labels import count
from dsnb.settings.experiment import Experiment
from dsnb.settings.programs import DSNB

LOOP = tuned.numbers("loop")
LOOPS = {DSNB: "your runs take", "own": "your loop takes"}
"""Words for dsnb's loop, and for one that the recorder knows no program of."""
MOST_TRACED = 3
"""Settings whose memory is traced; each takes seconds."""


@dataclass(frozen=True)
class Calibrated:
    """The time model of a loop by its runs."""

    program: str
    constants: Constants
    times: float
    """Measured over predicted step time, the median of the settings."""
    runs: int
    """Measured settings."""
    within_pct: float
    """The largest factor between a setting and the median, in per cent."""
    is_fitted: bool = False
    """Whether all constants were fitted."""
    errors: accuracy.Errors | None = None
    """Errors of settings that were left out; None with fewer than `MIN_CALIBRATED`."""
    more_bytes_per_logit: float = 0.0
    """Memory that this loop needs beyond the predicted peak, by logits of a micro-batch."""

    def more_gib(self, experiment: Experiment) -> float:
        """Return the memory that a setting needs beyond the predicted peak."""
        logits = experiment.micro_batch_tokens * shape(experiment.model).vocab
        return self.more_bytes_per_logit * logits / GIB

    @property
    def sentence(self) -> Sentence:
        """The factor in words, and what was made of it."""
        loop = LOOPS.get(self.program, f"the loop of {self.program} takes")
        facts = {
            "loop": loop,
            "times": f"{self.times:.2f}",
            "runs": count(self.runs, "measured setting"),
            "within": "",
            "memory": "",
            "because": "",
        }
        if self.runs > 1:
            facts["within"] = f"{self.within_pct:.0f}"
        if self.more_bytes_per_logit:
            facts["memory"] = f"{self.more_bytes_per_logit:.1f}"
        if self.is_fitted and self.errors:
            facts["because"] = "that predicts settings that are left out better"
        if self.is_fitted:
            return say("loop.fitted", **facts)
        return say("loop", **facts)


def log_ratios(runs: Sequence[Measured], start: Constants = DEFAULT) -> np.ndarray:
    """Return the logarithm of measured over predicted step time of each setting; repeats are one, by their median."""
    predicted_s = np.asarray(step_times([run.counts for run in runs], start).step_time_s)
    of_setting: dict[object, list[float]] = {}
    for run, time_s in zip(runs, predicted_s, strict=True):
        of_setting.setdefault(run.counts, []).append(math.log(run.step_time_s / time_s))
    return np.array([float(np.median(logs)) for logs in of_setting.values()])


def slowed(runs: Sequence[Measured], start: Constants = DEFAULT) -> Constants:
    """Return constants with which every step takes as many times as long as these runs do in the median."""
    if not runs:
        return start
    return start.slower(math.exp(float(np.median(log_ratios(runs, start)))))


def of_runs(runs: Sequence[Measured], start: Constants = DEFAULT) -> Calibrated:
    """Return the time model of one loop by some of its runs, at least one."""
    logs = log_ratios(runs, start)
    median = float(np.median(logs))
    method = method_of(runs, start)
    constants = method(runs, start)
    errors = None
    if len(logs) >= MIN_CALIBRATED:
        errors = accuracy.by_kind(runs, left_out(runs, start, method), constants, of_errors)
    return Calibrated(
        program=runs[0].loop,
        constants=constants,
        times=math.exp(median),
        runs=len(logs),
        within_pct=100 * math.expm1(float(np.abs(logs - median).max())),
        is_fitted=method is calibrate,
        errors=errors,
        more_bytes_per_logit=more_bytes_per_logit(runs),
    )


def method_of(runs: Sequence[Measured], start: Constants = DEFAULT) -> Method:
    """Return what makes constants of the runs of one loop: one factor, or the fit where that is better.

    The prior of a fit knows dsnb's own loop better than one or two runs do.
    """
    number = len({run.counts for run in runs})
    if number < MIN_CALIBRATED and runs[0].loop == DSNB:
        return calibrate
    if number < LOOP.least_fitted:
        return slowed
    if is_better(left_out(runs, start), left_out(runs, start, slowed)):
        return calibrate
    return slowed


def is_better(errors_pct: Sequence[float], than_pct: Sequence[float]) -> bool:
    """Return whether errors of the same settings are smaller, by more than chance makes them."""
    sizes = np.abs(np.log1p(np.asarray(errors_pct) / 100))
    gains = np.abs(np.log1p(np.asarray(than_pct) / 100)) - sizes
    chance = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    return bool(gains.mean() > max(LOOP.clearly * chance, LOOP.least_gain))


def more_bytes_per_logit(runs: Sequence[Measured]) -> float:
    """Return the bytes for each logit of a micro-batch that a loop needs beyond the predicted peak; 0 if it needs none.

    Only peaks of other loops count, since rules of memory follow dsnb's own. The difference has to be
    larger than the error of predicted peaks. Without torch, or for models that cannot be traced, it
    is not known, and 0.
    """
    peaks = {run.counts: run for run in runs if run.peak_gib and run.loop != DSNB}
    chosen = list(peaks.values())[:MOST_TRACED]
    if not chosen:
        return 0.0
    differences = []
    shares = []
    for run, trace in zip(chosen, traces.attempts([run.experiment for run in chosen]), strict=True):
        if not isinstance(trace, MemoryTrace) or run.peak_gib is None:
            continue
        more_gib = run.peak_gib - peak_memory(run.experiment, trace).gib
        logits = run.experiment.micro_batch_tokens * shape(run.experiment.model).vocab
        differences.append(more_gib * GIB / logits)
        shares.append(abs(more_gib) / run.peak_gib)
    if not differences or np.median(shares) < LOOP.peak_error:
        return 0.0
    return float(np.median(differences))
