"""Launches one run and stays with it to its end, whatever that is.

A finished run has a `result.json`, and nothing of it is running any more.
"""

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from dsnb import checks, paths, records
from dsnb.errors import LaunchError, SettingsError
from dsnb.experiment import Experiment
from dsnb.launcher import environment, op_builds
from dsnb.launcher.config import deepspeed_config
from dsnb.launcher.fork import ForkedRanks
from dsnb.launcher.gpu_sampler import GpuSampler
from dsnb.launcher.outcome import Result, judge, summarize_run
from dsnb.launcher.ranks import WORKER, DeepSpeedRanks, Ranks
from dsnb.paths import RunPaths

POLL_S = 0.05
SHOW_S = 0.5
GRACE_S = 5.0
"""How long the other ranks may go on after one has failed: they would wait for it for ever."""
LEAST_FREE_BYTES = 64 * 2**20


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
    run = RunPaths(Path(run_dir).absolute() if run_dir else _next_free(experiment))
    prepare(run, experiment)
    for lock in op_builds.remove_stale_locks():
        print(f"removed the lock that a killed compilation left: {lock}")
    launched_at = time.time()
    starter = DeepSpeedRanks if experiment.launcher == "deepspeed" else ForkedRanks
    env = environment.for_ranks(experiment, launched_at)
    count = experiment.gpus if experiment.device == "cuda" else 0
    oom_kills = _host_oom_kills()
    ranks: Ranks | None = None
    try:
        with GpuSampler(run.gpu, count, launched_at):
            ranks = starter(experiment, run, env, worker)
            ended_by = Watch(experiment, run, ranks, launched_at + experiment.time_limit_s).until_end(progress)
            codes = ranks.exit_codes()  # of those that ended by themselves
            ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(LaunchError):  # the first error is the one to tell
                ranks.end()
        stopped = isinstance(error, KeyboardInterrupt)
        verdict = ("interrupted", "stopped by the user") if stopped else ("failed", f"{type(error).__name__}: {error}")
        finish(experiment, run, ranks.exit_codes() if ranks else {}, launched_at, verdict)
        raise
    outcome = ended_by or judge(experiment, run, codes, _host_oom_kills() - oom_kills)
    return finish(experiment, run, ranks.exit_codes(), launched_at, outcome)


def _next_free(experiment: Experiment) -> Path:
    """Make the next free folder, which nobody else can then get."""
    sweep = paths.SweepPaths(paths.outputs_root() / "single")
    repeat = 0
    while True:
        repeat += 1
        folder = sweep.run(experiment.name_with_model, repeat).dir.absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise LaunchError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
        return folder


def prepare(run: RunPaths, experiment: Experiment) -> None:
    """Make the run folder and write everything that is known before the launch.

    Raises
    ------
    SettingsError
        If a finished run lies there.
    LaunchError
        If the folder cannot be written or the disk is full.
    """
    before = records.read_json(run.result)
    if before and before.get("status") != "interrupted":
        raise SettingsError(f"run_dir is {str(run.dir)!r}: it holds a finished run; name another folder")
    try:
        run.dir.mkdir(parents=True, exist_ok=True)
        clear(run)
        check_space(run.dir)
        records.write_json(run.experiment, {**experiment.model_dump(), "name": experiment.name})
        records.write_json(run.deepspeed, deepspeed_config(experiment))
        records.write_json(run.environment, environment.describe())
        run.console.touch()
    except OSError as error:
        raise LaunchError(f"{run.dir} cannot be written: {error.strerror}; choose another folder") from error


def check_space(folder: Path) -> None:
    """Make sure that a run's records will fit on the disk.

    Raises
    ------
    LaunchError
        If they might not.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if (free := shutil.disk_usage(existing).free) < LEAST_FREE_BYTES:
        raise LaunchError(f"{folder}: the disk is full ({free // 2**20} MiB free); make 64 MiB of room and start again")


def clear(run: RunPaths) -> None:
    """Remove what an unfinished run left; the notebook stays, it may be the one being executed."""
    for path in (run.steps, run.gpu, run.console, run.worker, run.failures, run.result):
        path.unlink(missing_ok=True)


@dataclass
class Watch:
    """The supervision of one run's ranks."""

    experiment: Experiment
    run: RunPaths
    ranks: Ranks
    deadline: float
    shown_at: float = 0.0

    def until_end(self, progress: bool) -> tuple[str, str] | None:
        """Wait for the ranks' end; give status and cause if the supervision had to end them itself."""
        total = self.experiment.warmup_steps + self.experiment.steps
        tail = records.Tail(self.run.steps)
        failed_at: float | None = None
        with tqdm(total=total, unit="step", disable=not progress, desc=self.experiment.name) as bar:
            while not self.ranks.ended():
                time.sleep(POLL_S)
                self._show(bar, tail)
                if time.time() > self.deadline:
                    limit = f"{self.experiment.time_limit_s:g} s"
                    return "timeout", f"no end within the time limit of {limit}, {bar.n} of {total} steps done"
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

    def _show(self, bar: Any, tail: records.Tail, last: bool = False) -> None:
        for step in tail.new():
            bar.n = step["step"]
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
        records.write_json(run.environment, {**known, **worker["versions"]})
    phases = dict(worker.get("phases_s", {}))
    if "ended_s" in worker:
        phases["stop"] = wall_s - worker["ended_s"]
    phases["wall"] = wall_s
    summary = summarize_run(experiment, run)
    result = Result(*verdict, exit_codes, phases, summary, run.dir)
    result.write()
    return result


def _host_oom_kills() -> int:
    """Count the processes that Linux has killed for want of memory since it started."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)
