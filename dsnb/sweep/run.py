"""Executes the runs of a sweep through papermill, one notebook per run; continues after failures; resumes.

Every run that is not finished (`dsnb.run_folder.finished`) is executed again.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dsnb.errors import SettingsError
from dsnb.execute import notebook
from dsnb.files import records
from dsnb.launcher import fork
from dsnb.run_folder import finished, paths, record_schema
from dsnb.run_folder.result import Result
from dsnb.settings import checks, inputs
from dsnb.sweep import job, schedule
from dsnb.sweep.left_out import without_unfit
from dsnb.sweep.lock import locked
from dsnb.sweep.params import Run, Sweep, load_sweep
from dsnb.sweep.slurm import allocation as slurm_allocation
from dsnb.sweep.slurm import jobs as slurm_jobs
from dsnb.sweep.slurm.allocation import Allocation
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
        `dsnb.sweep.slurm.allocation.load`.
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
        load = partial(slurm_allocation.load, allocation=slurm) if slurm else load_sweep
        sweep = load(sweep, overrides=overrides, only=only, output=output)
    check_notebook()
    if not slurm and (problems := unsupported(sweep)):
        raise SettingsError(problems)
    if skip_oom:
        sweep = replace(sweep, params={**sweep.params, "skip_oom": True})
    sweep = with_inputs(without_unfit(sweep, _sayer(progress), verbose))
    with locked(sweep.paths):
        todo = [run for run in sweep.runs if not is_finished(run, retry)]
        records.write_text(sweep.paths.params, yaml.safe_dump(sweep.params, sort_keys=False, allow_unicode=True))
        records.write_json(sweep.paths.planned, {"runs": _planned(sweep), "left_out": dict(sweep.left_out)})
        with _display(sweep, todo, progress, show_eta=slurm is None) as display:
            if slurm:
                schedule.run_all(todo, slurm_jobs.SlurmExecutor(slurm, sweep.name, todo, display.say), display)
            else:
                _run_here(todo, display)
        return [result for run in sweep.runs if (result := job.read_result(run.paths))]


def _planned(sweep: Sweep) -> dict[str, list[int]]:
    """Return the repeats of each experiment, both in the order in which they come."""
    planned: dict[str, list[int]] = {}
    for run in sweep.runs:
        planned.setdefault(run.name, []).append(run.repeat)
    return planned


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
    sweep = with_inputs(without_unfit(sweep, _sayer(True), verbose))
    todo = [run for run in sweep.runs if not is_finished(run, retry)]
    if todo:
        with _display(sweep, todo, True, show_eta=False) as display:  # the job itself locks the folder
            slurm_jobs.run_in_one_job(sweep, allocation, command, display.say)
    return [result for run in sweep.runs if (result := job.read_result(run.paths))]


def _run_here(todo: list[Run], display: "Progress") -> None:
    if active := slurm_jobs.find_active([run.paths for run in todo if not run.paths.result.exists()]):
        raise SettingsError(f"{active}: continue with --slurm, or cancel it with scancel")
    for run in todo:
        run.paths.slurm.unlink(missing_ok=True)
    with fork.shared_servers(_devices(todo)):
        if any(run.lane for run in todo):
            schedule.run_all(todo, schedule.LocalExecutor(), display)
            return
        for run in todo:
            display.begin(run)
            display.end(run, job.execute(run))


def _devices(todo: list[Run]) -> set[str]:
    """Return the devices for which this machine needs a fork server; hosts of a hostfile have none."""
    here = [run.experiment for run in todo if not run.experiment.hostfile]
    return {experiment.device for experiment in here if experiment.launcher == "fork"}


def _sayer(shown: bool) -> Callable[[str], None]:
    """Return a function that prints a line as the progress of a sweep does."""
    from dsnb.sweep.progress import Progress

    return Progress(total=0, todo=[], enabled=shown).say


@contextlib.contextmanager
def _display(sweep: Sweep, todo: list[Run], progress: bool, show_eta: bool) -> Iterator["Progress"]:
    from dsnb.sweep.progress import Progress

    with Progress(total=len(sweep.runs), todo=todo, enabled=progress, show_eta=show_eta) as display:
        if todo and (message := signals.stop_hint()):
            display.say(message)
        yield display


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
    """Make sure that the run notebook takes parameters: without the tag of their cell, its defaults would win.

    Raises
    ------
    SettingsError
        If it is missing, or has lost the tag of its parameters cell.
    """
    template = paths.notebook_template(job.NOTEBOOK)
    if not template.is_file():
        raise SettingsError(f"notebook {str(template)!r} is missing: install dsnb from a complete checkout")
    if "run_dir" not in notebook.parameters(template):
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
    if status in finished.ENDED and (other := job.changed_settings(run)):
        raise SettingsError(f"{run.paths.dir} is finished with other settings ({other}): choose another --output")
    if status == "interrupted" or (retry and status != "ok"):
        return False
    if file := job.changed_input(run):
        raise SettingsError(f"{file} has changed since {run.paths.dir} was measured with it: {job.CHANGED}")
    if message := finished.problem(run.paths):
        records.warn(f"{run.paths.dir}: {message}; the run is repeated")
    return not message
