"""Notices that a process ends before its training does: an error, `sys.exit`, SIGTERM, Ctrl-C.

Whatever the script itself does at its end still happens, with the same exit code.
"""

import atexit
import contextlib
import ctypes
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from dsnb.base.system import signals


class Exited(Exception):
    """A process that ended by itself; `code` is that of `sys.exit`, None without it."""

    def __init__(self, text: str, code: object = None) -> None:
        super().__init__(text)
        self.code = code


class Stopped(Exception):
    """A process that was stopped from outside: by a launcher whose other rank has failed, perhaps."""


class ExitWatch:
    """Calls `react` with the error that ends this process, once; `stop` ends the watch."""

    def __init__(self, react: Callable[[BaseException], None]) -> None:
        self._react = react
        self._code: object = None
        self._hook = sys.excepthook
        self._exit = sys.exit
        self._wakeup: int | None = None
        sys.excepthook = self._on_error
        sys.exit = self._on_exit  # type: ignore[assignment]
        atexit.register(self._at_exit)
        if multiprocessing.parent_process() is not None:  # it ends without calling `atexit`
            multiprocessing.util.Finalize(None, self._at_exit, exitpriority=100)
        self._watch_sigterm()
        os.register_at_fork(after_in_child=self._leave_child)
        self._notebook = _notebook()
        if self._notebook:
            self._notebook.events.register("post_run_cell", self._after_cell)

    def stop(self) -> None:
        """Leave everything as it was, unless others have put their own in front of it."""
        self._react = _ignore
        if sys.excepthook == self._on_error:
            sys.excepthook = self._hook
        if sys.exit == self._on_exit:
            sys.exit = self._exit
        atexit.unregister(self._at_exit)
        if self._wakeup is not None and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(self._wakeup)
            self._wakeup = None
        if self._notebook:
            with contextlib.suppress(ValueError):
                self._notebook.events.unregister("post_run_cell", self._after_cell)

    def _leave_child(self) -> None:
        """Leave a forked process, such as one that loads data, to end as it would without dsnb."""
        self._react = _ignore
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._wakeup = None

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._react(error)
        self._hook(kind, error, trace)

    def _on_exit(self, code: object = None) -> None:
        error = sys.exception()
        if code and isinstance(error, Exception):  # `except Exception: sys.exit(1)`
            self._react(error)
        self._code = code
        self._exit(code)  # type: ignore[arg-type]

    def _at_exit(self) -> None:
        code = f" with exit code {self._code}" if isinstance(self._code, int) else ""
        self._react(Exited(f"the script ended{code} before its training did", self._code))

    def _after_cell(self, result: Any) -> None:
        if result.error_in_exec is not None:
            self._react(result.error_in_exec)

    def _watch_sigterm(self) -> None:
        """React to SIGTERM in a thread: the main one may wait for a rank that is gone.

        A signal that the script handles itself is left to it.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        taken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if taken != -1:  # an event loop's, such as that of a notebook's kernel
            signal.set_wakeup_fd(taken)
            os.close(reading)
            os.close(writing)
            return
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._wakeup = writing
        threading.Thread(target=self._wait_for_signals, args=(reading,), daemon=True).start()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Leave the signal to the thread."""

    def _wait_for_signals(self, reading: int) -> None:
        while numbers := os.read(reading, 1):
            is_ours = signal.getsignal(signal.SIGTERM) == self._on_sigterm  # not the script's since
            if numbers[0] == signal.SIGTERM and is_ours:
                self._react(Stopped(signals.killed_by(signal.SIGTERM)))
                ctypes.CDLL(None).signal(
                    signal.SIGTERM, None
                )  # only the main thread may ask Python
                os.kill(os.getpid(), signal.SIGTERM)
        os.close(reading)


def _ignore(error: BaseException) -> None:
    """Do nothing."""


def _notebook() -> Any:
    """Return IPython's shell, which shows errors without `sys.excepthook`; None outside of it."""
    module = sys.modules.get("IPython")
    return module and module.get_ipython()
