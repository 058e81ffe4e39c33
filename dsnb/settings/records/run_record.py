"""The record of one run: the files in its folder, each read once, and whether they are complete and valid."""

from functools import cached_property
from pathlib import Path
from typing import Any

from dsnb.base.errors import LaunchError
from dsnb.base.files import json_files
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records import agreement, record_schema
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.columns import ENDED, PLANNED
from dsnb.settings.records.paths import RunPaths

_RUN = RunPaths(Path())


class RunRecord:
    """What the files in a run's folder say; a missing file is empty, and invalid values are left out.

    A file is read when it is first asked for: make a new record once processes have written more.
    """

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

    def _valid(self, path: Path) -> dict[str, Any]:
        return record_schema.cleaned(path.name, self.as_written[path.name])[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recorded settings; one that is missing here is newer than the run."""
        return self._valid(self.paths.experiment)

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of the run, with defaults for those that its record lacks."""
        return Experiment.recorded(self.settings)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine and its software."""
        return self._valid(self.paths.environment)

    @cached_property
    def result(self) -> dict[str, Any]:
        """How the run ended, with its summary."""
        return self._valid(self.paths.result)

    @cached_property
    def worker(self) -> dict[str, Any]:
        """What rank 0 measured; empty if the run did not reach its end."""
        return record_schema.read(self.paths.worker) or {}

    @cached_property
    def profile(self) -> dict[str, Any]:
        """Times of the parts of a step."""
        return record_schema.read(self.paths.profile) or {}

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """Every optimizer step."""
        return record_schema.read_lines(self.paths.steps)

    @cached_property
    def timed_steps(self) -> list[dict[str, Any]]:
        """The steps after the warm-up."""
        return [step for step in self.steps if step.get("phase") == "timed"]

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """The samples of GPUs."""
        return record_schema.read_lines(self.paths.gpu)

    @cached_property
    def failures(self) -> list[dict[str, Any]]:
        """What ranks raised, the first one first."""
        return record_schema.read_lines(self.paths.failures)

    @property
    def job_name(self) -> str:
        """Name of the Slurm job that was last submitted for the run; empty without one."""
        return (json_files.read_json(self.paths.slurm) or {}).get("name") or ""

    @property
    def is_bandwidth_test(self) -> bool:
        """Whether the folder is that of a test of the links, which trains nothing."""
        return self.paths.bandwidth_plan.exists()

    @property
    def expected_steps(self) -> int:
        """Timed steps that the settings ask for."""
        return 0 if self.is_bandwidth_test else self.experiment.steps

    @property
    def has_all_steps(self) -> bool:
        """Whether every timed step is recorded."""
        return len(self.timed_steps) == self.expected_steps

    @property
    def planned(self) -> dict[str, Any]:
        """What the sweep chose for the run."""
        return {name: value for name, value in self.settings.items() if name in PLANNED}

    @property
    def status(self) -> str | None:
        """How the run ended; `interrupted` without a result, None if that is invalid."""
        if not self.as_written[_RUN.result.name]:
            return "interrupted"
        return self.result.get("status")

    def has_setting(self, name: str) -> bool:
        """Return whether a setting is in the record, instead of its former default."""
        return name in self.as_written[_RUN.experiment.name]

    def invalid(self, path: Path) -> str | None:
        """Return a sentence about the first invalid value of settings, environment or result."""
        return record_schema.wrong_values(path.name, self.as_written[path.name])[1]

    def unfinished(self) -> str | None:
        """Return why an ended run has to be executed again; None if its record is complete."""
        for path in (self.paths.experiment, self.paths.environment, self.paths.result):
            if problem := self.invalid(path):
                return problem
        settings, environment, result = self.as_written.values()
        missing = missing_record(settings, environment, result, self.paths.steps.is_file())
        if missing or result["status"] != "ok":
            return missing
        return agreement.contradiction(settings, result, TimedSteps.of(self.timed_steps))

    def is_finished(self) -> bool:
        """Return whether the run ended and its record is complete."""
        return self.status in ENDED and not self.unfinished()

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
