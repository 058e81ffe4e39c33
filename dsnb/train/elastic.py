"""torchrun in this process, and how the ranks that it started ended."""

import signal
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def run_ranks(arguments: list[str]) -> dict[str, Any]:
    """Run torchrun, and return the exit codes of the ranks that failed first, or its own error; empty if none did."""
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        by_themselves = {
            rank: code for rank, code in codes.items() if code != -signal.SIGTERM
        }  # torchrun ends the rest
        return {"exit_codes": by_themselves or codes}
    except SignalException as error:
        return {"error": f"torchrun was stopped by {error.sigval.name}"}
    return {}
