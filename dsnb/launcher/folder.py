"""A run's folder before the launch: a new one, what is known already, and room on the disk."""

import os
import shutil
from pathlib import Path
from typing import Any, Self

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher import environment
from dsnb.launcher.config import deepspeed_config
from dsnb.run_folder import finished, paths
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment

MIN_FREE_BYTES = 64 * 2**20


def create_single_run_dir(experiment: Experiment) -> Path:
    """Make the next free folder of a run outside sweeps."""
    return create_run_dir(paths.SweepPaths(paths.outputs_root() / "single"), experiment.name_with_model)


def create_run_dir(sweep: paths.SweepPaths, experiment: str) -> Path:
    """Make the next free folder of an experiment in a sweep, which nobody else can then get."""
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


def prepare(run: RunPaths, experiment: Experiment, asked: Experiment | None = None) -> None:
    """Make the run folder and write everything that is known before the launch.

    Where settings were found, as with `micro_batch_size: auto`, those that were asked for are kept beside them.

    Raises
    ------
    SettingsError
        If a finished run lies there.
    LaunchError
        If the folder cannot be written or the disk is full.
    """
    before = records.read_json(run.result)
    if before and before.get("status") in finished.ENDED and not finished.trouble(run):
        raise SettingsError(f"run_dir is {str(run.dir)!r}: it holds a finished run; name another folder")
    try:
        run.dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(run)
        check_free_space(run.dir)
        describe(run, experiment, asked or experiment, environment.describe())
        run.console.touch()
    except OSError as error:
        raise LaunchError(f"{run.dir} cannot be written: {error.strerror}; choose another folder") from error


def describe(run: RunPaths, experiment: Experiment, asked: Experiment, machine: dict[str, Any]) -> None:
    """Write down the settings, what DeepSpeed is told, and what the machine is."""
    records.write_json(run.experiment, described(experiment, asked))
    records.write_json(run.deepspeed, deepspeed_config(experiment))
    records.write_json(run.environment, machine)


def described(experiment: Experiment, asked: Experiment) -> dict[str, Any]:
    """Return the content of `experiment.json`."""
    settings, before = experiment.model_dump(), asked.model_dump()
    found = {name: before[name] for name in settings if settings[name] != before[name]}
    return {**settings, "name": asked.name, **({"asked": found} if found else {})}


def check_free_space(folder: Path) -> None:
    """Make sure that a run's records will fit on the disk.

    Raises
    ------
    LaunchError
        If they might not.
    """
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if (free := shutil.disk_usage(existing).free) < MIN_FREE_BYTES:
        raise LaunchError(f"{folder}: the disk is full ({free // 2**20} MiB free); make 64 MiB of room and start again")


class FolderGuard:
    """A folder as it was at the start: it may be removed meanwhile, and another one made under its name.

    It is kept open, for a file system gives the number of a folder that is gone to the next one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def check(self) -> None:
        """Make sure that it is still the same folder.

        Raises
        ------
        LaunchError
            If it is not.
        """
        try:
            same = os.path.samestat(os.stat(self.folder), os.fstat(self._handle))
        except OSError:
            same = False
        if not same:
            raise LaunchError(
                f"{self.folder} was removed or replaced while the run went on: nothing more is written there; "
                "start the sweep again"
            )


def remove_leftovers(run: RunPaths) -> None:
    """Remove what an unfinished run left; the notebook stays, it may be the one being executed."""
    written = (run.steps, run.gpu, run.console, run.worker, run.failures, run.result, run.nodes)
    for path in (*written, run.profile, run.trace, run.flops):
        path.unlink(missing_ok=True)
