"""A program that runs a command and ends all of its processes with it, or with the launcher.

Its standard input is a pipe from the launcher: a line of JSON with the command, and then nothing
until the launcher closes it or dies. It reports in lines of JSON. Whatever the command has started,
in sessions of its own or without a parent, is a descendant of this process and is killed.
"""

from dsnb.base.system import interpreter

if __name__ == "__main__":
    interpreter.drop_current_folder()

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

import psutil

from dsnb.base.system import signals
from dsnb.base.system.processes import kill_family

POLL_S = 0.02
TERMINATE_S = 5.0
"""Time for the command to end its processes by itself, also those on other hosts."""


def main() -> int:
    """Run the command that the launcher sends."""
    request = json.loads(sys.stdin.buffer.readline() or b"null")
    if request is None:
        return 1
    signals.adopt_orphans()
    parent = os.getpid()
    try:
        with open(request["log"], "ab") as log:
            process = subprocess.Popen(
                request["words"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signals.die_with_parent(parent),  # noqa: PLW1509 (no other thread)
            )
    except OSError as error:
        tell({"error": f"{request['words'][0]} cannot be started: {error.strerror}"})
        return 1
    tell({"started": process.pid})
    try:
        wait(process)
    finally:
        kill_family(psutil.Process())
    tell({"exit": process.wait()})
    return 0


def wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the command ends, or terminate it when the launcher's pipe closes."""
    while process.poll() is None:
        if select.select([0], [], [], POLL_S)[0] and not os.read(0, 1024):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_S)
            return


def tell(message: dict[str, Any]) -> None:
    """Send a line to the launcher."""
    with contextlib.suppress(OSError):  # it is gone
        os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
