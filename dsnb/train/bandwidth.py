"""One rank of an all-reduce bandwidth test by message size, with NCCL on GPUs and gloo on CPUs.

Figures compare to the in-place columns of nccl-tests: a float32 sum, warm-up calls, then as many timed calls as fit
into a time limit, queued back to back. The time of a size is the mean over its calls on the slowest rank (nccl-tests
averages over ranks). A wrong sum on any rank is an error.
"""

import torch
import torch.distributed as dist

from dsnb.files import records
from dsnb.formulas import metrics
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock
from dsnb.train.failure import Position
from dsnb.train.meter import Clock, clock_of
from dsnb.train.worker import rank, run_rank, set_up, versions

ITEM_BYTES = 4
MIN_BYTES = 8
MAX_BYTES = {"cuda": 256 * 2**20, "cpu": 16 * 2**20}
"""The largest message by default; nccl-tests' usual call is `all_reduce_perf -b 8 -e 256M -f 2`."""
WARMUP_CALLS, MAX_CALLS = 5, 20
"""The defaults of nccl-tests."""
SIZE_LIMIT_S = 0.5
"""Approximate time limit for the timed calls of one size; a slow link gets fewer calls, at least one."""
PERIOD = 7
"""Period of the values along the buffer: neighbours differ, so that a shifted chunk is detected."""


def main(run_dir: str) -> int:
    """Measure on one rank and return its exit code."""
    return run_rank(run_dir, measure)


def measure(run: RunPaths, experiment: Experiment, position: Position, began: float) -> None:
    """Join the process group and measure every size of the plan."""
    launched_at = launch_clock.launched_at()
    device = set_up(experiment)
    ranks = dist.get_world_size()
    if ranks < 2:
        raise ValueError("there is 1 rank: an all-reduce needs at least 2")
    joined = launch_clock.now_s()
    plan = records.read_json(run.bandwidth_plan) or {}
    most_bytes = plan.get("most_bytes") or MAX_BYTES[device.type]
    for size in (2**power for power in range(MIN_BYTES.bit_length() - 1, most_bytes.bit_length())):
        row = measure_size(size, ranks, device)
        if rank() == 0:
            records.append_line(run.bandwidth, row)
        if row["errors"]:
            raise ArithmeticError(f"the all-reduced sum of {size} bytes is wrong in {row['errors']} elements")
    ended = launch_clock.now_s()
    if rank() == 0:
        record = {
            "ranks": ranks,
            "gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None,
            "versions": versions(),
            "phases_s": {"start": began - launched_at, "build": joined - began, "timed": ended - joined},
            "ended_s": ended - launched_at,
        }
        records.write_json(run.worker, record)
    dist.destroy_process_group()


def measure_size(size: int, ranks: int, device: torch.device) -> dict[str, int | float | str | None]:
    """Measure one message size; return its row, equal on all ranks, with the errors of all ranks."""
    count = size // ITEM_BYTES
    buffer = torch.empty(count, dtype=torch.float32, device=device)
    clock = clock_of(device)
    fill(buffer, 0)
    mean_time_s(buffer, 1, clock)  # the first call of a size may set up resources
    calls = max(1, min(MAX_CALLS, int(SIZE_LIMIT_S / max(max_over_ranks(mean_time_s(buffer, 1, clock), device), 1e-9))))
    mean_time_s(buffer, min(WARMUP_CALLS, calls), clock)
    time_s = max_over_ranks(mean_time_s(buffer, calls, clock), device)
    algbw = metrics.algbw_gb_per_s(count * ITEM_BYTES, time_s)
    return {
        "bytes": count * ITEM_BYTES,
        "count": count,
        "dtype": "float32",
        "ranks": ranks,
        "calls": calls,
        "time_us": time_s * 1e6,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": metrics.busbw_gb_per_s(algbw, ranks),
        "errors": count_errors(buffer, ranks, device),
    }


def mean_time_s(buffer: torch.Tensor, calls: int, clock: Clock) -> float:
    """Return the mean time of `calls` all-reduces on this rank; the ranks start together."""
    dist.barrier()
    clock.synchronize()
    start = clock.mark()
    for _ in range(calls):
        dist.all_reduce(buffer)
    end = clock.mark()
    clock.synchronize()
    return clock.seconds(start, end) / calls


def max_over_ranks(seconds: float, device: torch.device) -> float:
    """Return the maximum of a time over all ranks."""
    shared = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def fill(buffer: torch.Tensor, factor: int) -> None:
    """Fill with small integers, whose sums are exact in any order; a factor of 0 keeps repeated sums finite."""
    places = torch.arange(len(buffer), dtype=torch.int32, device=buffer.device)  # float32 cannot count beyond 2**24
    buffer.copy_(places.remainder_(PERIOD).add_(1)).mul_(factor)


def count_errors(buffer: torch.Tensor, ranks: int, device: torch.device) -> int:
    """All-reduce a different number from every rank, and count the wrong elements over all ranks."""
    fill(buffer, rank() + 1)
    dist.all_reduce(buffer)
    right = torch.empty_like(buffer)
    fill(right, ranks * (ranks + 1) // 2)
    errors = (buffer != right).sum().to(device)
    dist.all_reduce(errors)
    return int(errors)
