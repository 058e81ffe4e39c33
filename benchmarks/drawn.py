"""Draws settings at random, to measure how wrong predictions are: `python -m benchmarks.drawn SEED COUNT GPUS ...`.

Prints a params file of COUNT settings for each number of GPUs in GPUS; with `--limited-by GPU` (or
`CPU`) only settings that it limits by the prediction. Strategies are drawn equally often,
everything else by the weights below, without regard to what has been measured. A setting that is
refused, takes more than 85 % of an H100's memory by the prediction, or more than 2 s for a step is
drawn again. Steps are timed for about 5 s. The files of `benchmarks/params/h200` were drawn for its
memory and from fewer models, with eager attention among the choices.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from typing import Any

import yaml

import dsnb
from dsnb.base.errors import SettingsError

STRATEGIES: dict[int, list[dict[str, Any]]] = {
    1: [
        {"strategy": "plain"},
        {"strategy": "plain"},
        *({"zero_stage": stage} for stage in range(4)),
    ],
    2: [
        {"strategy": "ddp"},
        {"strategy": "fsdp"},
        *({"zero_stage": stage} for stage in range(4)),
        {"zero_stage": 3},
    ],
}
"""Strategies by the number of GPUs, 2 for several; the least measured ones are listed twice, to be
drawn more often."""
CHOICES: dict[str, list[tuple[Any, int]]] = {
    "model": [(name, 1) for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "opt-125m", "opt-350m", "opt-1.3b",
                                     "opt-2.7b", "bloom-560m", "bloom-1b1", "bloom-1b7", "bloom-3b", "pythia-160m",
                                     "pythia-410m", "pythia-1b", "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b")],
    "precision": [("bf16", 8), ("fp16", 1), ("tf32", 1), ("fp32", 1)],
    "mixed_precision": [("native", 2), ("autocast", 1)],
    "seq_len": [(256, 1), (512, 2), (1024, 3), (2048, 1)],
    "micro_batch_size": [(1, 1), (2, 2), (4, 2), (8, 2), (16, 2), (32, 1)],
    "grad_accum": [(1, 5), (2, 1), (4, 1), (8, 1)],
    "compile": [("off", 3), ("default", 1)],
    "activation_checkpointing": [(False, 3), (True, 1)],
    "optimizer": [("adamw", 4), ("adafactor", 1)],
    "loss": [("whole", 5), ("chunked", 1)],
    "lora_rank": [(0, 8), (16, 1)],
}  # fmt: skip
MAX_SHARE, MAX_STEP_S, TIMED_S = 0.85, 2.0, 5.0
H100_GIB = 79.0


def drawn(seed: int, count: int, gpus: int, limited_by: str = "") -> Iterator[dict[str, Any]]:
    """Yield settings that an H100 can run, by the prediction; only those that `limited_by` limits, if it is given."""
    random_ = random.Random(f"{seed} {gpus}")
    strategies = STRATEGIES[min(gpus, 2)]
    for number in range(count):
        entry = None
        while entry is None:
            entry = _entry(random_, strategies[number % len(strategies)], gpus, limited_by)
        yield entry


def _entry(
    random_: random.Random, strategy: dict[str, Any], gpus: int, limited_by: str
) -> dict[str, Any] | None:
    """Return one setting; None if it is refused, too large, or limited by something else."""
    chosen = {
        name: random_.choices(*zip(*values, strict=True))[0] for name, values in CHOICES.items()
    }
    settings = {**strategy, "gpus": gpus, **chosen}
    default = dsnb.Experiment(device="cuda").model_dump()
    settings = {
        name: value for name, value in settings.items() if value != default[name] or name == "model"
    }
    try:
        experiment = dsnb.Experiment(device="cuda", **settings)
        row = dsnb.predict([experiment], gpu="H100").iloc[0]
    except SettingsError:
        return None
    if limited_by not in ("", row["limited_by"]):
        return None
    if row["peak_allocated_gib"] > MAX_SHARE * H100_GIB or row["step_time_s"] > MAX_STEP_S:
        return None
    steps = min(200, max(6, round(TIMED_S / row["step_time_s"])))
    return {**settings, "steps": steps}


def main() -> None:
    """Print the params file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("gpus", type=int, nargs="+")
    parser.add_argument("--limited-by", choices=["CPU", "GPU"], default="")
    given = parser.parse_args()
    entries = [
        entry
        for each in given.gpus
        for entry in drawn(given.seed, given.count, each, given.limited_by)
    ]
    content = {
        "name": f"h100_drawn_{given.seed}",
        "question": "How wrong are predictions of settings that were drawn at random?",
        "defaults": {"warmup_steps": 4},
        "include": entries,
        "repeats": 1,
    }
    print(f"# Drawn before any was measured: python -m benchmarks.drawn {' '.join(sys.argv[1:])}")
    print(yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=200), end="")


if __name__ == "__main__":
    main()
