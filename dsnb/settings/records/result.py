"""The end of a run: `result.json`, and what to do if the run is not ok."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dsnb.base.errors import LaunchError
from dsnb.base.files import json_files
from dsnb.settings import programs
from dsnb.settings.records import advice
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.records.shortage import Shortage

TAIL_BYTES = 20_000
TAIL_LINES = 15
MAX_LINE = 400
"""Characters of a line of a log that are shown."""


@dataclass(frozen=True, repr=False)
class Result:
    """One finished run: the content of `result.json`."""

    status: str
    cause: str | None
    exit_codes: dict[int, int]
    phases_s: dict[str, float]
    summary: dict[str, Any]
    run_dir: Path

    @classmethod
    def of(cls, record: RunRecord) -> Self | None:
        """Return the result of a run; None if it has no valid status."""
        result = record.result
        if not result.get("status"):
            return None
        codes = {int(rank): code for rank, code in result.get("exit_codes", {}).items()}
        return cls(
            result["status"],
            result.get("cause"),
            codes,
            result.get("phases_s", {}),
            result.get("summary", {}),
            record.paths.dir,
        )

    @property
    def paths(self) -> RunPaths:
        """The files of the run."""
        return RunPaths(self.run_dir)

    def write(self) -> None:
        """Write `result.json`, which marks the run as finished."""
        if not self.run_dir.is_dir():  # a result alone would be a run without settings
            raise LaunchError(f"{self.run_dir} was removed during the run: start the sweep again")
        record = asdict(self)
        del record["run_dir"]
        if self.paths.steps.exists():
            record["steps_bytes"] = self.paths.steps.stat().st_size
        json_files.write_json(self.paths.result, record)

    def __repr__(self) -> str:
        return f"<Result {self.status}: {self.run_dir}>"

    def shortage(self) -> Shortage | None:
        """Return the settings and figures of the memory shortage; None unless the status of a run of dsnb is `oom`."""
        record = RunRecord(self.paths)
        if self.status != "oom" or not programs.is_own(record.settings):
            return None
        return Shortage.of(record, self.summary, self.exit_codes)

    def advice(self) -> list[str]:
        """Return advice for a run that is not ok, one sentence each."""
        shortage = self.shortage()
        if shortage:
            return shortage.advice()
        known = advice.BY_STATUS.get(self.status)
        return [known] if known else []

    def message(self) -> str:
        """Return status and cause with the last lines of the log and advice."""
        log = self.paths.console
        lines = [f"{self.status}: {self.cause}"]
        lines += [f"  | {line}" for line in last_lines(log)]
        lines.append(f"Log: {log}")
        lines += [f"Next: {sentence}" for sentence in self.advice()]
        return "\n".join(lines)

    def raise_for_status(self) -> None:
        """Raise a LaunchError with `message()` unless the run is ok."""
        if self.status != "ok":
            raise LaunchError(self.message(), self.paths.console)


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """Return the last non-blank lines of a log of any size and encoding."""
    end = json_files.read_end(log, TAIL_BYTES) or b""
    lines = end.decode("utf-8", errors="replace").splitlines()
    return [line[:MAX_LINE] for line in lines if line.strip()][-count:]


def last_line(log: Path) -> str:
    """Return the last line of the log of a process that has ended, or that there is none."""
    lines = last_lines(log, 1) or ["it printed nothing"]
    return lines[0]
