"""`python -m dsnb.train.start WORKER RUN_DIR`: one rank under torchrun or DeepSpeed's launcher.

Like the fork server, it kills the rank when the process that owns the run ends. Both launchers would leave every rank
training if they are killed with SIGKILL.
"""

import importlib
import os
import signal
import sys
import threading
import time

import psutil


def die_with(owner: psutil.Process, poll_s: float = 1.0) -> None:
    """Kill this process group when `owner` ends; `psutil` detects a reused process ID."""
    while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
        time.sleep(poll_s)
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run the worker named on the command line."""
    worker, run_dir = sys.argv[1:3]
    if owner := os.environ.get("DSNB_OWNER_PID"):
        threading.Thread(target=die_with, args=(psutil.Process(int(owner)),), daemon=True).start()
    return int(importlib.import_module(worker).main(run_dir) or 0)


if __name__ == "__main__":
    sys.exit(main())
