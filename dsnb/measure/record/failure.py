"""Records why a rank failed, in which step and part of it, and how much memory was allocated and requested."""

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from traceback import walk_tb
from types import FrameType
from typing import Any

import psutil
import torch

from dsnb.base.files import json_files
from dsnb.base.system.hardware import GIB
from dsnb.settings.records.paths import RunPaths

LOSS_FUNCTIONS = {"cross_entropy", "causal_loss", "sum_of_losses"}
"""Functions that compute the loss within a forward pass, in torch and dsnb."""
OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of errors from allocations outside of torch's GPU allocator."""

GLOO_TRANSPORT = "gloo/transport"
"""Folder of gloo's source that sends and receives; its errors name their place."""
COLLECTIVES = "torch.distributed.distributed_c10d"
"""Module of torch's collectives."""


@dataclass
class Position:
    """The part of its work that a rank is in."""

    phase: str = "build"
    """Or the last part of a step that began: `forward`, `backward`, `optimizer`,
    `communication`."""
    step: int | None = None
    """From 1; None while the engine is built."""
    failed_allocation: dict[str, float | None] = field(default_factory=dict)
    """`allocated_gib`, `reserved_gib` and `requested_gib` at the last failed allocation on a
    GPU."""

    def watch_memory(self, device: torch.device) -> None:
        """Record memory when a CUDA allocation fails: by the time the error is caught, tensors are freed."""
        if device.type != "cuda":
            return

        def observe(index: int, requested: int, total: int, free: int) -> None:
            allocated = torch.cuda.memory_allocated(index)
            reserved = torch.cuda.memory_reserved(index)
            self.failed_allocation = _memory_gib(allocated, reserved, requested)

        torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]


PARTS = {
    "torch.optim": "optimizer",
    "torch.autograd": "backward",
    "torch.nn.modules.module": "forward",
}
"""Modules of torch -> the part of a step that they run."""


def part_of_step(error: BaseException) -> str | None:
    """Return the part of a step in which an error was raised, by the functions that it passed; None if unknown."""
    for frame in frames(error):
        module = str(frame.f_globals.get("__name__"))
        for name, part in PARTS.items():
            if module.startswith(name):
                return part
    return None


def record(run: RunPaths, rank: int, position: Position, error: Exception) -> None:
    """Append the cause of this rank's failure to the run's failures."""
    row: dict[str, Any] = {
        "rank": rank,
        "status": "failed",
        "phase": position.phase,
        "step": position.step,
        "in_communication": False,
    }
    if _is_out_of_memory(error):
        if position.phase == "forward" and _is_in_loss(error):
            row["phase"] = "loss"
        memory = position.failed_allocation or _failed_allocation(str(error))
        row |= {"status": "oom", **memory}
    else:
        row["in_communication"] = _is_in_communication(error)
    json_files.append_line(run.failures, {**row, "cause": one_line(error)})


def _is_in_communication(error: Exception) -> bool:
    """Return whether ranks were communicating when an error was raised: another rank may be its cause.

    Gloo's errors are plain RuntimeErrors, which a backward pass raises outside of any Python
    function of torch's.
    """
    if isinstance(error, torch.distributed.DistError) or GLOO_TRANSPORT in str(error):
        return True
    modules = (frame.f_globals.get("__name__") for frame in frames(error))
    return isinstance(error, RuntimeError) and COLLECTIVES in modules


def _is_in_loss(error: Exception) -> bool:
    return any(frame.f_code.co_name in LOSS_FUNCTIONS for frame in frames(error))


def frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an error passed."""
    for frame, _ in walk_tb(error.__traceback__):
        yield frame


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if any(sign in text for sign in OUT_OF_MEMORY):
        return True
    # no room for a thread's stack
    return _is_limited() and "Resource temporarily unavailable" in text


def _is_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def _failed_allocation(text: str) -> dict[str, float | None]:
    """Return the memory at a failed allocation that no observer saw; on a CPU, from the process and the message."""
    if torch.cuda.is_initialized():
        peak = torch.cuda.max_memory_allocated()
        return _memory_gib(peak, torch.cuda.max_memory_reserved(), None)
    memory = psutil.Process().memory_info()
    held = memory.rss
    if _is_limited():
        held = getattr(memory, "data", held)  # the part that the limit applies to
    requested = re.search(r"[Tt]ried to allocate (\d+) bytes", text)
    return _memory_gib(held, None, int(requested[1]) if requested else None)


def _memory_gib(
    allocated: int, reserved: int | None, requested: int | None
) -> dict[str, float | None]:
    sizes = {"allocated_gib": allocated, "reserved_gib": reserved, "requested_gib": requested}
    return {name: None if size is None else size / GIB for name, size in sizes.items()}


def one_line(error: Exception) -> str:
    """Return an error as one line of text."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:500]}"
