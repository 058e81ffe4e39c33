"""`python -m dsnb.train.start WORKER RUN_DIR`: one rank under a launcher that starts an interpreter per rank.

It does for such a rank what the fork server does for a forked one: ends it when its owner is gone. DeepSpeed's
launcher, killed with SIGKILL, would leave every rank training.
"""

import importlib
import os
import signal
import sys
import threading
import time

import psutil


def die_with(owner: psutil.Process, poll_s: float = 1.0) -> None:
    """Kill this process once `owner` is gone; `psutil` tells it from a later process with the same number."""
    while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
        time.sleep(poll_s)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the worker named on the command line."""
    worker, run_dir = sys.argv[1:3]
    if owner := os.environ.get("DSNB_OWNER_PID"):
        threading.Thread(target=die_with, args=(psutil.Process(int(owner)),), daemon=True).start()
    return int(importlib.import_module(worker).main(run_dir) or 0)


if __name__ == "__main__":
    sys.exit(main())
