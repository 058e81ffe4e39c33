"""What one GPU and its host reach, as `dsnb probe` measures it: products, attention, memory, launches, host memory.

Figures stand for constants of the time model (`dsnb.prediction.probed`), so each is measured on the work that its
constant is fitted to. Rates are decimal. Without a GPU, only the host's pieces are measured.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.utils import CheckOverflow
from torch import nn

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock
from dsnb.train.failure import Position, one_line
from dsnb.train.launches import launch_us
from dsnb.train.meter import clock_of
from dsnb.train.worker import run_rank, set_up, versions

TOKENS = 16_384
SQUARES = (1024, 2048, 4096, 8192)
LAYERS = ((768, 3072), (2048, 8192), (4096, 14_336))
"""Linear layers of GPT-2, of models of a billion parameters, and of eight billion: width in and out."""
VOCABULARIES = (50_257, 50_304)
"""GPT-2's, which is no multiple of 8 and keeps products off the fast kernels, and the next multiple of 64."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
HEADS, HEAD_SIZE = 16, 64
COPIED, MOVED = 2**30, 2**28
"""Bytes that are copied in the GPU's memory, and between it and pinned host memory."""
TENSORS = 48
"""Parameter tensors that DeepSpeed handles one by one; their size does not matter."""
SPAN_S, BATCHES = 0.5, 5
QUICK = 0.02
"""Spans of a quick probe are this share of the usual ones."""
Row = dict[str, Any]


def main(run_dir: str) -> int:
    """Measure on one rank and return its exit code."""
    return run_rank(run_dir, measure)


