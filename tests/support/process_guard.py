"""Records every process that this one starts, so that a test that must not start any can be failed."""

import sys

EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
started: list[str] = []
"""What was started since this list was last cleared."""


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS:
        started.append(f"{event}{arguments[:2]}")


sys.addaudithook(_record)
