"""The ranks' part of `dsnb probe` and `dsnb bandwidth`: measures GPU and host on one rank, links on several.

Figures of one rank calibrate constants of the time model (`dsnb.prediction.probed`), each measured
on the work that its constant is fitted to. Without a GPU, only the host is measured. Rates are
decimal.

Figures of several ranks, with NCCL on GPUs and gloo on CPUs, are comparable to nccl-tests: float32,
warm-up calls, then as many timed calls as fit into a time limit, queued back to back. An all-reduce
sums in place; the size of an all-gather is that of its result. The time of a size is the mean over
its calls on the slowest rank (nccl-tests averages over ranks). A wrong result on any rank is an
error.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.utils import CheckOverflow
from torch import nn

from dsnb.base.files import json_files
from dsnb.base.formulas import metrics
from dsnb.base.system import launch_clock
from dsnb.measure.record.clock import Clock
from dsnb.measure.record.failure import Position, one_line
from dsnb.measure.train.launches import launch_us
from dsnb.measure.train.worker import rank, run_rank, set_up, versions
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

TOKENS = 16_384
SQUARES = (1024, 2048, 4096, 8192)
LAYERS = ((768, 3072), (2048, 8192), (4096, 14_336), (768, 50_257), (768, 50_304))
"""Width in and out of linear layers: of GPT-2 and of models of one and eight billion parameters. GPT-2's vocabulary is
not a multiple of 8, which rules out fast kernels; for comparison, the next multiple of 64."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
HEADS, HEAD_SIZE = 16, 64
COPIED, MOVED = 2**30, 2**28
"""Bytes to copy within the GPU's memory, and between it and pinned host memory."""
TENSORS = 48
"""Parameter tensors that DeepSpeed handles one by one; their size does not matter."""
SPAN_S, QUICK_SPAN_S, BATCHES = 0.5, 0.01, 5
"""Seconds that each figure takes, in a quick probe as well, and the number of batches in them."""
ITEM_BYTES, MIN_BYTES = 4, 8
MAX_BYTES = {"cuda": 256 * 2**20, "cpu": 16 * 2**20}
"""Default size of the largest message; nccl-tests is usually called as `all_reduce_perf -b 8 -e
256M -f 2`."""
WARMUP_CALLS, MAX_CALLS = 5, 20
"""The defaults of nccl-tests."""
SIZE_LIMIT_S = 0.5
"""Approximate time limit for the timed calls of one size; a slow link gets fewer calls, but at
least one."""
ALL_REDUCE, ALL_GATHER = "all-reduce", "all-gather"
RESULTS = {ALL_REDUCE: "all-reduced sum", ALL_GATHER: "all-gathered message"}
PERIOD = 7
"""Period of the values along the buffer: neighbours differ, so that a shifted chunk is detected."""
Rows = Iterator[tuple[str, float, str, str]]
"""What was measured, value, unit, and the name of the figure, empty if it is not one."""


def main(run_dir: str) -> int:
    """Measure on one rank and return its exit code."""
    return run_rank(run_dir, measure)


def measure(run: RunPaths, experiment: Experiment, position: Position, began: float) -> None:
    """Measure GPU and host with one rank, links with several, and write the record on rank 0."""
    device = set_up(experiment)
    joined = launch_clock.now_s()
    ranks = dist.get_world_size()
    plan = json_files.read_json(run.bandwidth_plan) or {}
    measured = {}
    if ranks > 1:
        links(run, ranks, device, plan.get("most_bytes") or MAX_BYTES[device.type])
    else:
        measured = machine(device, QUICK_SPAN_S if plan.get("quick") else SPAN_S)
    ended = launch_clock.now_s()
    launched_at = launch_clock.launched_at()
    if rank() == 0:
        about = {
            "ranks": ranks,
            "gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None,
            "versions": versions(),
            "phases_s": {
                "start": began - launched_at,
                "build": joined - began,
                "timed": ended - joined,
            },
            "ended_s": ended - launched_at,
        }
        json_files.write_json(run.worker, about | measured)
    dist.destroy_process_group()


def machine(device: torch.device, span_s: float) -> dict[str, Any]:
    """Measure each part; one that fails, or needs a GPU on a machine without any, is `missing` with the reason."""
    figures: dict[str, float] = {}
    rows = []
    missing = {}
    for part, function in PARTS.items():
        if part != "host" and device.type != "cuda":
            missing[part] = "it needs a GPU"
            continue
        try:
            for what, value, unit, figure in function(device, span_s):
                rows.append({"part": part, "what": what, "value": value, "unit": unit})
                if figure:
                    figures[figure] = value
        # such as a kernel that this GPU lacks; the other parts are still useful
        except Exception as error:
            missing[part] = one_line(error)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"figures": figures, "rows": rows, "missing": missing}


