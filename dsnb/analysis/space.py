"""The built-in settings to choose from for a model: ways to run one training, none of which changes what is trained.

The global batch, the optimizer, what is trained, dropout and exact communication stay as they are asked for. Varied are
how GPUs share the work, micro-batch and accumulation, recomputation, number formats, compilation, the loss in chunks,
and, only where nothing else fits, offload.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsnb.errors import SettingsError
from dsnb.formulas.memory import HALF
from dsnb.formulas.model_shapes import facts
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import CUDA_GRAPHS

TOKENS_A_STEP = ((1e9, 2**19), (5e9, 2**20), (5e10, 2**21), (math.inf, 2**22))
"""(parameters below which, tokens of an optimizer step): about those of GPT-3 (Brown et al. 2020, arXiv:2005.14165,
table 2.1: 0.5 million tokens for 125M to 760M parameters, 1 million for 1.3B and 2.7B, 2 million for 6.7B and 13B, 3.2
million for 175B) as powers of two."""
USUAL_LENGTH = 4096
"""Longest sequence that is assumed if none is asked for (Llama 2's); the model's own if that is shorter."""
MICRO_BATCH_TOKENS = (1024, 2**16)
"""Fewest and most tokens of a micro-batch, where a sequence and the global batch allow it."""
BUCKET = 100_000_000
"""Gradients in a message of compiled DDP: a compiled model is split at each bucket (docs/how-to/fast.md)."""
SHARING: list[dict[str, Any]] = [
    {"strategy": "plain"},
    {"strategy": "ddp"},
    *({"zero_stage": stage} for stage in range(4)),
    {"strategy": "fsdp"},
]
"""Ways to share the work among GPUs, the simplest first."""
RECOMPUTED: list[dict[str, Any]] = [
    {},
    {"activation_checkpointing": True, "checkpoint_every": 2},
    {"activation_checkpointing": True},
]
OFFLOADED: list[dict[str, Any]] = [
    *({"zero_stage": stage, "offload": "optimizer-cpu"} for stage in (1, 2, 3)),
    {"zero_stage": 3, "offload": "all-cpu"},
]


@dataclass(frozen=True)
class Training:
    """What is to be trained and on how many GPUs: all that settings to choose from have in common."""

    model: str
    gpus: int
    seq_len: int
    global_batch: int
    """Sequences of an optimizer step."""
    precision: str = "bf16"
    device: str = "cuda"
    pinned: Mapping[str, Any] = field(default_factory=dict)
    """Settings with fixed values; a list is what may be chosen from."""


KEPT = (
    "weights", "optimizer", "learning_rate", "gradient_clipping", "lora_rank", "dropout", "attention", "data",
    "tokenizer", "seed", "allocator", "memory_limit_gib",
)  # fmt: skip
"""Settings of an experiment that other settings for the same training share, beside those of `Training`."""


def training_of(one: Experiment) -> Training:
    """Return what an experiment trains."""
    pinned = {name: getattr(one, name) for name in KEPT if getattr(one, name) != DEFAULTS[name]}
    known = {name: getattr(one, name) for name in ("model", "gpus", "seq_len", "precision")}
    return Training(**known, global_batch=one.global_batch_size, pinned=pinned)


def usual_length(model: str) -> int:
    """Return the sequence length that is assumed if none is asked for."""
    return min(facts(model).get("positions") or USUAL_LENGTH, USUAL_LENGTH)


def usual_batch(parameters: float, seq_len: int, gpus: int) -> int:
    """Return the sequences of an optimizer step that are assumed if none are asked for: a multiple of the GPUs."""
    tokens = next(tokens for below, tokens in TOKENS_A_STEP if parameters < below)
    return gpus * max(1, round(tokens / seq_len / gpus))


def space(training: Training, offloaded: bool = False) -> list[Experiment]:
    """Return the settings that the rules allow, each once; `offloaded` ones are apart.

    Raises
    ------
    SettingsError
        If none is allowed: why.
    """
    found: dict[str, Experiment] = {}
    refused: list[list[str]] = []
    for chosen in _combinations(training, offloaded):
        try:
            one = Experiment(**chosen)
        except SettingsError as error:
            refused.append(error.problems)
        else:
            found.setdefault(one.name, one)
    if not found and not offloaded:
        of_all = [problem for problem in refused[0] if all(problem in own for own in refused)] if refused else []
        raise SettingsError(of_all or refused[0] if refused else _indivisible(training))
    return list(found.values())


def _combinations(training: Training, offloaded: bool) -> Iterator[dict[str, Any]]:
    """Yield all combinations of settings, allowed or not."""
    pinned = {name: value if isinstance(value, list) else [value] for name, value in training.pinned.items()}
    on_gpu, half = training.device == "cuda", training.precision in HALF
    chosen = {
        "mixed_precision": ["native", "autocast"] if half else ["native"],
        "compile": ["off", "default", CUDA_GRAPHS[0]] if on_gpu else ["off"],
        "loss": ["whole", "chunked"],
        **pinned,
    }
    sizes, counts = chosen.pop("micro_batch_size", None), chosen.pop("grad_accum", None)
    shared = OFFLOADED if offloaded else list(_shared(training))
    common = {name: getattr(training, name) for name in ("model", "gpus", "seq_len", "precision", "device")}
    for sharing, recomputed, *values in itertools.product(shared, RECOMPUTED, *chosen.values()):
        one = {**common, **sharing, **recomputed, **dict(zip(chosen, values, strict=True))}
        rare = one["mixed_precision"] == "autocast" or one.get("tensor_parallel", 1) > 1
        if rare and (one["loss"] == "chunked" != training.pinned.get("loss")):
            continue
        if one.get("strategy") == "ddp" and one["compile"] != "off":
            one = {"bucket_elements": BUCKET, **one}
        own, rest = divmod(training.global_batch * one.get("tensor_parallel", 1), training.gpus)
        for size in [] if rest else sizes or micro_batches(own, training.seq_len):
            if own % size == 0 and own // size in (counts or [own // size]):
                yield {**one, "micro_batch_size": size, "grad_accum": own // size}


def _shared(training: Training) -> Iterator[dict[str, Any]]:
    """Yield the ways to share the work among so many GPUs; tensor parallelism is that of ZeRO 1, inside a node."""
    alone = training.gpus == 1
    yield from (one for one in SHARING if one.get("strategy") not in ({"ddp", "fsdp"} if alone else {"plain"}))
    heads = facts(training.model).get("heads") or 1
    for ranks in (2, 4, 8):
        if ranks <= min(training.gpus, NODE_GPUS) and training.gpus % ranks == 0 and heads % ranks == 0:
            yield {"zero_stage": 1, "tensor_parallel": ranks}


def micro_batches(sequences: int, seq_len: int) -> list[int]:
    """Return sizes of micro-batches that divide a rank's sequences of a step, each at least 1.5 times the last one."""
    fewest, most = MICRO_BATCH_TOKENS
    sizes: list[int] = []
    for size in range(1, sequences + 1):
        if size > 1 and size * seq_len > most:
            break
        if sequences % size == 0 and (not sizes or size >= 1.5 * sizes[-1]):
            sizes = [one for one in sizes if one * seq_len >= fewest] + [size]
    return sizes


def _indivisible(training: Training) -> str:
    batch, gpus = training.global_batch, training.gpus
    return (
        f"global_batch is {batch}: it cannot be shared equally among {gpus} GPUs; give a multiple of {gpus}, such as "
        f"{gpus * max(1, round(batch / gpus))}"
    )


COUNTED = {
    "strategy", "zero_stage", "offload", "activation_checkpointing", "compile", "micro_batch_size", "grad_accum",
}  # fmt: skip
"""Settings that have their own place in the order of simplicity."""


def simplicity(one: Experiment) -> tuple[int, ...]:
    """Return a key that sorts settings by what they ask of their user, the simplest first.

    First comes what brings most complication: offload, then splitting of layers, the strategy (plain loop, DDP, ZeRO 0
    to 3, FSDP), recomputation, CUDA graphs, compilation, the number of other settings that are not the default, and
    accumulation.
    """
    sharing = {"strategy": one.strategy} if one.strategy != "deepspeed" else {"zero_stage": one.zero_stage}
    differing = sum(getattr(one, name) != usual for name, usual in DEFAULTS.items() if name not in COUNTED)
    return (
        int(one.offload != "none"),
        one.tensor_parallel * one.pipeline_parallel,
        SHARING.index(sharing),
        int(one.activation_checkpointing),
        int(one.compile in CUDA_GRAPHS),
        int(one.compile != "off"),
        differing,
        one.grad_accum,
    )
