"""The record of one run: the files in its folder, each read once, and whether they are complete and valid."""

from functools import cached_property
from pathlib import Path
from typing import Any

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.settings import programs
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records import agreement, record_schema
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.columns import ENDED
from dsnb.settings.records.paths import RunPaths

_RUN = RunPaths(Path())


def _valid(name: str) -> Any:
    """Return a property: the valid part of settings, environment or result."""

    def read(record: "RunRecord") -> dict[str, Any]:
        file = getattr(record.paths, name).name
        return record_schema.cleaned(file, record.as_written[file])[0]

    return cached_property(read)


def _object(name: str) -> Any:
    """Return a property: one of the other `.json` files; invalid values are left out with a warning."""
    return cached_property(lambda record: record_schema.read(getattr(record.paths, name)) or {})


def _lines(name: str) -> Any:
    """Return a property: the objects in a `.jsonl` file; invalid values are left out with a warning."""
    return cached_property(lambda record: record_schema.read_lines(getattr(record.paths, name)))


class RunRecord:
    """What the files in a run's folder say; a missing file is empty, and invalid values are left out.

    A file is read when it is first asked for: make a new record once processes have written more.
    """

    settings = _valid("experiment")
    environment = _valid("environment")
    result = _valid("result")
    worker = _object("worker")
    """What rank 0 measured; empty if the run did not reach its end."""
    profile = _object("profile")
    job = _object("slurm")
    """The Slurm job that was last submitted for the run."""
    steps = _lines("steps")
    samples = _lines("gpu")
    failures = _lines("failures")
    """What ranks raised, the first one first."""

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths

    @cached_property
    def as_written(self) -> dict[str, dict[str, Any]]:
        """Settings, environment and result by file name, under current names but not validated."""
        files = (self.paths.experiment, self.paths.environment, self.paths.result)
        return {
            path.name: record_schema.current(path.name, json_files.read_json(path) or {})
            for path in files
        }

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of the run (`Experiment.recorded`)."""
        written = self.as_written[self.paths.experiment.name]
        unknown = [name for name in DEFAULTS if name in written and written[name] is None]
        return Experiment.recorded({**self.settings, **dict.fromkeys(unknown)})

    @cached_property
    def timed_steps(self) -> list[dict[str, Any]]:
        """The steps after the warm-up."""
        return [step for step in self.steps if step.get("phase") == "timed"]

    @property
    def is_bandwidth_test(self) -> bool:
        """Whether the folder is that of a test of the links, which trains nothing."""
        return self.paths.bandwidth_plan.exists()

    @property
    def is_standalone(self) -> bool:
        """Whether a script of a user was recorded, which dsnb cannot repeat."""
        return programs.is_standalone(self.settings)

    @property
    def expected_steps(self) -> int | None:
        """Timed steps that the settings ask for; None for a script that is recorded until it ends."""
        if self.is_bandwidth_test:
            return 0
        return self.experiment.steps

    @property
    def has_all_steps(self) -> bool:
        """Whether every timed step is recorded; any, if their number was open."""
        if self.expected_steps is None:
            return len(self.timed_steps) > 0
        return len(self.timed_steps) == self.expected_steps

    @property
    def status(self) -> str | None:
        """How the run ended; `interrupted` without a result, None if that is invalid."""
        if not self.paths.result.exists():
            return "interrupted"
        status: str | None = self.result.get("status")
        return status

    def invalid(self, file: str) -> str | None:
        """Return a sentence about the first invalid value of the settings, the environment or the result."""
        return record_schema.wrong_values(file, self.as_written[file])[1]

    def unfinished(self) -> str | None:
        """Return why an ended run has to be executed again; None if its record is complete."""
        problem = next(filter(None, map(self.invalid, self.as_written)), None)
        if problem:
            return problem
        settings, environment, result = self.as_written.values()
        missing = missing_record(settings, environment, result, self.paths.steps.is_file())
        if missing or result["status"] != "ok":
            return missing
        return agreement.contradiction(settings, result, TimedSteps.of(self.timed_steps))

    def is_finished(self) -> bool:
        """Return whether the run ended and its record is complete."""
        return self.status in ENDED and not self.unfinished()

    def check_repeatable(self) -> None:
        """Raise SettingsError for a folder with the record of a user's script, which a run would replace."""
        if self.is_standalone:
            raise SettingsError(
                f"run_dir is {str(self.paths.dir)!r}: it holds a recorded run of "
                f"{programs.of_record(self.settings)!r}; choose another folder"
            )

    def check_readable(self) -> None:
        """Raise LaunchError if a file exists that cannot be read: the run may be finished, and must not be repeated."""
        run = self.paths
        for path in (run.result, run.experiment, run.environment, run.steps):
            try:
                json_files.read_file(path)
            except (FileNotFoundError, NotADirectoryError, ValueError):
                continue  # missing or damaged: the run is repeated
            except OSError as error:
                raise LaunchError(
                    f"{path} cannot be read ({error.strerror}), and its run may be finished: "
                    "make it readable, or choose another folder"
                ) from error


def missing_record(
    settings: dict[str, Any] | None,
    environment: dict[str, Any] | None,
    result: dict[str, Any] | None,
    has_steps: bool,
) -> str | None:
    """Return what is missing for a run to count as finished; unless `ok`, settings and a status are enough."""
    status = result.get("status") if result else None
    if status is None:
        return "it was cut off before its end"
    if not settings or ("model" not in settings and settings.keys().isdisjoint(DEFAULTS)):
        return f"{_RUN.experiment} is missing or empty"
    if status != "ok":
        return None
    if not environment:
        return f"{_RUN.environment} is missing or empty"
    return None if has_steps else f"{_RUN.steps} is missing"
