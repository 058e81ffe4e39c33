"""Why a rank failed, in which part of which step, and, out of memory, how much was there and how much was asked for."""

import re
import resource
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import psutil
import torch

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.system.hardware import GIB

LOSS_FUNCTIONS = {"cross_entropy", "fixed_cross_entropy", "ForCausalLMLoss", "_loss"}
"""Functions that compute the loss within a forward pass: those of transformers, torch, and dsnb's pipelines."""
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What an allocation that failed outside of torch's own allocator for GPUs is known by."""
_REQUESTED = re.compile(r"[Tt]ried to allocate (\d+) bytes")


@dataclass
class FailedAllocation:
    """The last allocation that failed on this rank, at the moment when it failed."""

    allocated_gib: float | None = None
    reserved_gib: float | None = None
    requested_gib: float | None = None


@dataclass
class Position:
    """Where a rank is in its work.

    Attributes
    ----------
    phase
        `build`, or the part of a step that was begun last: `forward`, `backward`, `optimizer`, `communication`.
    step
        The step under way, from 1; None while the engine is built.
    failed_allocation
        Filled in when an allocation fails.
    """

    phase: str = "build"
    step: int | None = None
    failed_allocation: FailedAllocation = field(default_factory=FailedAllocation)

    def watch_memory(self, device: torch.device) -> None:
        """Let torch tell of allocations that fail: once the error is caught, what was allocated is freed already."""
        if device.type != "cuda":
            return

        def observe(index: int, requested: int, total: int, free: int) -> None:
            self.failed_allocation.allocated_gib = torch.cuda.memory_allocated(index) / GIB
            self.failed_allocation.reserved_gib = torch.cuda.memory_reserved(index) / GIB
            self.failed_allocation.requested_gib = requested / GIB

        torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]


def record(run: RunPaths, rank: int, position: Position, error: Exception) -> None:
    """Append to the run's failures why this rank ended."""
    text = str(error).strip()
    cause = f"{type(error).__name__}: {text.splitlines()[0][:500] if text else 'no message'}"
    found: dict[str, Any] = {"rank": rank, "status": "failed", "phase": position.phase, "step": position.step}
    if is_out_of_memory(error, text):
        if position.phase == "forward" and _in_loss(error.__traceback__):
            found["phase"] = "loss"
        found |= {"status": "oom", **asdict(_failed_allocation(position, text))}
    records.append_line(run.failures, {**found, "cause": cause})


def is_out_of_memory(error: Exception, text: str) -> bool:
    """Check whether an error says that memory ran out, of the GPU or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(one in text for one in OUT_OF_MEMORY):
        return True
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return limited and "Resource temporarily unavailable" in text  # no room for a thread's stack


def _failed_allocation(position: Position, text: str) -> FailedAllocation:
    """Return what is known of a failed allocation; on a CPU, what the process has, and what the message says."""
    if position.failed_allocation.requested_gib is not None:
        return position.failed_allocation
    if torch.cuda.is_initialized():
        return FailedAllocation(torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB)
    memory, requested = psutil.Process().memory_info(), _REQUESTED.search(text)
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    held = getattr(memory, "data", memory.rss) if limited else memory.rss  # what the limit counts
    return FailedAllocation(held / GIB, None, int(requested[1]) / GIB if requested else None)


def _in_loss(trace: TracebackType | None) -> bool:
    while trace:
        if trace.tb_frame.f_code.co_name in LOSS_FUNCTIONS:
            return True
        trace = trace.tb_next
    return False
