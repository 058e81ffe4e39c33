"""Measure large matrix products on this GPU: the practical upper limit of training, unlike the data sheet's peak.

    python -m benchmarks.matmul [size ...]

Prints TFLOP/s by precision for several sizes, each the median of repeated products timed by CUDA
events, and the best of them. A product counts as 2 x n^3 FLOPs.
"""

import json
import statistics
import sys

import torch

SIZES = [4096, 8192, 12288, 16384]
REPEATS = 30
PRECISIONS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}


def product_s(size: int, dtype: torch.dtype) -> float:
    """Return the median time in s of one product of two random square matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(5):
        torch.mm(a, b, out=out)
    times_s = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.mm(a, b, out=out)
        end.record()
        end.synchronize()
        times_s.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times_s)


def main() -> None:
    """Measure every precision."""
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    peaks = {}
    for name, (dtype, tf32) in PRECISIONS.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        rates = {size: 2 * size**3 / product_s(size, dtype) / 1e12 for size in sizes}
        peaks[name] = max(rates.values())
        print(
            f"{name}: "
            + ", ".join(f"{size}: {rate:.1f}" for size, rate in rates.items())
            + " TFLOP/s"
        )
    print(
        json.dumps(
            {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "tflops": peaks}
        )
    )


if __name__ == "__main__":
    main()
