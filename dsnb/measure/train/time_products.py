"""A program that prints, as JSON, the seconds of a matrix product on this CPU in fp32 and bf16."""

import json
import time

import torch

from dsnb.base.system import interpreter

SIZE = 512
"""Of square matrices: in fp32 a millisecond; emulated bf16 takes a fifth of a second."""
SPAN_S, LEAST_CALLS = 0.3, 3
"""Calls are repeated for this time, and at least so often. The fastest counts: other programs can
only delay one."""
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def product_s(dtype: torch.dtype) -> float:
    """Return the seconds of the fastest product of two square matrices."""
    left = torch.randn(SIZE, SIZE, dtype=dtype)
    right = torch.randn(SIZE, SIZE, dtype=dtype)
    torch.mm(left, right)  # the first call chooses a kernel
    began = time.perf_counter()
    calls: list[float] = []
    while len(calls) < LEAST_CALLS or time.perf_counter() - began < SPAN_S:
        start = time.perf_counter()
        torch.mm(left, right)
        calls.append(time.perf_counter() - start)
    return min(calls)


if __name__ == "__main__":
    interpreter.end_quickly()
    print(json.dumps({name: product_s(dtype) for name, dtype in FORMATS.items()}))
