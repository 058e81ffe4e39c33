"""Calls Slurm's commands and parses their output."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsnb.errors import SettingsError

TIMEOUT_S = 60.0
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
"""Final states of a job; every other state, known or not, is waited for."""
FORMAT = "%i|%j|%T|%r|%N|%l"
# srun gives its steps one CPU each unless it is told.
PROLOGUE = '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; exec '


class SlurmError(Exception):
    """A command of Slurm failed; the message is the last error that it printed."""


@dataclass(frozen=True)
class Record:
    """What Slurm knows of a job."""

    id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    time_limit: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def running(self) -> bool:
        """Whether the job has begun and not ended."""
        return not self.ended and self.state not in WAITING


def sbatch_command(name: str, log: Path, options: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the command that submits a job; options on the command line precede environment variables."""
    # A requeued job would silently start its run again; the failure of a node has to be reported.
    own = {"job-name": name, "output": str(log).replace("%", "%%"), "open-mode": "truncate", "no-requeue": ""}
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in {**options, **own}.items()]
    return ["sbatch", *words, "--parsable", f"--wrap={PROLOGUE}{shlex.join(command)}"]


def submit(name: str, log: Path, options: Mapping[str, str], command: Sequence[str]) -> str:
    """Submit a job that runs `command` and return its id.

    Raises
    ------
    SlurmError
        If Slurm rejects the job, or does not answer.
    """
    job_id = _output(sbatch_command(name, log, options, command), _environment()).strip().partition(";")[0]
    if not job_id.isdecimal():
        raise SlurmError(f"sbatch printed {job_id[:80]!r} instead of a job id")
    return job_id


def _environment() -> dict[str, str]:
    """Return the environment variables that a job gets, without those of this allocation and its fork servers."""
    keep = {"SLURM_CONF", "SLURM_CLUSTERS"}
    foreign = ("SLURM_", "DSNB_FORK_SERVER")
    return {name: value for name, value in os.environ.items() if name in keep or not name.startswith(foreign)}


def _output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run one of Slurm's commands and return its output.

    Raises
    ------
    SlurmError
        If it fails.
    SettingsError
        If it is not installed.
    """
    try:
        # In a session of its own: Ctrl-C is handled by the sweep, which then cancels its jobs.
        done = subprocess.run(
            command, env=env, capture_output=True, timeout=TIMEOUT_S, check=False, start_new_session=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise SettingsError(
            f"{command[0]} is not found: --slurm needs Slurm's commands; start it on a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: timed out after {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise SlurmError(error_sentence(done.stderr) or f"{command[0]} ended with exit code {done.returncode}")
    return done.stdout


def error_sentence(stderr: str) -> str:
    """Return the last error in what a command of Slurm printed, without its prefix."""
    rows = [row.strip() for row in stderr.splitlines() if row.strip()]
    message = [row.partition("error: ")[2] for row in rows if "error: " in row][-1:] or rows[:1] or [""]
    return message[0].removeprefix("Batch job submission failed: ")


def jobs() -> dict[str, Record]:
    """Return this user's jobs by id, ended ones included as long as Slurm lists them (minutes).

    Raises
    ------
    SlurmError
        If Slurm does not answer.
    """
    user = f"--user={os.geteuid()}"
    return parse_jobs(_output(["squeue", "--noheader", "--states=all", user, f"--format={FORMAT}"]))


def parse_jobs(text: str) -> dict[str, Record]:
    """Parse `squeue --format=%i|%j|%T|%r|%N|%l`; return the jobs by id."""
    rows = [row.split("|") for row in text.splitlines()]
    return {row[0]: Record(*row) for row in rows if len(row) == 6}


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs."""
    try:
        _output(["scancel", *job_ids])
    except SlurmError:
        return  # those that have ended since; whether the others end is seen in the queue
