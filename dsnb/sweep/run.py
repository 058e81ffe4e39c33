"""Executes the runs of a sweep through papermill, one notebook per run; continues after failures; resumes.

Every run that is not finished (`dsnb.run_folder.result`) is executed again.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from dsnb.errors import LaunchError, SettingsError
from dsnb.execute import notebook
from dsnb.files import plain_text, records
from dsnb.launcher import local
from dsnb.launcher.folder import check_free_space
from dsnb.run_folder import paths, record_schema
from dsnb.run_folder.paths import SweepPaths
from dsnb.run_folder.result import ENDED, Result, unfinished
from dsnb.settings import checks, inputs
from dsnb.sweep import allocation, job, schedule
from dsnb.sweep import slurm as slurm_jobs
from dsnb.sweep.allocation import Allocation
from dsnb.sweep.left_out import without_unfit
from dsnb.sweep.params import Run, Sweep, load_sweep
from dsnb.sweep.progress import Progress

__all__ = ["Sweep", "load_sweep", "run_sweep"]


def run_sweep(
    sweep: Sweep | str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
    retry: bool = False,
    progress: bool = True,
    slurm: Allocation | None = None,
    skip_oom: bool = False,
    verbose: bool = False,
) -> list[Result]:
    """Execute all runs of a sweep that are not finished yet.

    Parameters
    ----------
    sweep
        A sweep, or a params file, which is loaded with `overrides`, `only` and `output`.
    retry
        Repeat finished runs that are not `ok` as well.
    progress
        Show which run of how many, loss, tokens/s and the time left.
    slurm
        Submit every run as a Slurm job with at most this allocation; a `Sweep` then has to come from
        `dsnb.sweep.allocation.load`.
    skip_oom
        Leave out the settings that are predicted not to fit into the memory of this machine's GPUs, or into
        `memory_limit_gib`, as `skip_oom: true` of the params file does.
    verbose
        Name each of these settings with what it needs; otherwise, several are only counted.

    Returns
    -------
    list of Result
        One per run of the sweep, including those that were finished before.

    Raises
    ------
    SettingsError
        If this machine cannot run it, a finished run has other settings, another sweep uses the folder, or the memory
        for `skip_oom` is unknown.
    LaunchError
        If the disk is full. Finished runs are kept.
    """
    if not isinstance(sweep, Sweep):
        selection = (overrides, only, output)
        sweep = allocation.load(sweep, slurm, *selection) if slurm else load_sweep(sweep, *selection)
    check_notebook()
    if not slurm and (problems := unsupported(sweep)):
        raise SettingsError(problems)
    if skip_oom:
        sweep = replace(sweep, params={**sweep.params, "skip_oom": True})
    sweep = with_inputs(without_unfit(sweep, Progress(0, [], progress).say, verbose))
    with locked(sweep.paths):
        check_free_space(sweep.paths.dir)  # before servers are started that take seconds
        todo = [run for run in sweep.runs if not is_finished(run, retry)]
        records.write_text(sweep.paths.params, yaml.safe_dump(sweep.params, sort_keys=False, allow_unicode=True))
        repeats: dict[str, list[int]] = {}
        for run in sweep.runs:
            repeats.setdefault(run.name, []).append(run.repeat)
        records.write_json(sweep.paths.planned, {"runs": repeats, "left_out": dict(sweep.left_out)})
        with Progress(len(sweep.runs), todo, progress, show_eta=slurm is None) as display:
            if slurm:
                executor = slurm_jobs.SlurmExecutor(slurm, sweep.name, todo, display.say)
                schedule.run_all(todo, executor.start, display, executor.cancel)
            else:
                _run_here(todo, display)
    return _results(sweep)


def run_in_one_job(
    sweep: Sweep, allocation: Allocation, command: list[str], *, retry: bool = False, verbose: bool = False
) -> list[Result]:
    """Execute all runs of a sweep that are not finished yet in one Slurm job, which runs `command`.

    `retry`, `verbose` and the list that is returned are as for `run_sweep`.

    Raises
    ------
    SettingsError
        If a finished run has other settings, or the memory for `skip_oom` is unknown.
    LaunchError
        If Slurm rejects the job, or the job ends before the sweep is finished.
    """
    sweep = with_inputs(without_unfit(sweep, Progress(0, []).say, verbose))
    todo = [run for run in sweep.runs if not is_finished(run, retry)]
    if todo:
        with Progress(len(sweep.runs), todo, show_eta=False) as display:  # the job itself locks the folder
            slurm_jobs.run_in_one_job(sweep, allocation, command, display.say)
    return _results(sweep)


def _run_here(todo: list[Run], display: Progress) -> None:
    if active := slurm_jobs.find_active([run.paths for run in todo if not run.paths.result.exists()]):
        raise SettingsError(f"{active}: continue with --slurm, or cancel it with scancel")
    for run in todo:
        run.paths.slurm.unlink(missing_ok=True)
    forked = [run.experiment for run in todo if run.experiment.launcher == "fork" and not run.experiment.hostfile]
    with local.shared_servers({experiment.device for experiment in forked}):
        if any(run.lane for run in todo):
            schedule.run_all(todo, schedule.LocalJob, display)
            return
        for run in todo:
            display.begin(run)
            display.end(run, job.execute(run))


def _results(sweep: Sweep) -> list[Result]:
    return [result for run in sweep.runs if (result := job.read_result(run.paths))]


@contextlib.contextmanager
def locked(sweep: SweepPaths) -> Iterator[None]:
    """Hold the lock of a sweep's folder; the folder is created if necessary.

    The operating system releases the lock when the process ends, however it ends. A lock file without `flock` would
    outlive a killed process, so file systems without `flock` are refused.

    Raises
    ------
    SettingsError
        If another sweep holds the lock.
    LaunchError
        If the folder cannot be written.
    """
    lock = FileLock(sweep.lock, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        sweep.dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        sweep.lock.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout:
        holder = plain_text.line(sweep.lock.read_text("utf-8", "replace")) or "another process"
        raise SettingsError(
            f"{sweep.dir} is in use by another sweep ({holder}): wait for it, or choose another --output"
        ) from None
    except OSError as error:
        raise LaunchError(f"{sweep.dir} cannot be written: {error.strerror}; choose another --output") from error
    try:
        yield
    finally:
        lock.release()


def with_inputs(sweep: Sweep) -> Sweep:
    """Return a sweep whose runs know the digests of the files that they read."""
    read: dict[tuple[str, ...], dict[str, str]] = {}
    runs = []
    for run in sweep.runs:
        settings = run.experiment.model_dump()
        key = tuple(settings[name] for name in ("model", "weights", "tokenizer", "data"))
        if key not in read:
            read[key] = inputs.digests(settings)
        runs.append(replace(run, inputs=read[key]))
    return replace(sweep, runs=tuple(runs))


def check_notebook() -> None:
    """Raise a SettingsError if the run notebook takes no parameters: without their tag, its defaults would win."""
    template = paths.notebook_template(job.NOTEBOOK)
    if not template.is_file() or "run_dir" not in notebook.parameters(template):
        raise SettingsError(
            f"notebook {str(template)!r} has no cell tagged 'parameters' with 'run_dir': restore the tag, or the cell"
        )


def unsupported(sweep: Sweep) -> list[str]:
    """Return why this machine cannot run a sweep, each reason once."""
    problems = [problem for run in sweep.runs for problem in checks.unsupported(run.experiment.model_dump())]
    return list(dict.fromkeys(problems))


def is_finished(run: Run, retry: bool = False) -> bool:
    """Return whether a run does not have to be executed.

    A run that has ended with an incomplete record is executed again, with a warning that says what is wrong.

    Raises
    ------
    SettingsError
        If it was finished with other settings, or with another content of a file that it reads.
    """
    record = records.read_json(run.paths.result)
    status = record_schema.cleaned(run.paths.result.name, record)[0].get("status") if record else "interrupted"
    if status in ENDED and (other := job.changed_settings(run)):
        raise SettingsError(f"{run.paths.dir} is finished with other settings ({other}): choose another --output")
    if status == "interrupted" or (retry and status != "ok"):
        return False
    if file := job.changed_input(run):
        raise SettingsError(f"{file} has changed since {run.paths.dir} was measured with it: {job.CHANGED}")
    if message := unfinished(run.paths):
        records.warn(f"{run.paths.dir}: {message}; the run is repeated")
    return not message
