"""Which Slurm job makes a run: the note in its folder, written before anybody waits for the job.

A job is the one that a note means if its name is the one written there, which holds a random word, for Slurm uses
numbers again.
"""

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.sweep.params import Run
from dsnb.sweep.slurm import allocation, client
from dsnb.sweep.slurm.client import Queue, Record


def new_job_name(sweep: str) -> str:
    """Name the jobs of one call."""
    return f"dsnb-{sweep}-{secrets.token_hex(4)}"


def submit(name: str, paths: RunPaths | SweepPaths, options: dict[str, str], words: list[str]) -> str:
    """Submit a job that runs `words`; its name stands in the folder before, its number right after.

    Raises
    ------
    SubmitError
        If Slurm does not take it.
    """
    script: Path = paths.job_script.absolute()
    note = {"name": name, "job": None, "submitted_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    note |= {"state": "submitting", "script": str(script)}
    records.write_text(script, allocation.script(name, paths.job_log.absolute(), options, words))
    write_note(paths.slurm, note)
    number = client.submit(script, allocation.environment(options))
    write_note(paths.slurm, {**note, "job": number, "state": "submitted"})
    return number


def submitted(path: Path) -> dict[str, Any] | None:
    """Read which job was submitted; None if none was, or if the file was written by nobody who knows how."""
    note = record_schema.read(path)
    if not note or not isinstance(note.get("name"), str) or not allocation.is_name(note["name"]):
        return None
    number = note.get("job")
    return {**note, "job": number if isinstance(number, str) and number.isdecimal() else None}


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Write which job was submitted."""
    records.write_json(path, note)


def find(answer: dict[str, Record], note: dict[str, Any]) -> Record | None:
    """Find a submitted job in the queue, by its number, or by its script where only that is known."""
    if number := note.get("job"):
        record = answer.get(number)
        return record if record and record.name == note["name"] else None
    same = [one for one in answer.values() if one.name == note["name"] and one.command == note.get("script")]
    return same[-1] if same else None


def running_jobs(runs: Iterable[Run]) -> list[str]:
    """Name the jobs that make runs which are to be made otherwise; empty where there is no Slurm to ask."""
    noted = [(run, note) for run in runs if (note := submitted(run.paths.slurm))]
    noted = [(run, note) for run, note in noted if note.get("state") not in client.ENDED]
    queue = Queue(0.0)
    queue.names = {note["name"] for _, note in noted}
    try:
        answer = queue.look() if noted else None
    except SettingsError:
        return []
    found = [(run, find(answer or {}, note)) for run, note in noted]
    return [f"{run.paths.dir} by job {one.id}" for run, one in found if one and not one.ended]


def job_record(number: str, name: str) -> Record | None:
    """Give what Slurm knows of a job; None if that is another job by now."""
    record = client.details(number)
    return record if record and record.name == name else None
