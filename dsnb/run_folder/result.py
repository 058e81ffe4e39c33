"""`result.json`, the record that marks a finished run, and the report about a run that is not ok."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.run_folder.memory_shortage import Shortage
from dsnb.run_folder.paths import RunPaths

TAIL_LINES = 15
ADVICE = {
    "nan": "lower learning_rate, or use precision bf16 or fp32",
    "untrained": "raise learning_rate, or, in fp16, warmup_steps until the loss scale has settled; use bf16 or fp32",
    "failed": "read the log; `dsnb doctor` says what this machine can run",
    "timeout": "raise the limit that it names, or lower steps or grad_accum",
    "interrupted": "start it again; a sweep repeats only its unfinished runs",
}


@dataclass(frozen=True, repr=False)
class Result:
    """One finished run: the content of `result.json`."""

    status: str
    cause: str | None
    exit_codes: dict[int, int]
    phases_s: dict[str, float]
    summary: dict[str, Any]
    run_dir: Path

    def write(self) -> None:
        """Write `result.json`, which marks the run as finished.

        Raises
        ------
        LaunchError
            If the run's folder was removed: a result alone would be a run without settings.
        """
        if not self.run_dir.is_dir():
            raise LaunchError(f"{self.run_dir} was removed during the run: start the sweep again")
        record = asdict(self)
        del record["run_dir"]
        records.write_json(RunPaths(self.run_dir).result, record)

    def __repr__(self) -> str:
        return f"<Result {self.status}: {self.run_dir}>"

    def shortage(self) -> Shortage | None:
        """Return what memory was lacking; None unless the status is `oom`."""
        return Shortage.of(RunPaths(self.run_dir), self.summary, self.exit_codes) if self.status == "oom" else None

    def advice(self) -> list[str]:
        """Return what could be done about a run that is not ok, one sentence each."""
        shortage = self.shortage()
        return shortage.advice() if shortage else [ADVICE[self.status]] if self.status in ADVICE else []

    def message(self) -> str:
        """Return how a run that is not ok ended, with the last lines of the log and advice."""
        log = RunPaths(self.run_dir).console
        lines = [f"{self.status}: {self.cause}", *(f"  | {line}" for line in last_lines(log)), f"Log: {log}"]
        return "\n".join([*lines, *(f"Next: {advice}" for advice in self.advice())])

    def raise_for_status(self) -> None:
        """Do nothing if the run is ok.

        Raises
        ------
        LaunchError
            With `message()`, if it is not.
        """
        if self.status != "ok":
            raise LaunchError(self.message(), RunPaths(self.run_dir).console)


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log of any size and encoding that are not blank."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line[:400] for line in text.splitlines() if line.strip()][-count:]
