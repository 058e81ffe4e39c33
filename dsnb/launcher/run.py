"""Launches one run and stays with it to its end, whatever that is.

A finished run has a `result.json`, and nothing of it is running any more.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher import auto_batch_size
from dsnb.launcher.figures import summarize_run
from dsnb.launcher.folder import FolderGuard, create_single_run_dir, describe, prepare
from dsnb.launcher.hosts.remote import RemoteRanks
from dsnb.launcher.local import LocalRanks
from dsnb.launcher.outcome import exception_status, run_status
from dsnb.launcher.rank_group import WORKER, RankGroup
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.system.launch_clock import Stopwatch

POLL_S = 0.05
SHOW_S = 0.5
GRACE_PERIOD_S = 5.0
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
    run = RunPaths(Path(run_dir).absolute() if run_dir else create_single_run_dir(experiment))
    if experiment.micro_batch_size == "auto":
        return auto_batch_size.launch(
            experiment, run, lambda found, folder, asked: _run_once(found, folder, asked, progress, worker)
        )
    return _run_once(experiment, run, experiment, progress, worker)


def _run_once(experiment: Experiment, run: RunPaths, asked: Experiment, progress: bool, worker: str) -> Result:
    """Run an experiment whose settings are all numbers; those that were asked for are recorded beside them."""
    prepare(run, experiment, asked)
    with FolderGuard(run.dir) as guard:
        return _supervise(experiment, run, asked, guard, progress, worker)


def _supervise(
    experiment: Experiment, run: RunPaths, asked: Experiment, guard: FolderGuard, progress: bool, worker: str
) -> Result:
    """Start the ranks of a run whose folder is prepared, stay with them, and write how they ended."""
    stopwatch = Stopwatch()
    ranks: RankGroup | None = None
    try:
        ranks = RemoteRanks(experiment, run) if experiment.hostfile else LocalRanks(experiment, run)
        experiment = ranks.experiment
        if isinstance(ranks, RemoteRanks):  # what only the hosts could say
            describe(run, experiment, asked, ranks.environment)
        ranks.start(worker, stopwatch.began_s)
        ended_by = Supervisor(experiment, run, ranks, guard, stopwatch).until_end(progress)
        codes = ranks.exit_codes()  # of those that ended by themselves
        ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(LaunchError):  # the first error is the one to tell
                ranks.end()
        guard.check()
        finish(experiment, run, ranks.exit_codes() if ranks else {}, stopwatch.elapsed_s(), exception_status(error))
        raise
    status, cause = ended_by or run_status(experiment, run, codes, ranks.oom_kills(), ranks.host_suffix)
    if status == "failed" and (failure := ranks.external_failure()) and failure not in str(cause):
        cause = f"{failure}; {cause}"
    guard.check()
    return finish(experiment, run, ranks.exit_codes(), stopwatch.elapsed_s(), (status, cause))


@dataclass
class Supervisor:
    """The supervision of one run's ranks."""

    experiment: Experiment
    run: RunPaths
    ranks: RankGroup
    guard: FolderGuard
    stopwatch: Stopwatch
    shown_s: float = 0.0
    moved_s: float = 0.0
    """When the last step was seen, and before it when one was shown, in seconds since the launch."""

    def until_end(self, progress: bool) -> tuple[str, str] | None:
        """Wait for the ranks' end; return status and cause if they cannot say themselves how the run ended.

        Raises
        ------
        LaunchError
            If the run's folder is gone.
        """
        total = self.experiment.warmup_steps + self.experiment.steps
        tail = records.Tail(self.run.steps)
        failed_s: float | None = None
        with tqdm(total=total, unit="step", disable=not progress, desc=self.experiment.name) as bar:
            while not self.ranks.ended():
                time.sleep(POLL_S)
                self.guard.check()
                self._show(bar, tail)
                if slept := self._suspended():
                    return slept
                if (late := self._exceeded_limit(bar.n, total)) and not self.ranks.ended():
                    return "timeout", f"{late}, {bar.n} of {total} steps done"
                if failure := self.ranks.external_failure():
                    return "failed", failure
                if failed_s is None and any(self.ranks.exit_codes().values()):
                    failed_s = self.stopwatch.elapsed_s()
                if failed_s is not None and self.stopwatch.elapsed_s() > failed_s + GRACE_PERIOD_S:
                    break
            self._show(bar, tail, last=True)
        if hasattr(bar, "container"):
            # A saved notebook would show the widget's first state, 0 %, for ever.
            from IPython.display import clear_output

            clear_output(wait=True)
        return self._suspended()

    def _suspended(self) -> tuple[str, str] | None:
        """Return status and cause of a run that the machine slept through: its figures would be of the sleep."""
        slept_s = self.stopwatch.suspended_s()
        if not slept_s:
            return None
        return "interrupted", f"the machine was suspended for {slept_s:,.0f} s during the run; start the sweep again"

    def _exceeded_limit(self, done: int, total: int) -> str | None:
        """Say which limit has passed, None if none has."""
        elapsed_s, limits = self.stopwatch.elapsed_s(), self.experiment
        if elapsed_s > limits.time_limit_s:
            return f"no end within the time limit of {limits.time_limit_s:g} s"
        if done < total and elapsed_s > self.moved_s + limits.step_timeout_s:
            return f"no step within step_timeout_s of {limits.step_timeout_s:g} s"
        return None

    def _show(self, bar: Any, tail: records.Tail, last: bool = False) -> None:
        for step in record_schema.steps(tail):
            bar.n, self.moved_s = step["step"], self.stopwatch.elapsed_s()
            rate = self.experiment.tokens_per_step / step["step_time_s"] if step.get("step_time_s") else 0.0
            loss = step["loss"] if step.get("loss") is not None else float("nan")
            bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        if self.stopwatch.elapsed_s() > self.shown_s + SHOW_S or last:
            bar.refresh()
            self.shown_s = self.stopwatch.elapsed_s()


def finish(
    experiment: Experiment,
    run: RunPaths,
    exit_codes: dict[int, int],
    wall_s: float,
    verdict: tuple[str, str | None],
) -> Result:
    """Write the run's result: from here on it is finished."""
    worker = record_schema.read(run.worker) or {}
    if versions := worker.get("versions"):
        known = records.read_json(run.environment) or {}
        found = {**versions, "power_source": worker.get("power_source")}
        records.write_json(run.environment, {**known, **found})
    phases = dict(worker.get("phases_s") or {})
    ended_s = worker.get("ended_s")
    profiled_s = (record_schema.read(run.profile) or {}).get("ended_s")
    if ended_s is not None and profiled_s is not None:
        phases["profile"], ended_s = profiled_s - ended_s, profiled_s
    if ended_s is not None:
        phases["stop"] = wall_s - ended_s
    phases["wall"] = wall_s
    summary = summarize_run(experiment, run)
    result = Result(*verdict, exit_codes, phases, summary, run.dir)
    result.write()
    return result