def measure(run: RunPaths, experiment: Experiment, position: Position, began: float) -> None:
    """Measure every part; one that fails, or that needs a GPU that is not there, is recorded with the reason."""
    device = set_up(experiment)
    plan = records.read_json(run.bandwidth_plan) or {}
    share = QUICK if plan.get("quick") else 1.0
    record: Row = {"figures": {}, "rows": [], "missing": {}}
    for part, (function, needs_gpu) in PARTS.items():
        position.phase = part
        if needs_gpu and device.type != "cuda":
            record["missing"][part] = "it needs a GPU"
            continue
        try:
            for row in function(device, share):
                record["figures"] |= {row["figure"]: row["value"]} if "figure" in row else {}
                record["rows"].append({"part": part, **row})
        except Exception as error:  # such as a kernel that this GPU does not have: the other parts tell enough
            record["missing"][part] = one_line(error)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    about = {"gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None, "versions": versions()}
    records.write_json(run.worker, {**record, **about, "ended_s": launch_clock.since_launch_s()})
    torch.distributed.destroy_process_group()


def seconds(work: Callable[[], Any], device: torch.device, span_s: float = SPAN_S) -> float:
    """Return the time of one call, queued back to back: the median over batches that take `span_s` together."""
    clock = clock_of(device)

    def mean_s(calls: int) -> float:
        clock.synchronize()
        first = clock.mark()
        for _ in range(calls):
            work()
        last = clock.mark()
        clock.synchronize()
        return clock.seconds(first, last) / calls

    mean_s(2)  # loads kernels
    calls = max(1, int(span_s / BATCHES / max(mean_s(1), 1e-7)))
    return statistics.median(mean_s(calls) for _ in range(BATCHES))


def products(device: torch.device, share: float = 1.0, most: int = TOKENS) -> Iterator[Row]:
    """Yield the rates of products in bf16: squares, and passes of linear layers over so many tokens at `most`."""

    def row(shape: tuple[int, int, int], tflops: float, figure: str = "") -> Row:
        name = " x ".join(f"{size:,}" for size in shape)
        return {"what": name, "value": tflops, "unit": "TFLOP/s"} | ({"figure": figure} if figure else {})

    def filled(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    for size in (size for size in SQUARES if size <= most):
        left, right = filled(size, size), filled(size, size)
        time_s = seconds(partial(torch.matmul, left, right), device, share * SPAN_S)
        figure = "matmul_tflops" if size == min(SQUARES[-1], most) else ""
        yield row((size, size, size), 2 * size**3 / time_s / 1e12, figure)
    vocabularies = [(LAYERS[0][0], size) for size in VOCABULARIES]
    for width, out in (*LAYERS, *vocabularies):
        work = partial(_linear, filled(most, width), filled(out, width), filled(most, out))
        time_s = seconds(work, device, share * SPAN_S)
        figure = "unaligned_tflops" if out == VOCABULARIES[0] else ""
        yield row((most, width, out), 6 * most * width * out / time_s / 1e12, figure)


def _linear(inputs: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> None:
    """Multiply as a linear layer does, forward and backward."""
    inputs @ weight.T
    gradient @ weight
    gradient.T @ inputs


def attention(device: torch.device, share: float = 1.0, most: int = TOKENS) -> Iterator[Row]:
    """Yield the rates of causal attention, forward and backward, by length of the sequences."""
    for length in (length for length in LENGTHS if length <= most):
        shape = (most // length, HEADS, length, HEAD_SIZE)
        query, key, value = (
            torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        work = partial(_attention, query, key, value, torch.ones_like(query))
        # Two products forward and five backward, of the half that the mask leaves (Dao 2023, section 4.1).
        flops = 7 * most * length * HEADS * HEAD_SIZE
        figure = {"figure": "attention_tflops"} if length == 2048 else {}
        tflops = flops / seconds(work, device, share * SPAN_S) / 1e12
        yield {"what": f"length {length:,}", "value": tflops, "unit": "TFLOP/s", **figure}


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor) -> None:
    output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.autograd.grad(output, (query, key, value), gradient)


def memory(device: torch.device, share: float = 1.0, size: int = COPIED) -> Iterator[Row]:
    """Yield the bandwidth of the GPU's memory: bytes that a copy reads and writes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    time_s = seconds(lambda: target.copy_(source), device, share * SPAN_S)
    yield {"what": "copy", "value": 2 * size / time_s / 1e9, "unit": "GB/s", "figure": "memory_gb_per_s"}


def host_link(device: torch.device, share: float = 1.0, size: int = MOVED) -> Iterator[Row]:
    """Yield the bandwidth between the GPU and pinned host memory, in each direction and the mean of both."""
    on_host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    on_gpu = torch.empty_like(on_host, device=device)
    times_s = []
    for name, target, source in (("to the GPU", on_gpu, on_host), ("to the host", on_host, on_gpu)):
        times_s.append(seconds(partial(target.copy_, source, non_blocking=True), device, share * SPAN_S))
        yield {"what": name, "value": size / times_s[-1] / 1e9, "unit": "GB/s"}
    mean = 2 * size / sum(times_s) / 1e9
    yield {"what": "both ways", "value": mean, "unit": "GB/s", "figure": "host_link_gb_per_s"}


def host(device: torch.device, share: float = 1.0) -> Iterator[Row]:
    """Yield what the host needs for an operation, and in DeepSpeed's Python for a parameter tensor."""
    if device.type == "cpu":
        torch.set_num_threads(1)
    number = torch.zeros((), device=device)
    yield {"what": "one kernel", "value": 1e6 * seconds(lambda: number.add_(1), device, share), "unit": "µs"}
    yield {"what": "launch", "value": launch_us(device, share), "unit": "µs", "figure": "launch_us"}
    parameters = [nn.Parameter(torch.zeros(64, 64, device=device)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    overflow = CheckOverflow([parameters])
    time_s = seconds(lambda: overflow.has_overflow_serial(parameters), device, share)
    yield {"what": "parameter", "value": 1e6 * time_s / TENSORS, "unit": "µs", "figure": "parameter_us"}
    plain, gathered = (_layers(device, is_sharded) for is_sharded in (False, True))
    inputs = torch.zeros(1, 64, device=device)
    times_s = [seconds(partial(_pass, model, inputs), device, share) for model in (plain, gathered)]
    extra_us = 1e6 * max(0.0, times_s[1] - times_s[0]) / TENSORS
    yield {"what": "gather", "value": extra_us, "unit": "µs", "figure": "gather_us"}


@torch.no_grad()
def _pass(model: nn.Module, inputs: torch.Tensor) -> None:
    model(inputs)


def _layers(device: torch.device, is_sharded: bool) -> nn.Module:
    """Return small layers in a row, with one parameter each; at ZeRO 3, each is gathered before and freed after use."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False, device=device) for _ in range(TENSORS)))
    if not is_sharded:
        return model
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), 1e-3), config=config)
    return engine  # type: ignore[no-any-return]


PARTS: dict[str, tuple[Callable[[torch.device, float], Iterator[Row]], bool]] = {
    "host": (host, False),
    "matrix products": (products, True),
    "attention": (attention, True),
    "memory": (memory, True),
    "host memory": (host_link, True),
}
"""The parts in their order, and whether they need a GPU. The host comes first, before GPU memory is fragmented."""
