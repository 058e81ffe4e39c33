"""`result.json`, the record that marks a finished run, and the report about a run that is not ok."""

import html
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.run_folder.paths import RunPaths

TAIL_LINES = 15
ADVICE = {
    "oom": "lower micro_batch_size, raise zero_stage, or turn activation_checkpointing on",
    "nan": "lower learning_rate, or use precision bf16 or fp32",
    "untrained": "raise learning_rate, or, in fp16, warmup_steps until the loss scale has settled; use bf16 or fp32",
    "failed": "read the log; `dsnb doctor` says what this machine can run",
    "timeout": "raise the limit that it names, or lower steps or grad_accum",
    "interrupted": "start the sweep again: only unfinished runs are repeated",
}


@dataclass(frozen=True)
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

    def message(self) -> str:
        """Return how a run that is not ok ended, with the last lines of the log and advice."""
        log = RunPaths(self.run_dir).console
        lines = [f"{self.status}: {self.cause}", *(f"  | {line}" for line in last_lines(log)), f"Log: {log}"]
        return "\n".join([*lines, f"Next: {ADVICE.get(self.status, '')}"])

    def raise_for_status(self) -> None:
        """Do nothing if the run is ok.

        Raises
        ------
        LaunchError
            With `message()`, if it is not.
        """
        if self.status != "ok":
            raise LaunchError(self.message(), RunPaths(self.run_dir).console)

    def _repr_html_(self) -> str:
        shown = {"status": self.status, "cause": self.cause, **self.summary}
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th><td>{html.escape(_short(value))}</td></tr>"
            for key, value in shown.items()
            if value is not None
        )
        return f"<table><caption>{html.escape(self.run_dir.parent.name)}</caption>{rows}</table>{self._links()}"

    def _links(self) -> str:
        """Return links to the files of a profile, relative to its notebook or to the current folder."""
        run = RunPaths(self.run_dir)
        home = self.run_dir if run.notebook.exists() else Path.cwd()
        files = [(run.trace, "trace of one step, for https://ui.perfetto.dev"), (run.flops, "FLOPs by module")]
        links = []
        for path, title in files:
            if path.exists():
                target = os.path.relpath(path, home)
                links.append(f'<a href="{html.escape(quote(target))}">{html.escape(target)}</a> ({title})')
        return f"<p>{', '.join(links)}</p>" if links else ""


def _short(value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log of any size and encoding that are not blank."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line[:400] for line in text.splitlines() if line.strip()][-count:]
