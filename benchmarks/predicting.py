"""How long `dsnb.predict` takes for 10,000 settings: `python -m benchmarks.predicting`, models traced first.

Prints the seconds of tracing and the CPU seconds of each of five calls, all in one process.
"""

import itertools
import random
import time
from typing import Any

import dsnb
from dsnb.prediction.traces import traces

MODELS = ("gpt2", "gpt2-xl", "opt-1.3b", "opt-6.7b", "bloom-1b7", "bloom-7b1")
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "plain"},
    *({"strategy": name, "gpus": gpus} for name in ("ddp", "fsdp") for gpus in (1, 2, 4)),
    *({"zero_stage": stage, "gpus": gpus} for stage in range(4) for gpus in (1, 2, 4)),
    *(
        {"zero_stage": stage, "gpus": gpus, "offload": "optimizer-cpu"}
        for stage in (1, 2, 3)
        for gpus in (1, 2)
    ),
]
CHECKPOINTING: tuple[dict[str, Any], ...] = (
    {},
    {"activation_checkpointing": True},
    {"activation_checkpointing": True, "checkpoint_every": 2},
)
COUNT = 10_000


def experiments() -> list[dsnb.Experiment]:
    """Return 10,000 settings of a grid over models, strategies, micro-batches, accumulation and checkpointing."""
    grid = itertools.product(
        MODELS, STRATEGIES, (1, 2, 4, 8, 16, 32), (1, 8), CHECKPOINTING, (512, 1024)
    )
    made = [
        dsnb.Experiment(
            model=model,
            micro_batch_size=size,
            grad_accum=count,
            seq_len=length,
            device="cuda",
            **strategy,
            **other,
        )
        for model, strategy, size, count, other, length in grid
    ]
    return random.Random(0).sample(made, COUNT)


def main() -> None:
    """Print the times."""
    asked = experiments()
    began = time.monotonic()
    traces(asked)
    print(f"traces: {time.monotonic() - began:.1f} s")
    for _ in range(5):
        began = time.process_time()
        dsnb.predict(asked, "H200")
        print(f"{COUNT:,} settings: {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
