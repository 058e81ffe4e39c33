"""Short runs of the settings predicted to be best, until the best is decided.

The runs are an ordinary sweep, one repeat after the other. A setting that fails, or does not fit, is replaced by the
next one. The same call resumes an interrupted measurement.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.measure.launcher import local
from dsnb.measure.sweep.params import Sweep, load_sweep
from dsnb.measure.sweep.run import run_sweep
from dsnb.prediction.predict import Hardware
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import count_step, parts
from dsnb.results.runs.load import load_runs
from dsnb.results.statistics.comparisons import differences
from dsnb.results.statistics.intervals import CLEAR, Verdict
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.params_file import ParamsFile, combinations, read_params, validated
from dsnb.settings.records.columns import ENDED
from dsnb.settings.records.paths import RunPaths, SweepPaths

STEP_S, TIMED_S = 5.0, 10.0
"""Lengths of a step and of a run's timed steps; longer ones get less accumulation and fewer steps."""
MIN_STEPS, WARMUP_STEPS = 5, 3
CPU_FLOPS = 5e10
"""Operations per second assumed of a CPU, to choose the number of steps."""
MAX_REPEATS = 6
"""Repeats after which undecided settings count as equal."""
MAX_SHORTAGES = 2
"""Settings that run out of memory before no further one is tried: each takes minutes to fail."""
STOPPED = f"no further setting was tried after {MAX_SHORTAGES} ran out of memory"
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A setting, and the shorter one that is run instead."""

    whole: Experiment
    run: Experiment
    factor: float
    """Predicted tokens/s of the whole setting, divided by those of the shorter one."""


def candidate(whole: Experiment, on: Hardware, fixed: Mapping[str, Any]) -> Candidate:
    """Shorten a setting for measuring: less accumulation and fewer steps if it is slow; `fixed` settings stay."""

    def seconds(experiment: Experiment) -> float:
        if whole.device == "cpu":
            return 6 * shape(whole.model).parameters * experiment.tokens_per_step / CPU_FLOPS
        return float(parts(count_step(experiment, on.gpu, on.link), on.constants).step_time_s)

    whole_s = seconds(whole)
    count = min(whole.grad_accum, max(2, math.ceil(whole.grad_accum * STEP_S / whole_s)))
    short = whole.model_copy(update={"grad_accum": count})
    steps = min(DEFAULTS["steps"], max(MIN_STEPS, math.ceil(TIMED_S / seconds(short))))
    lengths = {"steps": steps, "warmup_steps": WARMUP_STEPS}
    short = short.model_copy(
        update={name: value for name, value in lengths.items() if name not in fixed}
    )
    factor = (
        1.0
        if whole.device == "cpu"
        else whole.tokens_per_step / whole_s * seconds(short) / short.tokens_per_step
    )
    return Candidate(whole, short, factor)


def params_of(
    name: str, question: str, experiments: Sequence[Experiment], **more: Any
) -> ParamsFile:
    """Return the params file of some settings, in their order."""
    rows = [
        {
            key: value
            for key, value in experiment.model_dump().items()
            if value != DEFAULTS[key] and key != "nodes"
        }
        for experiment in experiments
    ]
    common = {
        key: value for key, value in rows[0].items() if all(row.get(key) == value for row in rows)
    }
    differing = [{key: value for key, value in row.items() if key not in common} for row in rows]
    content = {"name": name, "question": question, "defaults": common, **more}
    return validated(content | ({"include": differing} if len(rows) > 1 else {}), name)


class Measuring:
    """The sweep that measures candidates in a folder."""

    def __init__(
        self, folder: Path, on: Hardware, fixed: Mapping[str, Any], minutes: float | None
    ) -> None:
        self.paths, self._on, self._fixed = SweepPaths(folder), on, fixed
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.started: dict[str, Candidate] = {}
        self.repeats: dict[str, int] = {}
        self._longest_s = 0.0

    def resume(self, experiments: Sequence[Experiment]) -> None:
        """Resume the runs in the folder of settings that are still asked for."""
        if not self.paths.params.exists():
            return
        whole_of = {_key(experiment): experiment for experiment in experiments}
        for settings in combinations(read_params(self.paths.params)):
            before = Experiment(**settings)
            if (whole := whole_of.get(_key(before))) and before.device == whole.device:
                fresh = candidate(whole, self._on, self._fixed)
                factor = fresh.factor if before == fresh.run else 1.0
                self.started[before.name] = Candidate(whole, before, factor)
                ended = (self.paths.dir / before.name).glob("run*/result.json")
                self.repeats[before.name] = max(1, len(list(ended)))

    def start(self, experiment: Experiment) -> None:
        """Add a setting to measure next."""
        new = candidate(experiment, self._on, self._fixed)
        self.started[new.run.name] = new
        self.repeats.setdefault(new.run.name, 1)

    def has_time(self, runs: int) -> bool:
        """Return whether this number of runs, each as long as the longest so far, ends in time."""
        return time.monotonic() + runs * self._longest_s < self._until

    def execute(self) -> pd.DataFrame:
        """Execute the missing runs while there is time, and return all runs that ended.

        They have `experiment` as run, and the speed of whole settings.
        """
        runs = [started.run for started in self.started.values()]
        question = f"Which of the settings predicted to be best for {runs[0].model} is the best?"
        repeats = max(self.repeats.values())
        sweep = load_sweep(
            params_of(self.paths.dir.name, question, runs, repeats=repeats), output=self.paths.dir
        )
        chosen = [run for run in sweep.runs if run.repeat <= self.repeats[run.experiment.name]]
        before = [run for run in chosen if run.paths.result.exists()]
        for run in chosen:
            if run in before:
                continue
            if not self.has_time(1):
                break
            before.append(run)
            self._execute(
                replace(
                    sweep,
                    runs=(*before[:-1], replace(run, experiment=self._limited(run.experiment))),
                )
            )
        table = load_runs(self.paths.dir)
        table = table[
            table["status"].isin(ENDED) & table["experiment"].isin([run.name for run in runs])
        ]
        factors = [self.started[name].factor for name in table["experiment"]]
        return table.assign(tokens_per_s=table["tokens_per_s"] * factors)

    def _execute(self, sweep: Sweep) -> None:
        """Execute the last run of a sweep; one that the time was too short for counts as not started."""
        result = run_sweep(sweep)[-1]
        self._longest_s = max(self._longest_s, result.phases_s.get("wall", 0.0))
        if result.status == "timeout" and time.monotonic() >= self._until:
            RunPaths(result.run_dir).result.unlink()

    def _limited(self, experiment: Experiment) -> Experiment:
        """Return a setting whose runs end with the time for all of them."""
        left_s = self._until - time.monotonic()
        limit_s = max(1.0, min(experiment.time_limit_s, left_s))
        return experiment.model_copy(update={"time_limit_s": limit_s})

    def shortages(self, runs: pd.DataFrame) -> int:
        """Return the number of settings that ran out of memory."""
        return int(runs[runs["status"] == "oom"]["experiment"].nunique())

    def failed(self, runs: pd.DataFrame) -> dict[str, str]:
        """Return the settings with a failed run, and the cause."""
        bad = runs[runs["status"] != "ok"].drop_duplicates("experiment")
        causes = zip(bad["experiment"], bad["status"], bad["cause"], strict=True)
        return {str(name): str(cause or status) for name, status, cause in causes}


def _key(experiment: Experiment) -> str:
    """Return a candidate's name without accumulation, which its runs may shorten."""
    return experiment.model_copy(update={"grad_accum": 1}).name_with_model


