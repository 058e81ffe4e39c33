"""Short runs of the settings predicted to be best, until the best is decided.

The runs are an ordinary sweep, one repeat after the other. A setting that fails, or does not fit,
is replaced by the next one. The same call resumes an interrupted measurement.
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
"""Lengths of a step and of a run's timed steps; longer ones get less accumulation and fewer
steps."""
MIN_STEPS, WARMUP_STEPS = 5, 3
CPU_FLOPS = 5e10
"""Operations per second assumed of a CPU, to choose the number of steps."""
MAX_REPEATS = 6
"""Repeats after which undecided settings count as equal."""
MAX_SHORTAGES = 2
"""Settings that run out of memory before no further one is tried: each takes minutes to fail."""
STOPPED = f"no further setting was tried after {MAX_SHORTAGES} ran out of memory"
LOG = logging.getLogger(__name__)


@dataclass
class Candidate:
    """A setting, and the shorter one that is run instead."""

    whole: Experiment
    run: Experiment
    factor: float
    """Predicted tokens/s of the whole setting, divided by those of the shorter one."""
    repeats: int = 1
    """Runs of it that are wanted."""


def candidate(whole: Experiment, on: Hardware, fixed: Mapping[str, Any]) -> Candidate:
    """Shorten a setting for measuring: less accumulation and fewer steps if it is slow; `fixed` settings stay.

    A command keeps its accumulation, which it may not be told.
    """
    is_cpu = whole.device == "cpu"

    def seconds(experiment: Experiment) -> float:
        if is_cpu:
            return 6 * shape(whole.model).parameters * experiment.tokens_per_step / CPU_FLOPS
        return float(parts(count_step(experiment, on.gpu, on.link), on.constants).step_time_s)

    whole_s = seconds(whole.complete)
    short = whole
    if not whole.command:
        count = max(2, math.ceil(whole.grad_accum * STEP_S / whole_s))
        short = whole.model_copy(update={"grad_accum": min(whole.grad_accum, count)})
    steps = max(MIN_STEPS, math.ceil(TIMED_S / seconds(short.complete)))
    lengths = {"steps": min(DEFAULTS["steps"], steps), "warmup_steps": WARMUP_STEPS}
    free = {name: value for name, value in lengths.items() if name not in fixed}
    short = short.model_copy(update=free)
    if is_cpu or whole.command:
        return Candidate(whole, short, 1.0)
    rate = whole.tokens_per_step / whole_s
    return Candidate(whole, short, rate * seconds(short) / short.tokens_per_step)


def params_of(
    name: str, question: str, experiments: Sequence[Experiment], **more: Any
) -> ParamsFile:
    """Return the params file of some settings, in their order."""
    rows = []
    for experiment in experiments:
        settings = experiment.model_dump(exclude={"nodes"})
        if experiment.command:  # a default is stated or passed on, and not the same as unknown
            row = {name: value for name, value in settings.items() if value is not None}
        else:
            row = {name: value for name, value in settings.items() if value != DEFAULTS[name]}
        rows.append(row)
    first, *others = rows
    common = {
        name: value
        for name, value in first.items()
        if all(row.get(name) == value for row in others)
    }
    content = {"name": name, "question": question, "defaults": common, **more}
    if others:
        content["include"] = [
            {name: value for name, value in row.items() if name not in common} for row in rows
        ]
    return validated(content, name)


class Measuring:
    """The sweep that measures candidates in a folder."""

    def __init__(
        self, folder: Path, on: Hardware, fixed: Mapping[str, Any], minutes: float | None
    ) -> None:
        self.paths = SweepPaths(folder)
        self._on = on
        self._fixed = fixed
        self._until = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self.started: dict[str, Candidate] = {}
        self._longest_s = 0.0

    def resume(self, experiments: Sequence[Experiment]) -> None:
        """Resume the runs in the folder of settings that are still asked for."""
        if not self.paths.params.exists():
            return
        whole_of = {_key(experiment): experiment for experiment in experiments}
        for settings in combinations(read_params(self.paths.params)):
            before = Experiment(**settings)
            whole = whole_of.get(_key(before))
            if whole and before.device == whole.device:
                fresh = candidate(whole, self._on, self._fixed)
                factor = fresh.factor if before == fresh.run else 1.0
                ended = len(list((self.paths.dir / before.name).glob("run*/result.json")))
                self.started[before.name] = Candidate(whole, before, factor, max(1, ended))

    def start(self, experiment: Experiment) -> None:
        """Add a setting to measure next."""
        new = candidate(experiment, self._on, self._fixed)
        self.started[new.run.name] = new
        LOG.info("measuring setting %d: %s", len(self.started), experiment.name)

    def next_of(self, experiments: Sequence[Experiment]) -> Experiment | None:
        """Return the first setting that was not started."""
        started = {_key(one.whole) for one in self.started.values()}
        return next((one for one in experiments if _key(one) not in started), None)

    def alive(self, runs: pd.DataFrame | None) -> list[str]:
        """Return the started settings without a failed run."""
        failed = self.failed(runs)
        return [name for name in self.started if name not in failed]

    def has_time(self, runs: int) -> bool:
        """Return whether this number of runs, each as long as the longest so far, ends in time."""
        return time.monotonic() + runs * self._longest_s < self._until

    def execute(self) -> pd.DataFrame:
        """Execute the missing runs while there is time, and return all runs that ended.

        They have `experiment` as run, and the speed of whole settings.
        """
        settings = [one.run for one in self.started.values()]
        question = (
            f"Which of the settings predicted to be best for {settings[0].model} is the best?"
        )
        repeats = max(one.repeats for one in self.started.values())
        params = params_of(self.paths.dir.name, question, settings, repeats=repeats)
        sweep = load_sweep(params, output=self.paths.dir)
        chosen = [
            run for run in sweep.runs if run.repeat <= self.started[run.experiment.name].repeats
        ]
        ended = [run for run in chosen if run.paths.result.exists()]
        for run in chosen:
            if run in ended:
                continue
            if not self.has_time(1):
                break
            limited = replace(run, experiment=self._limited(run.experiment))
            self._execute(replace(sweep, runs=(*ended, limited)))
            ended.append(run)
        table = load_runs(self.paths.dir)
        table = table[table["status"].isin(ENDED) & table["experiment"].isin(list(self.started))]
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

    def failed(self, runs: pd.DataFrame | None) -> dict[str, str]:
        """Return the settings with a failed run, and the cause."""
        if runs is None:
            return {}
        bad = runs[runs["status"] != "ok"].drop_duplicates("experiment").set_index("experiment")
        return {str(name): str(row["cause"] or row["status"]) for name, row in bad.iterrows()}

    def repeat(self, names: Sequence[str]) -> None:
        """Ask for a further run of some settings, and for as many of each."""
        number = 1 + min(self.started[name].repeats for name in names)
        for name in names:
            self.started[name].repeats = max(number, self.started[name].repeats)
        shown = " and ".join(names)
        LOG.info("undecided: run %d of at most %d of %s", number, MAX_REPEATS, shown)


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
    first = following(None)
    measuring.resume(first)
    runs: pd.DataFrame | None = None
    own = [experiment for experiment in first[:1] if not experiment.command]
    with local.shared_servers({experiment.device for experiment in own}):
        if measuring.started:
            runs = measuring.execute()
        while True:
            alive = measuring.alive(runs)
            too_large = runs is not None and shortages(runs) >= MAX_SHORTAGES
            new = None
            if len(alive) < count and not too_large:
                new = measuring.next_of(following(runs))
            if new and measuring.has_time(1):
                measuring.start(new)
                runs = measuring.execute()
                continue
            runs = _checked(runs, measuring)
            if new:
                return runs, "the time was over"
            open_ = undecided(runs[runs["experiment"].isin(alive)])
            if not open_ and too_large and len(alive) < count:
                return runs, f"decided; {STOPPED}"
            if not open_:
                return runs, "decided"
            if max(measuring.started[name].repeats for name in open_) >= MAX_REPEATS:
                return runs, f"no difference shows in {MAX_REPEATS} runs each"
            if not measuring.has_time(len(open_)):
                return runs, "the time was over"
            measuring.repeat(open_)
            runs = measuring.execute()


def shortages(runs: pd.DataFrame) -> int:
    """Return the number of settings that ran out of memory."""
    return int(runs[runs["status"] == "oom"]["experiment"].nunique())


def _checked(runs: pd.DataFrame | None, measuring: Measuring) -> pd.DataFrame:
    """Return the runs; a SettingsError says why none succeeded."""
    if runs is not None and (runs["status"] == "ok").any():
        return runs
    reasons = [f"{name}: {cause}" for name, cause in measuring.failed(runs).items()]
    if not reasons:
        reasons = ["there was no time for any run; give more minutes"]
    raise SettingsError([f"nothing could be measured: {reason}" for reason in reasons])


def undecided(runs: pd.DataFrame) -> list[str]:
    """Return the settings that may still be the best, the best so far included; none if the best is decided."""
    if runs["experiment"].nunique() < 2:
        return []
    table = differences(runs, figure="tokens_per_s")
    is_decided = table["verdict"].isin([Verdict.LIKELY, Verdict.NO_LARGER])
    is_clear = is_decided | (1 + table["change_pct"] / 100 < 1 / CLEAR)
    if is_clear.all():
        return []
    return [*map(str, table["base"].unique()), *map(str, table.index[~is_clear])]
