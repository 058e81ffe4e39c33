"""Creates the run folder, checks the disk, and writes the records that precede the launch."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.measure.launcher import environment
from dsnb.settings import inputs
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import PLANNED
from dsnb.settings.records.paths import RunPaths, SweepPaths
from dsnb.settings.records.run_record import RunRecord

MIN_FREE_BYTES = 64 * 2**20
OTHER_PROGRAM = "own"
"""The program of a `command`, until its script shows another one."""


def create_run_dir(home: Path, experiment: str) -> Path:
    """Create the next free run folder of an experiment; concurrent callers get different ones."""
    repeat = 1
    while True:
        folder = SweepPaths(home).run(experiment, repeat).dir.absolute()
        with writing(folder), contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        repeat += 1


def prepare(run: RunPaths, experiment: Experiment) -> None:
    """Make the folder ready for a launch with these settings; refuse a folder with a finished run.

    Settings that a sweep has written for this launch stay as they are, with the identity of the
    run.
    """
    record = RunRecord(run)
    record.check_readable()
    record.check_repeatable()
    if record.is_finished():
        raise SettingsError(
            f"run_dir is {str(run.dir)!r}: it holds a finished run; choose another folder"
        )
    was_used = run.environment.exists() or run.result.exists()
    with writing(run.dir):
        run.dir.mkdir(parents=True, exist_ok=True)
        check_free_space(run.dir)
        written = json_files.read_json(run.experiment) or {}
        if was_used or not experiment.model_dump().items() <= written.items():
            planned = {name: written[name] for name in PLANNED if name in written}
            files = inputs.digests(experiment)
            if files:
                planned["inputs"] = files
            begin(run, experiment, planned)
        ranks = environment.for_ranks(experiment.device, experiment.gpus, 0.0, experiment.allocator)
        json_files.write_json(run.environment, environment.describe(ranks))
        run.console.touch()


def begin(run: RunPaths, experiment: Experiment, planned: Mapping[str, Any]) -> None:
    """Make a folder that of an unfinished run with a new identity; only its notebook, which may be running, stays.

    `planned` has the values that the sweep chose for the run (`PLANNED`), and the digests of its
    input files.
    """
    clear(run)
    record = {
        **experiment.model_dump(),
        "name": experiment.name,
        "run_id": secrets.token_hex(8),
        **planned,
    }
    if experiment.model is not None:
        record.setdefault("model_name", model_shapes.slug(experiment.model))
    if experiment.command:
        record["program"] = OTHER_PROGRAM
    json_files.write_json(run.experiment, record)


def clear(run: RunPaths) -> None:
    """Remove what an earlier launch has left in a run's folder."""
    of_launch = (run.environment, run.deepspeed, run.console, run.nodes, run.result)
    of_ranks = (run.steps, run.gpu, run.worker, run.failures, run.profile, run.trace)
    of_command = (run.deepspeed_auto, run.accelerate, run.deepspeed_accelerate, run.hosts)
    of_script = (run.observed, run.model)
    for path in (*of_launch, *of_ranks, *of_command, *of_script):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(folder: Path, advice: str = "choose another folder") -> Iterator[None]:
    """Raise LaunchError with advice if the block cannot write to a folder."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{folder} cannot be written: {error.strerror}; {advice}") from error


def existing_part(folder: Path) -> Path:
    """Return a folder or, if it does not exist yet, the nearest one above it that does."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_writable(folder: Path) -> None:
    """Raise LaunchError if a run cannot write its records to this folder, which need not exist yet."""
    existing = existing_part(folder)
    if not existing.is_dir():
        raise LaunchError(
            f"{folder} cannot be written: {existing} is no folder; choose another --output"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise LaunchError(
            f"{folder} cannot be written: {existing} is read-only; choose another --output"
        )


def check_free_space(folder: Path) -> None:
    """Raise LaunchError if the records of a run may not fit on the disk."""
    free = shutil.disk_usage(existing_part(folder)).free
    if free < MIN_FREE_BYTES:
        raise LaunchError(
            f"{folder}: the disk is full ({free // 2**20} MiB free); free 64 MiB and start again"
        )
