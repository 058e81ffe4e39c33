"""The real worker, with profilers that fail as `$DSNB_TEST_PROFILE` says, and on rank 0 alone."""

import os
import signal
import time

from dsnb.train import profiling, worker


def main(run_dir: str) -> int:
    broken = os.environ["DSNB_TEST_PROFILE"]
    profiling.MAX_S = 2.0 if broken == "hang" else profiling.MAX_S
    if os.environ["RANK"] == "0":
        profiling.trace_step = {"profilers": fail, "rank": die, "hang": lambda *_: time.sleep(100)}[broken]
    return worker.main(run_dir)


def fail(*_):
    raise RuntimeError("no counters on this host\nand more")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
