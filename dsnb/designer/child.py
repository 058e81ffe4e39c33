"""`python -m dsnb.designer.child PARENT WORD...`: the `dsnb` command, killed when the process that started it ends.

A kernel that is shut down or crashes ends its sweep with it. SIGINT stops the sweep at any time, without a traceback,
and even if the kernel ignores it, as one does that was started in the background.
"""

import runpy
import signal
import sys

from dsnb.system import signals


def main() -> None:
    """Run the command in this process."""
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
