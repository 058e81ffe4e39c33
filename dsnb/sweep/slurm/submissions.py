"""The record of a submitted Slurm job, `slurm.json`, by which a later call finds the job of a run or a sweep again.

It is written before the job is waited for. Slurm reuses job ids, so a job is identified by its name as well, which
holds a random token.
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
    """Return the name for all jobs of one call."""
    return f"dsnb-{sweep}-{secrets.token_hex(4)}"


def submit(name: str, paths: RunPaths | SweepPaths, options: dict[str, str], command: list[str]) -> str:
    """Submit a job that runs `command` and return its id; the record is written before and completed afterwards.

    Raises
    ------
    SubmitError
        If Slurm rejects it.
    """
    script: Path = paths.job_script.absolute()
    submission = {"name": name, "job": None, "submitted_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    submission |= {"state": "submitting", "script": str(script)}
    records.write_text(script, allocation.script(name, paths.job_log.absolute(), options, command))
    write_submission(paths.slurm, submission)
    job_id = client.submit(script, allocation.environment(options))
    write_submission(paths.slurm, {**submission, "job": job_id, "state": "submitted"})
    return job_id


def read_submission(path: Path) -> dict[str, Any] | None:
    """Read the record of a submitted job; None if there is none, or if it is not a valid one."""
    submission = record_schema.read(path)
    if not submission or not isinstance(submission.get("name"), str) or not allocation.is_name(submission["name"]):
        return None
    job_id = submission.get("job")
    return {**submission, "job": job_id if isinstance(job_id, str) and job_id.isdecimal() else None}


def write_submission(path: Path, submission: dict[str, Any]) -> None:
    """Write the record of a submitted job."""
    records.write_json(path, submission)


def find_job(queue: dict[str, Record], submission: dict[str, Any]) -> Record | None:
    """Return a submitted job's entry in the queue, found by its id, or by its script if there is no id yet."""
    if job_id := submission.get("job"):
        record = queue.get(job_id)
        return record if record and record.name == submission["name"] else None
    same = [one for one in queue.values() if one.name == submission["name"] and one.command == submission.get("script")]
    return same[-1] if same else None


def running_jobs(runs: Iterable[Run]) -> list[str]:
    """Return the runs with the Slurm jobs that still execute them, in words; empty on a machine without Slurm."""
    submitted = [(run, submission) for run in runs if (submission := read_submission(run.paths.slurm))]
    submitted = [(run, submission) for run, submission in submitted if submission.get("state") not in client.ENDED]
    queue = Queue(0.0)
    queue.names = {submission["name"] for _, submission in submitted}
    try:
        answer = queue.poll() if submitted else None
    except SettingsError:
        return []
    found = [(run, find_job(answer or {}, submission)) for run, submission in submitted]
    return [f"{run.paths.dir} by job {one.id}" for run, one in found if one and not one.ended]


def job_record(job_id: str, name: str) -> Record | None:
    """Return what Slurm knows of a job; None if the id belongs to another job by now."""
    record = client.details(job_id)
    return record if record and record.name == name else None
