"""How far a running sweep is: runs that have ended, and the step of the one that is running."""

from pathlib import Path

from dsnb.files import records
from dsnb.files.records import Tail
from dsnb.launcher.progress import phase
from dsnb.run_folder import finished, record_schema
from dsnb.sweep.params import Run, Sweep


class Following:
    """Reads the folders of a sweep's runs; each look reads what is new."""

    def __init__(self, sweep: Sweep) -> None:
        self._left = list(sweep.runs)
        self.folder, self.total = sweep.paths.dir, len(sweep.runs)
        self._tails: dict[Path, Tail] = {}
        self._last: dict[Path, int] = {}

    @property
    def ended(self) -> int:
        """Runs that have ended by themselves, earlier ones included."""
        return self.total - len(self._left)

    def look(self) -> str:
        """Return how far the sweep is, in words."""
        self._left = [run for run in self._left if not _has_ended(run)]
        running = next((run for run in self._left if run.paths.experiment.exists()), None)
        said = f"{self.ended} of {self.total} runs"
        return f"{said}, {self._step(running)}" if running else said

    def _step(self, run: Run) -> str:
        path = run.paths.steps
        for step in record_schema.steps(self._tails.setdefault(path, Tail(path))):
            self._last[path] = step["step"]
        total = run.experiment.warmup_steps + run.experiment.steps
        last = self._last.get(path)
        doing = phase(run.experiment, run.paths) if last is None else f"step {last} of {total}"
        return f"{run.name}, run {run.repeat}: {doing}"


def _has_ended(run: Run) -> bool:
    record = records.read_json(run.paths.result) if run.paths.result.exists() else None
    return record is not None and record.get("status") in finished.ENDED
