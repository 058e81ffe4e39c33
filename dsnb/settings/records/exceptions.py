"""How programs say in their output why they end: lines of exceptions, of arguments, and of torchrun about its ranks."""

import re
from collections.abc import Iterable

EXCEPTION = (
    r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|OutOfResources)(?:: .*|\s*$))"
)
"""The last line of a traceback, maybe behind the name of a rank."""
OF_OTHERS = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|DistBackendError"
    r"|Connection (?:closed|reset) by peer|SystemExit"
)
"""Exceptions that report the end of another process."""
_OF_ARGUMENTS = re.compile(r"(?:^|\s)(\S+: (?:error: |can't open file ).*)")
"""How argparse refuses arguments, and Python a script that does not exist."""
_STOPPED = re.compile(r"SignalException: Process \d+ got signal: (\d{1,2})\b")
_ROOT_CAUSE = "Root Cause"
_RANK = re.compile(r"\brank {0,9}: (\d{1,6}) \(local_rank")
_EXIT_CODE = re.compile(r"\bexitcode {0,4}: (-?\d{1,5})\b")


def last_said(lines: Iterable[str]) -> str | None:
    """Return the last line that says why a program ended, and not that another one did; None if there is none."""
    said = None
    for line in lines:
        found = re.search(EXCEPTION, line) or _OF_ARGUMENTS.search(line)
        if found and not OF_OTHERS.search(line):
            said = found[1].strip()
    return said


def stopped_by(lines: Iterable[str]) -> int | None:
    """Return the signal by which torchrun was stopped; None if it was not."""
    for line in lines:
        found = _STOPPED.search(line)
        if found:
            return int(found[1])
    return None


def exit_codes(lines: Iterable[str]) -> dict[int, int]:
    """Return the exit codes of the ranks that failed, as torchrun prints them; the root cause is first."""
    codes: dict[int, int] = {}
    others: dict[int, int] = {}
    rank = None
    for line in lines:
        if _ROOT_CAUSE in line:
            others = codes
            codes = {}
        found = _RANK.search(line)
        if found:
            rank = int(found[1])
        found = _EXIT_CODE.search(line)
        if found and rank is not None:
            codes[rank] = int(found[1])
            rank = None
    return {**codes, **others}
