"""How far the fastest measured settings are from what the machine can do: `python -m benchmarks.distance`.

FLOPs are those that the model needs (Chowdhery et al. 2022, appendix B), with half of attention,
and are compared with the rate of a large matrix product in bf16 on the same kind of GPU. The parts
of a step are those of the time model.
"""

import math
from collections.abc import Iterator

from benchmarks.headline import fastest, way
from dsnb.base.system import hardware
from dsnb.prediction import gpus
from dsnb.prediction.calibration import of_record
from dsnb.prediction.step_time import DEFAULT, parts

TASKS = {
    "GPT-2 124M, sequence 128": ("gpt2", 128, 0, 1),
    "GPT-2 124M, sequence 1024": ("gpt2", 1024, 0, 1),
    "OPT-350M, sequence 512": ("opt-350m", 512, 0, 1),
    "OPT-1.3B, sequence 2048": ("opt-1.3b", 2048, 0, 1),
    "GPT-2 XL, sequence 1024": ("gpt2-xl", 1024, 0, 2),
    "BLOOM-7B1, sequence 1024": ("bloom-7b1", 1024, 0, 2),
}
"""In the form of `benchmarks.headline.RESULTS`."""
HEADER = [
    "| task | H200 | fastest measured setting | TFLOP/s | of a product | products | attention | other traffic "
    "| optimizer | communication | CPU |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
]


def rows() -> Iterator[str]:
    """Yield the rows of the table of `docs/how-to/fast.md`."""
    for task, number, best in fastest(TASKS):
        product = hardware.matmul_tflops(best["gpu_name"].iloc[0], "bf16") or math.nan
        tflops = float((best["tflops_per_gpu"] * (1 - best["masked_flops_pct"] / 100)).median())
        shares = " | ".join(f"{share:.0%}" for share in predicted(best.iloc[0].to_dict()))
        row = f"| {task} | {number} | {way(best.iloc[0])} | {tflops:.0f} | {tflops / product:.0%} | {shares} |"
        yield row.replace("%", " %")


def predicted(record: dict[str, object]) -> list[float]:
    """Return the shares of a step: products, attention, other traffic, optimizer, communication, the CPU."""
    run = of_record(record, gpus.link("nvlink"))
    if run is None:
        raise ValueError("no prediction for a measured setting")
    step = parts(run.counts, DEFAULT)
    named = (step.matmul_s, step.attention_s, step.memory_bound_s, step.optimizer_s)
    rest = step.step_time_s - sum(named) - step.host_s
    return [float(part / step.step_time_s) for part in (*named, rest, step.host_s)]


if __name__ == "__main__":
    print("\n".join([*HEADER, *rows()]))
