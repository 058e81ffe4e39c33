"""The real worker, with profilers that fail as `$DSNB_TEST_PROFILE` says, and on rank 0 alone."""

import os
import signal
import time

from dsnb.train import flops, profiling, tracing, worker


def main(run_dir: str) -> int:
    broken = os.environ["DSNB_TEST_PROFILE"]
    profiling.MAX_S = 4.0 if broken == "hang" else profiling.MAX_S
    if os.environ["RANK"] == "0":
        if broken == "profilers":
            tracing._started = fail
            flops.profiler.FlopsProfiler.start_profile = fail
        elif broken == "step":
            profiling.tracing.trace_step = fail
        elif broken == "rank":
            profiling.tracing.trace_step = die
        elif broken == "hang":
            profiling.tracing.trace_step = lambda *_: time.sleep(100)
    return worker.main(run_dir)


def fail(*_):
    raise RuntimeError("no counters on this host\nand more")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
