"""Records why a rank failed, in which part of which step, and how much memory was allocated and requested.

What may fail without ending the run is a `BestEffort`: a rank that raised would leave the others in a collective.
"""

import re
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import psutil
import torch

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.system.hardware import GIB

Result = TypeVar("Result")
LOSS_FUNCTIONS = {"cross_entropy", "causal_loss", "sum_of_losses"}
"""Functions that compute the loss within a forward pass, in torch and dsnb."""
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of errors from allocations outside of torch's GPU allocator."""
_REQUESTED = re.compile(r"[Tt]ried to allocate (\d+) bytes")


@dataclass
class FailedAllocation:
    """Memory of this rank at the moment when its last failed allocation was made."""

    allocated_gib: float | None = None
    reserved_gib: float | None = None
    requested_gib: float | None = None


@dataclass
class Position:
    """The part of its work that a rank is in.

    Attributes
    ----------
    phase
        `build`, or the last part of a step that began: `forward`, `backward`, `optimizer`, `communication`.
    step
        Number of the current step, from 1; None while the engine is built.
    failed_allocation
        Set when an allocation fails.
    """

    phase: str = "build"
    step: int | None = None
    failed_allocation: FailedAllocation = field(default_factory=FailedAllocation)

    def watch_memory(self, device: torch.device) -> None:
        """Record memory when a CUDA allocation fails: when the error is caught, tensors are freed already."""
        if device.type != "cuda":
            return

        def observe(index: int, requested: int, total: int, free: int) -> None:
            self.failed_allocation.allocated_gib = torch.cuda.memory_allocated(index) / GIB
            self.failed_allocation.reserved_gib = torch.cuda.memory_reserved(index) / GIB
            self.failed_allocation.requested_gib = requested / GIB

        torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]


def record(run: RunPaths, rank: int, position: Position, error: Exception) -> None:
    """Append the cause of this rank's failure to the run's failures."""
    text = str(error).strip()
    cause = one_line(error)
    found: dict[str, Any] = {"rank": rank, "status": "failed", "phase": position.phase, "step": position.step}
    if is_out_of_memory(error, text):
        if position.phase == "forward" and _in_loss(error.__traceback__):
            found["phase"] = "loss"
        found |= {"status": "oom", **asdict(_failed_allocation(position, text))}
    records.append_line(run.failures, {**found, "cause": cause})


def is_out_of_memory(error: Exception, text: str) -> bool:
    """Return whether an error means that the memory of the GPU or of the host ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(one in text for one in OUT_OF_MEMORY):
        return True
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return limited and "Resource temporarily unavailable" in text  # no room for a thread's stack


def _failed_allocation(position: Position, text: str) -> FailedAllocation:
    """Return what is known of a failed allocation; on a CPU, from the process and the error message."""
    if position.failed_allocation.requested_gib is not None:
        return position.failed_allocation
    if torch.cuda.is_initialized():
        return FailedAllocation(torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB)
    memory, requested = psutil.Process().memory_info(), _REQUESTED.search(text)
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    held = getattr(memory, "data", memory.rss) if limited else memory.rss  # the part that the limit applies to
    return FailedAllocation(held / GIB, None, int(requested[1]) / GIB if requested else None)


def _in_loss(trace: TracebackType | None) -> bool:
    while trace:
        if trace.tb_frame.f_code.co_name in LOSS_FUNCTIONS:
            return True
        trace = trace.tb_next
    return False


class BestEffort:
    """Calls functions until the first one fails; later calls do nothing.

    Attributes
    ----------
    why
        The failure in one line; None if nothing has failed.
    """

    def __init__(self) -> None:
        self.why: str | None = None

    def __call__(self, action: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call `action` and return its result; None if it or an earlier call failed."""
        if self.why is not None:
            return None
        try:
            return action(*arguments)
        except Exception as error:
            self.why = one_line(error)
            return None


def one_line(error: Exception) -> str:
    """Return an error as one line of text."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:500] if text else 'no message'}"
