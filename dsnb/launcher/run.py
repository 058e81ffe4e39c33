"""Launches one run and supervises it until it ends, in whatever way.

A finished run has a `result.json` and no process left.
"""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher import auto_batch_size
from dsnb.launcher.figures import summarize_run
from dsnb.launcher.folder import create_single_run_dir, prepare, write_description
from dsnb.launcher.hosts import HostRanks
from dsnb.launcher.local import LocalRanks
from dsnb.launcher.outcome import exception_status, run_status, without_machine_faults
from dsnb.launcher.progress import REFRESH_S, PhaseTimer, phase, progress_bar, start_phase
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.system.launch_clock import Stopwatch

WORKER = "dsnb.train.worker"
POLL_S = 0.05
GRACE_PERIOD_S = 5.0
"""How long the other ranks may continue after one has failed: some would wait for it for ever."""


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
        The run folder, new or of an unfinished run; by default the next free one under `outputs/single`.
    progress
        Whether to show a progress bar with loss and tokens/s.
    worker
        Module whose `main(run_dir)` each rank calls; tests pass a fake.

    Returns
    -------
    Result
        The result, whatever its status; `Result.raise_for_status()` raises unless it is `ok`.

    Raises
    ------
    SettingsError
        If this machine cannot run the settings, or the folder holds a finished run.
    LaunchError
        If the ranks could not be started.
    """
    if problems := checks.unsupported(experiment.model_dump()):
        raise SettingsError(problems)
    run = RunPaths(Path(run_dir).absolute() if run_dir else create_single_run_dir(experiment))
    if experiment.micro_batch_size == "auto":
        from dsnb.prediction.largest_batch import largest_predicted

        return auto_batch_size.launch(
            experiment,
            run,
            lambda settings, folder, requested: _run_once(settings, folder, requested, progress, worker),
            largest_predicted,
        )
    return _run_once(experiment, run, experiment, progress, worker)


def _run_once(experiment: Experiment, run: RunPaths, requested: Experiment, shown: bool, worker: str) -> Result:
    """Run an experiment whose batch size is known; the requested settings are recorded beside those used."""
    prepare(run, experiment, requested)
    stopwatch = Stopwatch()
    ranks: LocalRanks | HostRanks | None = None
    try:
        ranks = HostRanks(experiment, run) if experiment.hostfile else LocalRanks(experiment, run)
        experiment = ranks.experiment
        if isinstance(ranks, HostRanks):  # the device and the machine are known only now
            write_description(run, experiment, requested, ranks.environment)
        with progress_bar(experiment, shown) as bar:
            bar.set_postfix_str(start_phase(experiment))
            ranks.start(worker, stopwatch.began_s)
            ended_by = Supervisor(experiment, run, ranks, stopwatch, bar).until_end()
        codes = ranks.exit_codes()  # of the ranks that ended by themselves
        ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(LaunchError, OSError):  # report the first error
                ranks.end()
        finish(experiment, run, ranks.exit_codes() if ranks else {}, stopwatch.elapsed_s(), exception_status(error))
        raise
    status, cause = ended_by or run_status(experiment, run, codes, ranks.oom_kills(), ranks.host_suffix)
    if status == "failed" and (failure := ranks.external_failure()) and failure not in str(cause):
        cause = f"{failure}; {cause}"
    return finish(experiment, run, ranks.exit_codes(), stopwatch.elapsed_s(), (status, cause))


@dataclass
class Supervisor:
    """Watches the ranks of one run: their steps, exit codes and time limits."""

    experiment: Experiment
    run: RunPaths
    ranks: LocalRanks | HostRanks
    stopwatch: Stopwatch
    bar: Any
    """The progress bar, which may be disabled."""
    refreshed_s: float = 0.0
    """When the progress bar was last refreshed, in seconds since the launch."""
    last_step_s: float = 0.0
    """When the last step was seen, in seconds since the launch."""
    steps_done: int = 0
    timer: PhaseTimer = field(default_factory=PhaseTimer)

    def until_end(self) -> tuple[str, str] | None:
        """Wait for the end of the ranks; return status and cause if their records cannot tell how the run ended.

        Raises
        ------
        LaunchError
            If the run folder is gone.
        """
        total = self.experiment.warmup_steps + self.experiment.steps
        tail = records.Tail(self.run.steps)
        failed_s: float | None = None
        while not self.ranks.ended():
            time.sleep(POLL_S)
            if not self.run.dir.is_dir():
                raise LaunchError(f"{self.run.dir} was removed during the run: start the sweep again")
            self._update(tail)
            if interruption := self._interruption():
                return interruption
            if (limit := self._exceeded_limit(total)) and not self.ranks.ended():
                return "timeout", f"{limit}, {self.steps_done} of {total} steps done"
            if failure := self.ranks.external_failure():
                return "failed", failure
            if failed_s is None and any(self.ranks.exit_codes().values()):
                failed_s = self.stopwatch.elapsed_s()
            if failed_s is not None and self.stopwatch.elapsed_s() > failed_s + GRACE_PERIOD_S:
                break
        self._update(tail, last=True)
        return self._interruption()

    def _interruption(self) -> tuple[str, str] | None:
        """Return status and cause if the machine was suspended during the run, which makes its figures worthless."""
        suspended_s = self.stopwatch.suspended_s()
        if not suspended_s:
            return None
        return (
            "interrupted",
            f"the machine was suspended for {suspended_s:,.0f} s during the run; start the sweep again",
        )

    def _exceeded_limit(self, total: int) -> str | None:
        """Return which time limit was exceeded, None if none was."""
        elapsed_s, limits = self.stopwatch.elapsed_s(), self.experiment
        if elapsed_s > limits.time_limit_s:
            return f"no end within the time limit of {limits.time_limit_s:g} s"
        if self.steps_done < total and elapsed_s > self.last_step_s + limits.step_timeout_s:
            return f"no step within step_timeout_s of {limits.step_timeout_s:g} s"
        return None

    def _update(self, tail: records.Tail, last: bool = False) -> None:
        """Update the progress bar with the steps that were written since the last call, before them with the phase."""
        for step in record_schema.steps(tail):
            self.steps_done = self.bar.n = step["step"]
            self.last_step_s = self.stopwatch.elapsed_s()
            rate = self.experiment.tokens_per_step / step["step_time_s"] if step.get("step_time_s") else 0.0
            loss = step["loss"] if step.get("loss") is not None else float("nan")
            self.bar.set_postfix_str(f"loss {loss:.3f}, {rate:,.0f} tokens/s", refresh=False)
        if self.stopwatch.elapsed_s() > self.refreshed_s + REFRESH_S or last:
            if not self.steps_done:
                self.bar.set_postfix_str(self.timer.text(phase(self.experiment, self.run)), refresh=False)
            self.bar.refresh()
            self.refreshed_s = self.stopwatch.elapsed_s()


def finish(
    experiment: Experiment,
    run: RunPaths,
    exit_codes: dict[int, int],
    wall_s: float,
    outcome: tuple[str, str | None],
) -> Result:
    """Write the result, which makes the run a finished one.

    Parameters
    ----------
    outcome
        Status and cause.
    """
    worker = record_schema.read(run.worker) or {}
    if versions := worker.get("versions"):
        machine = records.read_json(run.environment) or {}
        records.write_json(run.environment, {**machine, **versions, "power_source": worker.get("power_source")})
    summary = summarize_run(experiment, run)
    result = Result(*without_machine_faults(*outcome), exit_codes, _phases_s(run, worker, wall_s), summary, run.dir)
    result.write()
    return result


def _phases_s(run: RunPaths, worker: dict[str, Any], wall_s: float) -> dict[str, float]:
    """Return the seconds of each phase of a run, from the launch to the end of its ranks."""
    phases_s = dict(worker.get("phases_s") or {})
    ended_s = worker.get("ended_s")
    if ended_s is not None:
        profile_ended_s = (record_schema.read(run.profile) or {}).get("ended_s")
        if profile_ended_s is not None:
            phases_s["profile"], ended_s = profile_ended_s - ended_s, profile_ended_s
        phases_s["stop"] = wall_s - ended_s
    return {**phases_s, "wall": wall_s}