def decide_by_runs(
    measuring: Measuring,
    count: int,
    following: Callable[[pd.DataFrame | None], Sequence[Experiment]],
) -> tuple[pd.DataFrame, str]:
    """Measure until the best of `count` settings is decided or the time is over; return all runs and how it ended.

    `following` takes the runs so far and returns the settings in the order in which to try them.
    """
    measuring.resume(following(None))
    runs: pd.DataFrame | None = None
    with local.shared_servers({experiment.device for experiment in following(None)[:1]}):
        while True:
            alive = [
                name
                for name in measuring.started
                if runs is None or name not in measuring.failed(runs)
            ]
            if runs is None and alive:
                runs = measuring.execute()
                continue
            too_large = runs is not None and measuring.shortages(runs) >= MAX_SHORTAGES
            if len(alive) < count and not too_large:
                started = {_key(measured.whole) for measured in measuring.started.values()}
                new = next(
                    (
                        experiment
                        for experiment in following(runs)
                        if _key(experiment) not in started
                    ),
                    None,
                )
                if new and not measuring.has_time(1):
                    return _checked(runs, measuring), "the time was over"
                if new:
                    measuring.start(new)
                    LOG.info("measuring setting %d: %s", len(measuring.started), new.name)
                    runs = measuring.execute()
                    continue
            runs = _checked(runs, measuring)
            open_ = undecided(runs[runs["experiment"].isin(alive)])
            if not open_:
                return runs, f"decided; {STOPPED}" if too_large and len(
                    alive
                ) < count else "decided"
            if max(measuring.repeats[name] for name in open_) >= MAX_REPEATS:
                return runs, f"no difference shows in {MAX_REPEATS} runs each"
            if not measuring.has_time(len(open_)):
                return runs, "the time was over"
            repeat = min(measuring.repeats[name] for name in open_) + 1
            measuring.repeats |= {name: max(repeat, measuring.repeats[name]) for name in open_}
            LOG.info(
                "undecided: run %d of at most %d of %s", repeat, MAX_REPEATS, " and ".join(open_)
            )
            runs = measuring.execute()


def _checked(runs: pd.DataFrame | None, measuring: Measuring) -> pd.DataFrame:
    """Return the runs; a SettingsError says why none succeeded."""
    if runs is None or not (runs["status"] == "ok").any():
        causes = measuring.failed(runs) if runs is not None else {}
        reasons = [f"{name}: {cause}" for name, cause in causes.items()] or [
            "there was no time for any run; give more minutes"
        ]
        raise SettingsError([f"nothing could be measured: {reason}" for reason in reasons])
    return runs


def undecided(runs: pd.DataFrame) -> list[str]:
    """Return the settings that may still be the best, the best so far included; none if the best is decided."""
    if runs["experiment"].nunique() < 2:
        return []
    table = differences(runs, figure="tokens_per_s")
    ratio = 1 + table["change_pct"] / 100
    is_clear = table["verdict"].isin([Verdict.LIKELY, Verdict.NO_LARGER]) | (ratio < 1 / CLEAR)
    others = [str(name) for name in table.index[~is_clear]]
    return [*map(str, table["base"].unique()), *others] if others else []
