"""The built-in settings to choose from for a model: ways to run one training without changing its result.

The global batch, the optimizer, LoRA, dropout and exact communication stay as asked for. What
varies is how GPUs share the work, micro-batch and accumulation, recomputation, number formats,
compilation, the loss in chunks, and, only where nothing else fits, offload.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.formulas.memory import HALF
from dsnb.base.formulas.model_shapes import facts, undivided
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.strategies import STRATEGIES, strategy
from dsnb.settings.training import CUDA_GRAPHS

TOKENS_A_STEP = ((1e9, 2**19), (5e9, 2**20), (5e10, 2**21), (math.inf, 2**22))
"""(parameters below which, tokens of an optimizer step): about those of GPT-3 (Brown et al. 2020, arXiv:2005.14165,
table 2.1: 0.5 million tokens for 125M to 760M parameters, 1 million for 1.3B and 2.7B, 2 million
for 6.7B and 13B, 3.2 million for 175B) as powers of two."""
USUAL_LENGTH = 4096
"""Longest sequence length assumed by default (Llama 2's)."""
MICRO_BATCH_TOKENS = (1024, 2**16)
"""Range of the tokens in a micro-batch, where a sequence and the global batch allow it."""
BUCKET = 100_000_000
"""Gradients per message of compiled DDP: a compiled model is split at each bucket
(docs/how-to/fast.md)."""
RECOMPUTED: list[dict[str, Any]] = [
    {},
    {"activation_checkpointing": True, "checkpoint_every": 2},
    {"activation_checkpointing": True},
]
COMMON = ("model", "gpus", "seq_len", "precision", "device")
"""Fields of `Training` that all settings have."""
OFFLOADED: list[dict[str, Any]] = [
    *({"zero_stage": stage, "offload": "optimizer-cpu"} for stage in (1, 2, 3)),
    {"zero_stage": 3, "offload": "all-cpu"},
]


@dataclass(frozen=True)
class Training:
    """What to train and on how many GPUs: everything that the settings to choose from share."""

    model: str
    gpus: int
    seq_len: int
    global_batch: int
    """Sequences of an optimizer step."""
    precision: str = "bf16"
    device: str = "cuda"
    pinned: Mapping[str, Any] = field(default_factory=dict)
    """Settings with fixed values; a list is what may be chosen from."""

    @property
    def is_fine_tuning(self) -> bool:
        """Whether every setting adapts a trained model."""
        names = ("lora_rank", "weights")
        values = itertools.product(*(listed(self.pinned.get(name)) for name in names))
        return all(planning.is_fine_tuning(dict(zip(names, pair, strict=True))) for pair in values)


def listed(value: Any) -> list[Any]:
    """Return the values that a setting may have: a list is what may be chosen from."""
    return value if isinstance(value, list) else [value]


def usual_length(model: str) -> int:
    """Return the default sequence length of a model."""
    return min(facts(model).get("positions") or USUAL_LENGTH, USUAL_LENGTH)


def usual_batch(parameters: float, seq_len: int, gpus: int, fine_tuning: bool = False) -> int:
    """Return the default number of sequences per optimizer step, a multiple of the GPUs."""
    tokens = next(tokens for below, tokens in TOKENS_A_STEP if parameters < below)
    sequences = planning.FINE_TUNING_SEQUENCES if fine_tuning else tokens / seq_len
    return gpus * max(1, round(sequences / gpus))


def candidates(training: Training, offloaded: bool = False) -> list[Experiment]:
    """Return the distinct settings that the rules allow, with or without offload; raise SettingsError if none is.

    With offload, there may be none.
    """
    allowed: dict[str, Experiment] = {}
    refused: list[list[str]] = []
    for chosen, alike in _combinations(training, offloaded):
        try:
            experiment = Experiment(**chosen)
        except SettingsError as error:
            refused.append(error.problems)
            continue
        for split in ({}, *alike):
            other = experiment.model_copy(update=split)
            allowed.setdefault(other.name, other)
    if not allowed and not offloaded:
        raise SettingsError(_common(refused) or _unshared(training))
    return list(allowed.values())


def _common(refused: Sequence[list[str]]) -> list[str]:
    """Return the problems that all refused settings have, or else those of the first."""
    first = refused[0] if refused else []
    return [one for one in first if all(one in problems for problems in refused)] or first


def _unshared(training: Training) -> str:
    batch, gpus = training.global_batch, training.gpus
    multiple = gpus * max(1, round(batch / gpus))
    return (
        f"global_batch is {batch}: it cannot be shared equally among {gpus} GPUs; give a multiple of {gpus}, such as "
        f"{multiple}"
    )


def check(training: Training) -> None:
    """Raise SettingsError if the rules allow no setting, whatever the micro-batch: known without counting the model."""
    pinned = {**training.pinned, "micro_batch_size": 1}
    pinned.pop("grad_accum", None)
    candidates(replace(training, global_batch=training.gpus, pinned=pinned))


def _combinations(
    training: Training, offloaded: bool
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield all combinations, allowed or not, each with the other micro-batches that the rules treat alike."""
    chosen: dict[str, list[Any]] = {
        "mixed_precision": ["native"],
        "compile": ["off"],
        "loss": ["whole", "chunked"],
    }
    if training.precision in HALF:
        chosen["mixed_precision"] = ["native", "autocast"]
    if training.device == "cuda":
        chosen["compile"] = ["off", "default", CUDA_GRAPHS[0]]
    chosen |= {name: listed(value) for name, value in training.pinned.items()}
    sizes = chosen.pop("micro_batch_size", [])
    counts = chosen.pop("grad_accum", [])
    shared = OFFLOADED if offloaded else list(_shared(training))
    common = {name: getattr(training, name) for name in COMMON}
    for sharing, recomputed, *values in itertools.product(shared, RECOMPUTED, *chosen.values()):
        setting = {**common, **sharing, **recomputed, **dict(zip(chosen, values, strict=True))}
        ranks = setting.get("tensor_parallel", 1)
        is_rare = setting["mixed_precision"] == "autocast" or ranks > 1
        if is_rare and setting["loss"] == "chunked" != training.pinned.get("loss"):
            continue
        way = strategy(setting.get("strategy", DEFAULTS["strategy"]))
        if way.splits_graphs and setting["compile"] != "off":
            setting = {"bucket_elements": BUCKET, **setting}
        splits = _splits(training, ranks, sizes, counts)
        # Rules ask only whether gradients are accumulated; checking each of these took a fifth of
        # `dsnb recommend`.
        for _, group in itertools.groupby(
            splits, lambda split: split if sizes else split["grad_accum"] > 1
        ):
            first, *alike = group
            yield {**setting, **first}, alike


def _splits(
    training: Training, ranks: int, sizes: Sequence[int], counts: Sequence[int]
) -> Iterator[dict[str, int]]:
    """Yield the micro-batches and accumulation of a rank; empty `sizes` and `counts` are free to choose."""
    sequences, rest = divmod(training.global_batch * ranks, training.gpus)  # of a rank
    if rest:
        return
    for size in sizes or micro_batches(sequences, training.seq_len):
        count, left = divmod(sequences, size)
        if not left and (not counts or count in counts):
            yield {"micro_batch_size": size, "grad_accum": count}


def _shared(training: Training) -> Iterator[dict[str, Any]]:
    """Yield the ways to share the work among the GPUs.

    Tensor parallelism is with ZeRO 1 and FSDP and inside a node; over several nodes, FSDP's shards
    may be copied from node to node.
    """
    for each in sorted(STRATEGIES.values(), key=lambda each: each.simplicity):
        if each.min_ranks <= training.gpus <= each.max_ranks:
            yield from each.candidates()
    yield from _within_nodes(training)
    known = facts(training.model)
    if known.get("experts", 0) > 1:
        return  # otherwise the rules would refuse a split that was not requested
    for ranks in (2, 4, 8):
        is_inside = ranks <= min(training.gpus, NODE_GPUS)
        is_divided = not undivided("tensor_parallel", ranks, known)
        if is_inside and training.gpus % ranks == 0 and is_divided:
            yield {"zero_stage": 1, "tensor_parallel": ranks}
            if ranks < training.gpus:
                yield {"strategy": "fsdp", "tensor_parallel": ranks}
            else:
                yield {"strategy": "plain", "tensor_parallel": ranks}


def _within_nodes(training: Training) -> Iterator[dict[str, Any]]:
    """Yield FSDP whose shards are shared by the GPUs of a node, if there are several nodes of as many GPUs."""
    nodes = math.ceil(training.gpus / NODE_GPUS)
    pinned = training.pinned.get("nodes", 1)
    if isinstance(pinned, int):
        nodes = max(nodes, pinned)
    if 1 < nodes < training.gpus and training.gpus % nodes == 0:
        yield {"strategy": "fsdp", "shard_size": training.gpus // nodes}


def micro_batches(sequences: int, seq_len: int) -> list[int]:
    """Return micro-batch sizes that divide a rank's sequences per step, each at least 1.5 times the one before."""
    lowest, highest = MICRO_BATCH_TOKENS
    sizes: list[int] = []
    for size in range(1, sequences + 1):
        if size > 1 and size * seq_len > highest:
            break
        if sequences % size == 0 and (not sizes or size >= 1.5 * sizes[-1]):
            sizes = [smaller for smaller in sizes if smaller * seq_len >= lowest] + [size]
    return sizes


COUNTED = {
    "strategy", "zero_stage", "offload", "activation_checkpointing", "compile", "micro_batch_size", "grad_accum",
}  # fmt: skip
"""Settings that the order of simplicity ranks separately."""


def simplicity(setting: Experiment) -> tuple[int, ...]:
    """Return a sort key that puts the simplest settings first.

    In order of importance: offload, splitting of layers, the strategy (plain loop, DDP, ZeRO 0 to
    3, FSDP), recomputation, CUDA graphs, compilation, the number of other settings that differ from
    the default, accumulation.
    """
    others = DEFAULTS.keys() - COUNTED
    return (
        int(setting.offload != "none"),
        setting.tensor_parallel * setting.pipeline_parallel,
        setting.parallel_strategy.simplicity,
        setting.zero_stage,
        int(setting.activation_checkpointing),
        int(setting.compile in CUDA_GRAPHS),
        int(setting.compile != "off"),
        sum(getattr(setting, name) != DEFAULTS[name] for name in others),
        setting.grad_accum,
    )
