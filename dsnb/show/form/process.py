"""A sweep in a separate process that ends with the process that started it.

`python -m dsnb.show.form.process PARENT WORD...` is the `dsnb` command, killed when PARENT ends: a
kernel that is shut down or crashes ends its sweep, too. SIGINT stops the sweep at any time, without
a traceback, and even if the kernel ignores SIGINT because it was started in the background.
"""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from dsnb.base.files import plain_text
from dsnb.base.system import interpreter, signals
from dsnb.settings.records.result import last_lines

MAX_LINES = 500
STOPPED = "Stopped: finished runs are kept, start it again to go on."
ENDS = {
    0: "Finished: every run is ok.",
    3: "Finished, but not every run is ok: the report says why.",
    signals.INTERRUPTED: STOPPED,
    -signal.SIGINT: STOPPED,
}
"""Exit code of `dsnb sweep` -> its meaning. If CPython is interrupted within `exec`, it ends by
SIGINT."""


class SweepProcess:
    """A running `dsnb sweep` with these arguments."""

    is_stopping = False

    def __init__(self, *words: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="dsnb-")  # noqa: SIM115 -- deleted with this object
        mask = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT}
        )  # until the child can react to it
        try:
            self._process = subprocess.Popen(
                interpreter.command(
                    "-m", "dsnb.show.form.process", str(os.getpid()), "sweep", *words
                ),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # interrupting the kernel does not reach it
                # A Jupyter kernel requests colours from the programs that it starts.
                env={
                    **os.environ,
                    "NO_COLOR": "1",
                    "FORCE_COLOR": "",
                    "TTY_COMPATIBLE": "0",
                    "COLUMNS": "160",
                },
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid = self._process.pid

    @property
    def lines(self) -> list[str]:
        """The last lines of its output."""
        return [plain_text.line(line) for line in last_lines(Path(self._log.name), MAX_LINES)]

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def end(self) -> str:
        """How it ended, in one sentence; empty while it runs."""
        if self.code is None:
            return ""
        how = signals.killed_by(-self.code) if self.code < 0 else f"exit code {self.code}"
        return ENDS.get(self.code, f"The sweep failed, {how}: its last lines are below.")

    def stop(self) -> None:
        """Interrupt it once, as Ctrl-C does: its runs are stopped, finished ones are kept."""
        if self.code is None and not self.is_stopping:
            self.is_stopping = True
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait until it has ended."""
        self._process.wait()


def main() -> None:
    """Run the `dsnb` command in this process."""
    signals.die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["dsnb", *sys.argv[2:]]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        runpy.run_module("dsnb", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(signals.INTERRUPTED)


if __name__ == "__main__":
    main()
