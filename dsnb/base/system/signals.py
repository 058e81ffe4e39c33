"""Stop signals: Ctrl-C, SIGTERM and SIGHUP all raise KeyboardInterrupt in the main thread.

Signals that the parent ignores stay ignored: SIGINT in a script's background process, SIGHUP under
`nohup`. SIGTERM always stops the process.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

INTERRUPTED = 130
"""Exit code of a process that was stopped by any of these signals."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's `prctl`."""
_stopping = False


def install_handlers() -> None:
    """Make SIGTERM and SIGHUP stop this process like Ctrl-C; call it in the main thread of dsnb's own processes."""
    signal.signal(signal.SIGTERM, _interrupt_once)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt_once)


def stop_hint() -> str | None:
    """Return how the user can stop this process; None without dsnb's signal handlers."""
    if signal.getsignal(signal.SIGTERM) is not _interrupt_once:
        return None
    keyboard = "Ctrl-C or "
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        keyboard = ""
    return f"stop with {keyboard}`kill {os.getpid()}`; finished runs are kept"


@contextlib.contextmanager
def on_stop(react: Callable[[], None]) -> Iterator[None]:
    """Call `react` at the first signal that would raise KeyboardInterrupt; a second Ctrl-C still raises it.

    Signals that are ignored or have other handlers are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        global _stopping  # noqa: PLW0603
        if requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not requested:
            requested = _stopping = True
            react()

    handlers = {number: signal.getsignal(number) for number in STOPPING}
    ours = {
        number: old
        for number, old in handlers.items()
        if old in {signal.default_int_handler, _interrupt_once}
    }
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in ours.items():
            signal.signal(number, old)


def die_with_parent(parent: int) -> None:
    """Make Linux kill this process when its parent ends, even while suspended; exit if `parent` is gone already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, is gone")


def adopt_orphans() -> None:
    """Make Linux reparent orphaned descendants to this process."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def killed_by(number: int) -> str:
    """Describe a process that was killed by a signal."""
    name = "no name"
    if number in set(signal.Signals):
        name = signal.Signals(number).name
    return f"killed by signal {number} ({name})"


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt once: a closing terminal sends SIGHUP twice, which must not interrupt the cleanup."""
    global _stopping  # noqa: PLW0603
    if not _stopping:
        _stopping = True
        raise KeyboardInterrupt
