"""Speaks with Slurm through its commands, and reads what they print.

Slurm forgets a job some minutes after its end, unless it keeps accounts: what is asked here is first the queue, then
the controller, then the accounts.
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
"""States that a job does not leave; every other one, known or not, is waited for."""
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
SILENT = re.compile(
    r"Unable to contact|timed out|Zero Bytes|[Cc]onnection refused|connect failure|[Tt]emporarily unable|"
    r"Resource temporarily unavailable",
)
"""What `sbatch` says when it may have reached nobody."""
FULL = re.compile(r"Submit ?Job|submit limit|MaxJobCount")
"""What it says when there are too many jobs, or when this one alone is too much."""
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
    """The script that was submitted; empty where Slurm does not tell."""
    exit_code: int = 0
    signal: int = 0
    time_limit: str = ""
    by_user: str = ""
    """Who cancelled it."""

    @property
    def ended(self) -> bool:
        """Say whether nothing of it goes on."""
        return self.state in ENDED


class SubmitError(Exception):
    """`sbatch` did not take a job."""

    def __init__(self, message: str) -> None:
        self.silent, self.full = bool(SILENT.search(message)), bool(FULL.search(message))
        super().__init__(message)


def ask(words: Sequence[str], env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run one of Slurm's commands; give its exit code, output and error output.

    Raises
    ------
    SettingsError
        If it is not installed.
    """
    try:
        # In a session of its own: Ctrl-C is for the sweep, which then cancels what it submitted.
        done = subprocess.run(
            words, env=env, capture_output=True, timeout=TIMEOUT_S, check=False, start_new_session=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise SettingsError(
            f"{words[0]} is not found: --slurm needs Slurm's commands; start it on a login node of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        return 1, "", f"{words[0]}: timed out after {TIMEOUT_S:.0f} s"
    return done.returncode, done.stdout, done.stderr


def submit(script: Path, env: dict[str, str]) -> str:
    """Submit a script; give the job's id.

    Raises
    ------
    SubmitError
        With what `sbatch` says.
    """
    code, out, error = ask(["sbatch", "--parsable", str(script)], env)
    number = out.strip().partition(";")[0]
    if code or not number.isdecimal():
        raise SubmitError(said(error) or f"it gave {out.strip()[:80]!r} for a job's id")
    return number


def said(error: str) -> str:
    """Give the sentence of an error output: the last one that is an error."""
    rows = [row.strip() for row in error.splitlines() if row.strip()]
    told = [row.partition("error: ")[2] for row in rows if "error: " in row] or rows[:1]
    return (told or [""])[-1].partition("submission failed: ")[2] or (told or [""])[-1]


class Queue:
    """The jobs of some names, asked for at most every `poll_s` seconds."""

    def __init__(self, poll_s: float) -> None:
        self.poll_s = poll_s
        self.names: set[str] = set()
        self.answer: dict[str, Record] | None = None
        """By id; None while Slurm does not answer."""
        self.trouble = ""
        self.asked_at = -1e9

    def look(self, anew: bool = False) -> dict[str, Record] | None:
        """Give the answer, a fresh one if the last is too old."""
        if anew or time.monotonic() > self.asked_at + self.poll_s:
            code, out, error = ask([*_squeue(sorted(self.names))])
            self.answer, self.trouble = (None, said(error)) if code else (parse_queue(out), "")
            self.asked_at = time.monotonic()
        return self.answer

    def expect(self, job: str, name: str) -> None:
        """Take a job that was just submitted into the answer: the last one is older than it."""
        self.names.add(name)
        if self.answer is not None:
            self.answer[job] = Record(job, name, "PENDING")


def _squeue(names: Sequence[str]) -> Sequence[str]:
    return ["squeue", "--noheader", "--states=all", f"--name={','.join(names)}", f"--format={QUEUE_FORMAT}"]


def parse_queue(text: str) -> dict[str, Record]:
    """Read `squeue --format=%i|%j|%T|%r|%N|%o`; the last part may hold anything."""
    found = {}
    for row in text.splitlines():
        job, name, state, reason, nodes, command = [*row.split("|", 5), *[""] * 5][:6]
        if name:
            found[job] = Record(job, name, state, reason, nodes, command)
    return found


def details(job: str) -> Record | None:
    """Give what the controller or else the accounts say of a job; None if neither knows it."""
    code, out, _ = ask(["scontrol", "--oneliner", "show", "job", job])
    if not code and (found := parse_job(out)):
        return found
    fields = "JobIDRaw,JobName,State,ExitCode,NodeList,Timelimit"
    code, out, _ = ask(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", f"--format={fields}"])
    return None if code else parse_accounting(out)


def parse_job(text: str) -> Record | None:
    """Read `scontrol --oneliner show job`."""
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", text))
    if "JobId" not in fields:
        return None
    # A path may hold blanks, so it ends where the next field begins.
    command = re.search(r"\sCommand=(.*?) WorkDir=", text)
    code, number = _exit(fields.get("ExitCode", ""))
    reason, nodes = (fields.get(name, "").replace("(null)", "") for name in ("Reason", "NodeList"))
    return Record(
        fields["JobId"], fields.get("JobName", ""), fields.get("JobState", ""), reason, nodes,
        command[1] if command else "", code, number, fields.get("TimeLimit", ""),
    )  # fmt: skip


def parse_accounting(text: str) -> Record | None:
    """Read `sacct --parsable2`, of which the last row is the last start of the job."""
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
    """Give those of a job's nodes that Slurm has given up, each with the reason."""
    if not nodes:
        return []
    code, out, _ = ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E"])
    rows = [row.split("|", 2) for row in out.splitlines() if row.count("|") >= 2] if not code else []
    return list(dict.fromkeys(f"{row[0]} ({row[2]})" for row in rows if re.match(r"down|fail|drain", row[1])))


def cancel(names: Collection[str]) -> None:
    """Cancel all jobs of these names, which are this user's."""
    for name in sorted(names):
        ask(["scancel", f"--user={os.geteuid()}", f"--name={name}"])
