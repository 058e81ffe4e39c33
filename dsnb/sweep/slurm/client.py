"""Calls Slurm's commands and parses their output.

Slurm forgets a job some minutes after its end unless accounting is on, so a job is looked up in the queue first, then
with the controller, then in the accounting database.
"""

import os
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsnb.errors import SettingsError

TIMEOUT_S = 60.0
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
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
NO_ANSWER = re.compile(
    r"Unable to contact|timed out|Zero Bytes|[Cc]onnection refused|connect failure|[Tt]emporarily unable|"
    r"Resource temporarily unavailable",
)
"""Errors of `sbatch` after which it is not known whether the job was accepted."""
TOO_MANY_JOBS = re.compile(r"Submit ?Job|submit limit|MaxJobCount")
"""Errors of `sbatch` about limits on the number of jobs."""
QUEUE_FORMAT = "%i|%j|%T|%r|%N|%o"


@dataclass(frozen=True)
class Record:
    """What Slurm knows of a job."""

    id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    command: str = ""
    """The script that was submitted; empty if unknown."""
    exit_code: int = 0
    signal: int = 0
    time_limit: str = ""
    by_user: str = ""
    """The user who cancelled it."""

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED


class SubmitError(Exception):
    """`sbatch` rejected a job."""

    def __init__(self, message: str) -> None:
        self.unanswered, self.too_many_jobs = bool(NO_ANSWER.search(message)), bool(TOO_MANY_JOBS.search(message))
        super().__init__(message)


def run_command(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run one of Slurm's commands; return its exit code, output and error output.

    Raises
    ------
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
        return 1, "", f"{command[0]}: timed out after {TIMEOUT_S:.0f} s"
    return done.returncode, done.stdout, done.stderr


def submit(script: Path, env: dict[str, str]) -> str:
    """Submit a script and return the id of the job.

    Raises
    ------
    SubmitError
        With the error of `sbatch`.
    """
    code, out, error = run_command(["sbatch", "--parsable", str(script)], env)
    number = out.strip().partition(";")[0]
    if code or not number.isdecimal():
        raise SubmitError(error_sentence(error) or f"sbatch printed {out.strip()[:80]!r} instead of a job id")
    return number


def error_sentence(error: str) -> str:
    """Return the last error in an error output, without its prefix."""
    rows = [row.strip() for row in error.splitlines() if row.strip()]
    messages = [row.partition("error: ")[2] for row in rows if "error: " in row] or rows[:1]
    return (messages or [""])[-1].partition("submission failed: ")[2] or (messages or [""])[-1]


class Queue:
    """The jobs of some names, polled at most every `poll_s` seconds."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self.names: set[str] = set()
        self.answer: dict[str, Record] | None = None
        """By id; None while Slurm does not answer."""
        self.error = ""
        self.polled_at = -1e9

    def poll(self, anew: bool = False) -> dict[str, Record] | None:
        """Return the queue, polled again if the last answer is too old."""
        if anew or time.monotonic() > self.polled_at + self.poll_s:
            code, out, error = run_command([*_squeue(sorted(self.names))])
            self.answer, self.error = (None, error_sentence(error)) if code else (parse_queue(out), "")
            self.polled_at = time.monotonic()
        return self.answer

    def add(self, job: str, name: str) -> None:
        """Add a job that was just submitted to the last answer, which is older."""
        self.names.add(name)
        if self.answer is not None:
            self.answer[job] = Record(job, name, "PENDING")


def _squeue(names: Sequence[str]) -> Sequence[str]:
    return ["squeue", "--noheader", "--states=all", f"--name={','.join(names)}", f"--format={QUEUE_FORMAT}"]


def parse_queue(text: str) -> dict[str, Record]:
    """Parse `squeue --format=%i|%j|%T|%r|%N|%o`; the last part may be any text."""
    found = {}
    for row in text.splitlines():
        job, name, state, reason, nodes, command = [*row.split("|", 5), *[""] * 5][:6]
        if name:
            found[job] = Record(job, name, state, reason, nodes, command)
    return found


def details(job: str) -> Record | None:
    """Return the record of a job from the controller or the accounting database; None if neither has it."""
    code, out, _ = run_command(["scontrol", "--oneliner", "show", "job", job])
    if not code and (found := parse_job(out)):
        return found
    fields = "JobIDRaw,JobName,State,ExitCode,NodeList,Timelimit"
    code, out, _ = run_command(
        ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={fields}"]
    )
    return None if code else parse_accounting(out)


def parse_job(text: str) -> Record | None:
    """Parse `scontrol --oneliner show job`."""
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", text))
    if "JobId" not in fields:
        return None
    # A path may contain spaces, so it ends where the next field begins.
    command = re.search(r"\sCommand=(.*?) WorkDir=", text)
    code, number = _exit(fields.get("ExitCode", ""))
    reason, nodes = (fields.get(name, "").replace("(null)", "") for name in ("Reason", "NodeList"))
    return Record(
        fields["JobId"], fields.get("JobName", ""), fields.get("JobState", ""), reason, nodes,
        command[1] if command else "", code, number, fields.get("TimeLimit", ""),
    )  # fmt: skip


def parse_accounting(text: str) -> Record | None:
    """Parse `sacct --parsable2`; the last row is the last start of the job."""
    rows = [row.split("|") for row in text.splitlines()]
    rows = [row for row in rows if len(row) == 6]
    if not rows:
        return None
    job, name, state, exits, nodes, limit = rows[-1]
    state, _, user = state.partition(" by ")
    code, number = _exit(exits)
    return Record(job, name, state.split(" ")[0], "", nodes.replace("None assigned", ""), "", code, number, limit, user)


def _exit(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def failed_nodes(nodes: str) -> list[str]:
    """Return those nodes of a job that are down, failed or drained, each with the reason."""
    if not nodes:
        return []
    code, out, _ = run_command(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E"])
    rows = [row.split("|", 2) for row in out.splitlines() if row.count("|") >= 2] if not code else []
    return list(dict.fromkeys(f"{row[0]} ({row[2]})" for row in rows if re.match(r"down|fail|drain", row[1])))


def cancel(names: Collection[str]) -> None:
    """Cancel all jobs of this user that have one of these names."""
    for name in sorted(names):
        run_command(["scancel", f"--user={os.geteuid()}", f"--name={name}"])
