"""Launches one run and stays with it to its end, whatever that is.

A finished run has a `result.json`, and nothing of it is running any more.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from dsnb import checks, records
from dsnb.errors import LaunchError, SettingsError
from dsnb.experiment import Experiment
from dsnb.launcher import fit
from dsnb.launcher.figures import summarize_run
from dsnb.launcher.folder import describe, next_free, prepare
from dsnb.launcher.hosts.remote import RemoteRanks
from dsnb.launcher.local import LocalRanks
from dsnb.launcher.outcome import Result, broken_off, judge
from dsnb.launcher.ranks import WORKER, Crew
from dsnb.paths import RunPaths

POLL_S = 0.05
SHOW_S = 0.5
GRACE_S = 5.0
"""How long the other ranks may go on after one has failed: they would wait for it for ever."""


def launch(
    experiment: Experiment,
    run_dir: str | Path | None = None,
    *,
    progress: bool = True,
    worker: str = WORKER,
) -> Result:
    """Run one experiment once.

    Parameters
    ----------
    experiment
        The settings.
    run_dir
        A new or unfinished run folder; by default the next free one under `outputs/single`.
    progress
        Show a bar with loss and tokens/s.
    worker
        Module whose `main(run_dir)` each rank runs; tests put a fake here.

    Returns
    -------
    Result
        Whatever the outcome; `Result.raise_for_status()` raises if it is not `ok`.

    Raises
    ------
    SettingsError
        If this machine cannot run the settings, or the folder already holds a finished run.
    LaunchError
        If the ranks could not even be started.
    """
    if problems := checks.unsupported(experiment.model_dump()):
        raise SettingsError(problems)
    run = RunPaths(Path(run_dir).absolute() if run_dir else next_free(experiment))
    if experiment.micro_batch_size == "auto":
        return fit.launch(experiment, run, lambda found, folder, asked: _once(found, folder, asked, progress, worker))
    return _once(experiment, run, experiment, progress, worker)


def _once(experiment: Experiment, run: RunPaths, asked: Experiment, progress: bool, worker: str) -> Result:
    """Run an experiment whose settings are all numbers; those that were asked for are recorded beside them."""
    prepare(run, experiment, asked)
    launched_at = time.time()
    ranks: Crew | None = None
    try:
        ranks = RemoteRanks(experiment, run) if experiment.hostfile else LocalRanks(experiment, run)
        experiment = ranks.experiment
        if isinstance(ranks, RemoteRanks):  # what only the hosts could say
            describe(run, experiment, asked, ranks.environment)
        ranks.start(worker, launched_at)
        ended_by = Watch(experiment, run, ranks, launched_at).until_end(progress)
        codes = ranks.exit_codes()  # of those that ended by themselves
        ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(LaunchError):  # the first error is the one to tell
                ranks.end()
        finish(experiment, run, ranks.exit_codes() if ranks else {}, launched_at, broken_off(error))
        raise
    status, cause = ended_by or judge(experiment, run, codes, ranks.oom_kills(), ranks.where)
    if status == "failed" and (trouble := ranks.trouble()) and trouble not in str(cause):
        cause = f"{trouble}; {cause}"
    return finish(experiment, run, ranks.exit_codes(), launched_at, (status, cause))


@dataclass
class Watch:
    """The supervision of one run's ranks."""

    experiment: Experiment
    run: RunPaths
    ranks: Crew
    launched_at: float
    shown_at: float = 0.0
    moved_at: float = 0.0

    def until_end(self, progress: bool) -> tuple[str, str] | None:
        """Wait for the ranks' end; give status and cause if the supervision had to end them itself."""
        total = self.experiment.warmup_steps + self.experiment.steps
        tail = records.Tail(self.run.steps)
        failed_at: float | None = None
        self.moved_at = self.launched_at
        with tqdm(total=total, unit="step", disable=not progress, desc=self.experiment.name) as bar:
            while not self.ranks.ended():
                time.sleep(POLL_S)
                self._show(bar, tail)
                if late := self._too_late(bar.n, total):
                    return "timeout", f"{late}, {bar.n} of {total} steps done"
                if trouble := self.ranks.trouble():
                    return "failed", trouble
                if failed_at is None and any(self.ranks.exit_codes().values()):
                    failed_at = time.time()
                if failed_at is not None and time.time() > failed_at + GRACE_S:
                    break
            self._show(bar, tail, last=True)
        if hasattr(bar, "container"):
            # A saved notebook would show the widget's first state, 0 %, for ever.
            from IPython.display import clear_output

            clear_output(wait=True)
        return None

    def _too_late(self, done: int, total: int) -> str | None:
        """Say which limit has passed, None if none has."""
        now, limits = time.time(), self.experiment
        if now > self.launched_at + limits.time_limit_s:
            return f"no end within the time limit of {limits.time_limit_s:g} s"
        if done < total and now > self.moved_at + limits.hang_limit_s:
            return f"no step within hang_limit_s of {limits.hang_limit_s:g} s"
        return None

    def _show(self, bar: Any, tail: records.Tail, last: bool = False) -> None:
        for step in tail.new():
            bar.n, self.moved_at = step["step"], time.time()
            rate = self.experiment.tokens_per_step / step["step_time_s"] if step.get("step_time_s") else 0.0
            loss = step["loss"] if step.get("loss") is not None else float("nan")
            bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        if time.time() > self.shown_at + SHOW_S or last:
            bar.refresh()
            self.shown_at = time.time()


def finish(
    experiment: Experiment,
    run: RunPaths,
    exit_codes: dict[int, int],
    launched_at: float,
    verdict: tuple[str, str | None],
) -> Result:
    """Write the run's result: from here on it is finished."""
    worker = records.read_json(run.worker) or {}
    wall_s = time.time() - launched_at
    if "versions" in worker:
        known = records.read_json(run.environment) or {}
        found = {**worker["versions"], "power_source": worker.get("power_source")}
        records.write_json(run.environment, {**known, **found})
    phases = dict(worker.get("phases_s", {}))
    ended_s = worker.get("ended_s")
    profiled_s = (records.read_json(run.profile) or {}).get("ended_s")
    if ended_s is not None and profiled_s is not None:
        phases["profile"], ended_s = profiled_s - ended_s, profiled_s
    if ended_s is not None:
        phases["stop"] = wall_s - ended_s
    phases["wall"] = wall_s
    summary = summarize_run(experiment, run)
    result = Result(*verdict, exit_codes, phases, summary, run.dir)
    result.write()
    return result
