"""One rank of a bandwidth test of collectives by message size, with NCCL on GPUs and gloo on CPUs.

Figures compare to those of nccl-tests: float32, warm-up calls, then as many timed calls as fit into a time limit,
queued back to back. An all-reduce sums in place; the size of an all-gather is that of its result. The time of a size is
the mean over its calls on the slowest rank (nccl-tests averages over ranks). A wrong result on any rank is an error.
"""

from collections.abc import Callable

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
ALL_REDUCE, ALL_GATHER = "all-reduce", "all-gather"
RESULTS = {ALL_REDUCE: "all-reduced sum", ALL_GATHER: "all-gathered message"}
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
    for collective, word in RESULTS.items():
        for size in (2**power for power in range(MIN_BYTES.bit_length() - 1, most_bytes.bit_length())):
            if collective == ALL_GATHER and size < ranks * ITEM_BYTES:
                continue
            row = measure_size(collective, size, ranks, device)
            if rank() == 0:
                records.append_line(run.bandwidth, row)
            if row["errors"]:
                raise ArithmeticError(f"the {word} of {size} bytes is wrong in {row['errors']} elements")
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


def measure_size(collective: str, size: int, ranks: int, device: torch.device) -> dict[str, int | float | str | None]:
    """Measure one message size; return its row, equal on all ranks, with the errors of all ranks."""
    count = size // ITEM_BYTES // (ranks if collective == ALL_GATHER else 1)  # elements that a rank gives
    buffer = torch.empty(count, dtype=torch.float32, device=device)
    result = buffer if collective == ALL_REDUCE else torch.empty(count * ranks, dtype=torch.float32, device=device)
    clock = clock_of(device)

    def call() -> None:
        if collective == ALL_REDUCE:
            dist.all_reduce(buffer)
        else:
            dist.all_gather_into_tensor(result, buffer)

    fill(buffer, 0)
    mean_time_s(call, 1, clock)  # the first call of a size may set up resources
    calls = max(1, min(MAX_CALLS, int(SIZE_LIMIT_S / max(max_over_ranks(mean_time_s(call, 1, clock), device), 1e-9))))
    mean_time_s(call, min(WARMUP_CALLS, calls), clock)
    time_s = max_over_ranks(mean_time_s(call, calls, clock), device)
    fill(buffer, rank() + 1)  # another number from every rank
    call()
    numbers = [ranks * (ranks + 1) // 2] if collective == ALL_REDUCE else range(1, ranks + 1)
    right = torch.empty_like(result)
    for part, number in zip(right.chunk(len(numbers)), numbers, strict=True):
        fill(part, number)
    errors = (result != right).sum().to(device)
    dist.all_reduce(errors)
    sent = len(result) * ITEM_BYTES
    algbw = metrics.algbw_gb_per_s(sent, time_s)
    busbw = metrics.busbw_gb_per_s(algbw, ranks)
    return {
        "collective": collective,
        "bytes": sent,
        "count": len(result),
        "dtype": "float32",
        "ranks": ranks,
        "calls": calls,
        "time_us": time_s * 1e6,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw and (busbw if collective == ALL_REDUCE else busbw / 2),
        "errors": int(errors),
    }


def mean_time_s(call: Callable[[], None], calls: int, clock: Clock) -> float:
    """Return the mean time of so many calls on this rank; the ranks start together."""
    dist.barrier()
    clock.synchronize()
    start = clock.mark()
    for _ in range(calls):
        call()
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
