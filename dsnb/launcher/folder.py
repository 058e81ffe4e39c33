"""The run folder before the launch: creates it, checks the disk, and writes what is known already."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.launcher import environment
from dsnb.launcher.config import deepspeed_config
from dsnb.run_folder import paths
from dsnb.run_folder.columns import PLANNED
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import ENDED, unfinished
from dsnb.settings import inputs
from dsnb.settings.experiment import Experiment

MIN_FREE_BYTES = 64 * 2**20


def create_single_run_dir(experiment: Experiment) -> Path:
    """Create the next free folder for a run outside sweeps."""
    return create_run_dir(paths.SweepPaths(paths.outputs_root() / "single"), experiment.name_with_model)


def create_run_dir(sweep: paths.SweepPaths, experiment: str) -> Path:
    """Create the next free folder of an experiment in a sweep; concurrent callers get different ones."""
    repeat = 0
    while True:
        repeat += 1
        folder = sweep.run(experiment, repeat).dir.absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise LaunchError(f"{folder} cannot be written: {error.strerror}; choose another folder") from error
        return folder


def prepare(run: RunPaths, experiment: Experiment, requested: Experiment | None = None) -> None:
    """Create the run folder and write everything that is known before the launch.

    Parameters
    ----------
    requested
        The settings as the user gave them, where some were resolved since, such as `micro_batch_size: auto`.

    Raises
    ------
    SettingsError
        If the folder holds a finished run.
    LaunchError
        If the folder cannot be written or the disk is full.
    """
    before = records.read_json(run.result)
    if before and before.get("status") in ENDED and not unfinished(run):
        raise SettingsError(f"run_dir is {str(run.dir)!r}: it holds a finished run; choose another folder")
    try:
        run.dir.mkdir(parents=True, exist_ok=True)
        is_recorded = not run.console.exists() and _is_recorded(run, experiment, requested or experiment)
        remove_leftovers(run)
        check_free_space(run.dir)
        ranks = environment.for_ranks(experiment.device, experiment.gpus, 0.0, experiment.allocator)
        write_description(
            run, experiment, None if is_recorded else requested or experiment, environment.describe(ranks)
        )
        run.console.touch()
    except OSError as error:
        raise LaunchError(f"{run.dir} cannot be written: {error.strerror}; choose another folder") from error


def _is_recorded(run: RunPaths, experiment: Experiment, requested: Experiment) -> bool:
    """Return whether a sweep has written just these settings."""
    settings = records.read_json(run.experiment) or {"asked": {}}
    return "asked" not in settings and experiment == requested == Experiment.recorded(settings)


def write_description(
    run: RunPaths, experiment: Experiment, requested: Experiment | None, machine: dict[str, Any]
) -> None:
    """Write DeepSpeed's configuration, the description of the machine and, unless they are recorded, the settings."""
    if requested is not None:
        write_experiment(run, experiment, requested)
    records.write_json(run.deepspeed, deepspeed_config(experiment))
    records.write_json(run.environment, machine)


def write_experiment(
    run: RunPaths,
    experiment: Experiment,
    requested: Experiment | None = None,
    planned: Mapping[str, Any] | None = None,
) -> None:
    """Write `experiment.json`: settings, names, digests of input files, and the requested values of resolved settings.

    Parameters
    ----------
    planned
        What a sweep decided for the run (`PLANNED`); by default as the sweep wrote it before.
    """
    requested = requested or experiment
    if planned is None:
        before = records.read_json(run.experiment) or {}
        planned = {name: before.get(name) for name in PLANNED}
    settings, given = experiment.model_dump(), requested.model_dump()
    resolved = {name: given[name] for name in settings if settings[name] != given[name]}
    names = {"name": requested.name, "model_name": model_shapes.slug(requested.model)}
    further = {name: value for name, value in planned.items() if value is not None}
    further |= {"inputs": files} if (files := inputs.digests(settings)) else {}
    further |= {"asked": resolved} if resolved else {}
    records.write_json(run.experiment, {**settings, **names, **further})


def check_free_space(folder: Path) -> None:
    """Check that the records of a run fit on the disk.

    Raises
    ------
    LaunchError
        If less than `MIN_FREE_BYTES` are free.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if (free := shutil.disk_usage(existing).free) < MIN_FREE_BYTES:
        raise LaunchError(f"{folder}: the disk is full ({free // 2**20} MiB free); free 64 MiB and start again")


def remove_leftovers(run: RunPaths) -> None:
    """Remove the files of an unfinished run, except the notebook, which may be executing."""
    written = (run.steps, run.gpu, run.console, run.worker, run.failures, run.result, run.nodes)
    for path in (*written, run.profile, run.trace, run.flops):
        path.unlink(missing_ok=True)
