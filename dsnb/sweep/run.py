"""Executes the runs of a sweep through papermill, one notebook a run; goes on after a failed run; resumes.

Every run that is not finished (`dsnb.run_folder.finished`) is made again.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dsnb.errors import SettingsError
from dsnb.execute import notebook
from dsnb.files import records
from dsnb.launcher import fork
from dsnb.launcher.hosts import servers
from dsnb.run_folder import finished, paths, record_schema
from dsnb.run_folder.result import Result
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.sweep import job, schedule
from dsnb.sweep.lock import GuardedExecutor, Lock, locked
from dsnb.sweep.params import Run, Sweep, load_sweep
from dsnb.sweep.slurm import allocation
from dsnb.sweep.slurm.allocation import Allocation
from dsnb.sweep.slurm.jobs import SlurmExecutor
from dsnb.sweep.slurm.one_allocation import run_in_allocation
from dsnb.sweep.slurm.submissions import running_jobs
from dsnb.system import signals

if TYPE_CHECKING:
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
) -> list[Result]:
    """Make all runs of a sweep that are not finished yet.

    Parameters
    ----------
    sweep
        A sweep, or a params file, which is loaded with `overrides`, `only` and `output`.
    retry
        Repeat finished runs that are not `ok` as well.
    progress
        Show which run of how many, loss, tokens/s and the time left.
    slurm
        Make every run as a Slurm job that may have this; a loaded sweep comes from `dsnb.sweep.slurm.allocation.load`.

    Returns
    -------
    list of Result
        One for every run of the sweep, those that were finished before included.

    Raises
    ------
    SettingsError
        If a run cannot work on this machine, contradicts a finished one, or another sweep works in the folder.
    LaunchError
        If the disk is full, or the sweep's folder is removed meanwhile. Finished runs are kept.
    """
    if not isinstance(sweep, Sweep):
        load = partial(allocation.load, allocation=slurm) if slurm else load_sweep
        sweep = load(sweep, overrides=overrides, only=only, output=output)
    check_notebook()
    if not slurm and (problems := unsupported(sweep)):
        raise SettingsError(problems)
    with locked(sweep.paths) as lock:
        todo = [run for run in sweep.runs if not is_finished(run, retry)]
        with contextlib.suppress(OSError):
            sweep.paths.index.unlink()
        records.write_text(sweep.paths.params, yaml.safe_dump(sweep.params, sort_keys=False, allow_unicode=True))
        with _shown(sweep, todo, progress, show_eta=slurm is None) as shown:
            if slurm:
                schedule.run_all(todo, GuardedExecutor(SlurmExecutor(slurm, sweep.name, todo, shown.say), lock), shown)
            else:
                _make_here(todo, shown, lock)
        lock.check()
        return [result for run in sweep.runs if (result := job.recorded(run.paths))]


def run_in_one_job(sweep: Sweep, asked: Allocation, words: list[str], *, retry: bool = False) -> bool:
    """Make all runs of a sweep that are not finished yet in one Slurm job, in which `words` make them.

    Returns
    -------
    bool
        Whether every run is ok.

    Raises
    ------
    SettingsError
        If a run contradicts a finished one.
    LaunchError
        If Slurm refuses the job, or it ends before the sweep does.
    """
    todo = [run for run in sweep.runs if not is_finished(run, retry)]
    code = 0
    if todo:
        with _shown(sweep, todo, True, show_eta=False) as shown:
            code = run_in_allocation(sweep, todo, asked, words, shown)  # the job itself locks the folder
    results = [job.recorded(run.paths) for run in sweep.runs]
    return code == 0 and all(result is not None and result.status == "ok" for result in results)


def _make_here(todo: list[Run], shown: "Progress", lock: Lock) -> None:
    if made := running_jobs(todo):
        raise SettingsError(
            f"Slurm still makes {', '.join(made[:3])}: go on with --slurm, or end the jobs with scancel"
        )
    with fork.shared_servers(_devices(todo)), servers.keep_servers(run.experiment for run in todo):
        if any(run.lane for run in todo):
            schedule.run_all(todo, GuardedExecutor(schedule.LocalExecutor(), lock), shown)
            return
        for run in todo:
            lock.check()
            shown.begin(run)
            shown.end(run, job.execute(run))


def _devices(todo: list[Run]) -> set[str]:
    """Give the devices for which this machine needs a fork server: hosts of a hostfile have their own."""
    here = [run.experiment for run in todo if not run.experiment.hostfile]
    return {experiment.device for experiment in here if experiment.launcher == "fork"}


@contextlib.contextmanager
def _shown(sweep: Sweep, todo: list[Run], progress: bool, show_eta: bool) -> Iterator["Progress"]:
    from dsnb.sweep.progress import Progress

    with Progress(total=len(sweep.runs), todo=todo, enabled=progress, show_eta=show_eta) as shown:
        if todo and (told := signals.stop_hint()):
            shown.say(told)
        yield shown


def check_notebook() -> None:
    """Make sure that the run notebook takes every setting: papermill only warns about one that it does not know.

    Raises
    ------
    SettingsError
        If it is missing, has lost the tag of its parameters cell, or lacks a setting.
    """
    template = paths.notebook_template(job.NOTEBOOK)
    if not template.is_file():
        raise SettingsError(f"notebook {str(template)!r} is missing: install dsnb from a complete checkout")
    known = notebook.parameter_names(template)
    if missing := [name for name in (*Experiment.model_fields, "run_dir") if name not in known]:
        raise SettingsError(
            f"notebook {str(template)!r} does not take {', '.join(missing)}: "
            "add it to the cell tagged 'parameters', or restore the tag"
        )


def unsupported(sweep: Sweep) -> list[str]:
    """List what this machine cannot do of a sweep, each problem once."""
    problems = [problem for run in sweep.runs for problem in checks.unsupported(run.experiment.model_dump())]
    return list(dict.fromkeys(problems))


def is_finished(run: Run, retry: bool = False) -> bool:
    """Say whether a run need not be made.

    One that has ended but whose record is not whole is made again, with a warning that says what is wrong with it.

    Raises
    ------
    SettingsError
        If it was finished with other settings than it has now.
    """
    record = records.read_json(run.paths.result)
    status = record_schema.cleaned(run.paths.result.name, record)[0].get("status") if record else "interrupted"
    if status in finished.ENDED and (other := job.changed(run)):
        raise SettingsError(f"{run.paths.dir} is finished with other settings ({other}): choose another --output")
    if status == "interrupted" or (retry and status != "ok"):
        return False
    if told := finished.trouble(run.paths):
        records.warn(f"{run.paths.dir}: {told}; the run is made again")
    return not told