def mean_s(work: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Return the mean time of `calls` calls, queued back to back."""
    clock = Clock(device)
    clock.synchronize()
    first = clock.mark()
    for _ in range(calls):
        work()
    last = clock.mark()
    clock.synchronize()
    return clock.seconds(first, last) / calls


def seconds(work: Callable[[], Any], device: torch.device, span_s: float) -> float:
    """Return the time of one call: the median over batches that together take `span_s`."""
    mean_s(work, 2, device)  # loads kernels
    calls = max(1, int(span_s / BATCHES / max(mean_s(work, 1, device), 1e-7)))
    return statistics.median(mean_s(work, calls, device) for _ in range(BATCHES))


def products(device: torch.device, span_s: float, tokens: int = TOKENS) -> Rows:
    """Yield the rates of bf16 products: squares, and linear layers forward and backward."""
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    for size in SQUARES:
        time_s = seconds(
            partial(torch.matmul, random(size, size), random(size, size)), device, span_s
        )
        figure = "matmul_tflops" if size == SQUARES[-1] else ""
        yield f"{size:,} x {size:,} x {size:,}", 2 * size**3 / time_s / 1e12, "TFLOP/s", figure
    for width, out in LAYERS:
        work = partial(_linear, random(tokens, width), random(out, width), random(tokens, out))
        time_s = seconds(work, device, span_s)
        tflops = 6 * tokens * width * out / time_s / 1e12
        figure = "unaligned_tflops" if out % 8 else ""
        yield f"{tokens:,} x {width:,} x {out:,}", tflops, "TFLOP/s", figure


def _linear(inputs: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> None:
    """Compute the products of a linear layer, forward and backward."""
    inputs @ weight.T
    gradient @ weight
    gradient.T @ inputs


def attention(device: torch.device, span_s: float, tokens: int = TOKENS) -> Rows:
    """Yield the rates of causal attention, forward and backward, by length of the sequences."""
    for length in LENGTHS:
        if length > tokens:
            break
        shape = (3, tokens // length, HEADS, length, HEAD_SIZE)
        parts = list(
            torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_().unbind()
        )
        time_s = seconds(partial(_attention, parts), device, span_s)
        # Two products forward and five backward, of the half that is not masked (Dao 2023, section
        # 4.1).
        tflops = 7 * tokens * length * HEADS * HEAD_SIZE / time_s / 1e12
        yield f"length {length:,}", tflops, "TFLOP/s", "attention_tflops" if length == 2048 else ""


def _attention(parts: list[torch.Tensor]) -> None:
    query, key, value = parts
    output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.autograd.grad(output, parts, torch.ones_like(output))


def memory(device: torch.device, span_s: float, size: int = COPIED) -> Rows:
    """Yield the bandwidth of the GPU's memory: bytes that a copy reads and writes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    time_s = seconds(partial(torch.empty_like(source).copy_, source), device, span_s)
    yield "copy", 2 * size / time_s / 1e9, "GB/s", "memory_gb_per_s"


def host_link(device: torch.device, span_s: float, size: int = MOVED) -> Rows:
    """Yield the bandwidth between the GPU and pinned host memory, in each direction and the mean of both."""
    on_host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    on_gpu = torch.empty_like(on_host, device=device)
    to_gpu_s = seconds(partial(on_gpu.copy_, on_host, non_blocking=True), device, span_s)
    to_host_s = seconds(partial(on_host.copy_, on_gpu, non_blocking=True), device, span_s)
    yield "to the GPU", size / to_gpu_s / 1e9, "GB/s", ""
    yield "to the host", size / to_host_s / 1e9, "GB/s", ""
    yield "both ways", 2 * size / (to_gpu_s + to_host_s) / 1e9, "GB/s", "host_link_gb_per_s"


def host(device: torch.device, span_s: float) -> Rows:
    """Yield the host's time for an operation, and in DeepSpeed's Python code for a parameter tensor."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    number = torch.zeros((), device=device)
    yield "one kernel", 1e6 * seconds(lambda: number.add_(1), device, span_s), "µs", ""
    yield "launch", launch_us(device, span_s), "µs", "launch_us"
    parameters = [nn.Parameter(torch.zeros(64, 64, device=device)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    check = partial(CheckOverflow([parameters]).has_overflow_serial, parameters)
    yield "parameter", 1e6 * seconds(check, device, span_s) / TENSORS, "µs", "parameter_us"
    # A row of small layers with one parameter each, which ZeRO 3 gathers before use and frees
    # afterwards.
    plain = _row_of_layers(device)
    sharded = _row_of_layers(device)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    sgd = torch.optim.SGD(sharded.parameters(), 1e-3)
    engine, *_ = deepspeed.initialize(model=sharded, optimizer=sgd, config=config)
    inputs = torch.zeros(1, 64, device=device)
    with torch.no_grad():
        plain_s = seconds(partial(plain, inputs), device, span_s)
        gathered_s = seconds(partial(engine, inputs), device, span_s)
    yield "gather", 1e6 * max(0.0, gathered_s - plain_s) / TENSORS, "µs", "gather_us"


def _row_of_layers(device: torch.device) -> nn.Sequential:
    layers = [nn.Linear(64, 64, bias=False, device=device) for _ in range(TENSORS)]
    return nn.Sequential(*layers)


PARTS: dict[str, Callable[[torch.device, float], Rows]] = {
    "host": host,
    "matrix products": products,
    "attention": attention,
    "memory": memory,
    "host memory": host_link,
}
"""The parts in order; all but the first need a GPU."""


def links(run: RunPaths, ranks: int, device: torch.device, max_bytes: int) -> None:
    """Measure the collectives at every size up to `max_bytes`, and write a line for each."""
    for collective, word in RESULTS.items():
        size = MIN_BYTES
        if collective == ALL_GATHER:
            while size < ranks * ITEM_BYTES:
                size *= 2
        while size <= max_bytes:
            row = measure_size(collective, size, ranks, device)
            if rank() == 0:
                json_files.append_line(run.bandwidth, row)
            if row["errors"]:
                raise ArithmeticError(
                    f"the {word} of {size} bytes is wrong in {row['errors']} elements"
                )
            size *= 2


def measure_size(
    collective: str, size: int, ranks: int, device: torch.device
) -> dict[str, int | float | str | None]:
    """Measure one message size; return its row, equal on all ranks, with the errors of all ranks."""
    items = size // ITEM_BYTES
    if collective == ALL_REDUCE:
        buffer = torch.empty(items, dtype=torch.float32, device=device)
        result = buffer
        call = partial(dist.all_reduce, buffer)
        factors = [ranks * (ranks + 1) // 2]
    else:
        buffer = torch.empty(items // ranks, dtype=torch.float32, device=device)
        result = torch.empty(len(buffer) * ranks, dtype=torch.float32, device=device)
        call = partial(dist.all_gather_into_tensor, result, buffer)
        factors = list(range(1, ranks + 1))

    def slowest_s(calls: int) -> float:
        dist.barrier()
        shared = torch.tensor(mean_s(call, calls, device), dtype=torch.float64, device=device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared)

    fill(buffer, 0)
    slowest_s(1)  # the first call of a size may set up resources
    calls = max(1, min(MAX_CALLS, int(SIZE_LIMIT_S / max(slowest_s(1), 1e-9))))
    slowest_s(min(WARMUP_CALLS, calls))
    time_s = slowest_s(calls)
    fill(buffer, rank() + 1)  # a different number from every rank
    call()
    expected = torch.empty_like(result)
    for part, factor in zip(expected.chunk(len(factors)), factors, strict=True):
        fill(part, factor)
    errors = (result != expected).sum().to(device)
    dist.all_reduce(errors)
    sent = len(result) * ITEM_BYTES
    algbw = metrics.algbw_gb_per_s(sent, time_s)
    busbw = metrics.busbw_gb_per_s(algbw, ranks)
    if busbw and collective == ALL_GATHER:
        busbw /= 2
    return {
        "collective": collective,
        "bytes": sent,
        "count": len(result),
        "dtype": "float32",
        "ranks": ranks,
        "calls": calls,
        "time_us": time_s * 1e6,
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": busbw,
        "errors": int(errors),
    }


def fill(buffer: torch.Tensor, factor: int) -> None:
    """Fill with small integers, whose sums are exact in any order; a factor of 0 keeps repeated sums finite."""
    # float32 cannot count beyond 2**24
    places = torch.arange(len(buffer), dtype=torch.int32, device=buffer.device)
    buffer.copy_(places.remainder_(PERIOD).add_(1)).mul_(factor)
