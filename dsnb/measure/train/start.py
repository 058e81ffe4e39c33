"""`python -m dsnb.measure.train.start WORKER RUN_DIR` runs one rank under torchrun; `run_ranks` runs torchrun.

Like the fork server, a rank is killed when the process that owns the run ends: torchrun killed with
SIGKILL would leave every rank training.
"""

import importlib
import os
import signal
import sys
import threading
import time
from typing import Any

import psutil

from dsnb.base.system import interpreter


def die_with(owner: psutil.Process) -> None:
    """Kill this process group when `owner` ends; `psutil` detects a reused process ID."""
    while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def run_ranks(arguments: list[str]) -> dict[str, Any]:
    """Run torchrun, and return the exit codes of the ranks that failed first, or its own error; empty if none did.

    Ranks that torchrun terminates because another one has failed are left out. Those killed by a
    signal come first.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    failed_first: set[int] = set()
    terminate = SubprocessContext.close

    def note_and_terminate(ranks: SubprocessContext, *arguments: Any, **options: Any) -> None:
        failed_first.update(
            failed_first or ranks._failures
        )  # torchrun adds those that it terminates afterwards
        terminate(ranks, *arguments, **options)

    SubprocessContext.close = note_and_terminate  # type: ignore[method-assign, assignment]
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        failures = error.failures.items()
        codes = {
            str(rank): failure.exitcode
            for rank, failure in failures
            if failure.local_rank in failed_first
        }
        return {"exit_codes": dict(sorted(codes.items(), key=lambda of_rank: of_rank[1] >= 0))}
    except SignalException as error:
        return {"error": f"torchrun was stopped by {error.sigval.name}"}
    finally:
        SubprocessContext.close = terminate  # type: ignore[method-assign, assignment]
    return {}


def main() -> int:
    """Run the worker named on the command line."""
    worker, run_dir = sys.argv[1:3]
    if owner := os.environ.get("DSNB_OWNER_PID"):
        threading.Thread(target=die_with, args=(psutil.Process(int(owner)),), daemon=True).start()
    return int(importlib.import_module(worker).main(run_dir) or 0)


if __name__ == "__main__":
    interpreter.end_quickly()
    sys.exit(main())
