"""The questions that dsnb asks a strategy, and the answers that most strategies share.

Settings `s` are an `Experiment`, or any object with the attributes that a method reads. A method
that reads a missing attribute raises AttributeError: an absent setting has no value.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsnb.base.formulas import memory
from dsnb.base.formulas.memory import MemoryParts

HALF = memory.HALF
FULL = "fp32"
USED_BY = {
    "offload": ": offload is ZeRO's; use strategy 'deepspeed'",
    "tensor_parallel": ", which keeps whole layers; use strategy 'deepspeed', 'fsdp' or 'plain'",
    "pipeline_parallel": ": pipelines are DeepSpeed's; use strategy 'deepspeed'",
    "deepspeed": ": these are keys of DeepSpeed's configuration; use strategy 'deepspeed'",
    "grad_accum_dtype": ": torch accumulates in the weights' format; use strategy 'deepspeed' or 'fsdp'",
    "overlap_comm": ": it is ZeRO's; use strategy 'deepspeed'",
    "bucket_elements": ", which has no buckets; use strategy 'deepspeed' or 'ddp'",
    "gradient_checks": ": the checks are ZeRO's; use strategy 'deepspeed'",
    "leaf_modules": ": they are ZeRO 3's; use strategy 'deepspeed'",
    "zeropp": ": it is DeepSpeed's; use strategy 'deepspeed'",
    "reduce_gradients": ", which decides this itself; use strategy 'fsdp'",
    "gathered_weights": ", which decides this itself; use strategy 'fsdp'",
    "shard_size": ": groups with copies of the shards are FSDP's; use strategy 'fsdp'",
    "gradient_compression": ": it is DDP's; use strategy 'ddp'",
}
"""Settings that only some strategies have, and the rest of the sentence that refuses them elsewhere."""


@dataclass(frozen=True)
class Numbers:
    """The number formats of a training, by their names in `precision`, with the bytes of a number."""

    computed: str
    """Format of matrix products."""
    masters: bool
    """Whether weights in half precision are trained, with copies in fp32."""
    autocast: bool
    """Whether the forward pass runs under `torch.autocast`."""
    natively_half: bool
    """Whether the whole forward pass is in half precision, instead of some operators of it."""
    casts_weights: bool
    """Whether autocast casts the weights in each pass; adapters leave the others in half precision."""
    accumulates_in_fp32: bool
    """Whether gradients in half precision are added up in fp32."""
    built: str
    """Format in which the model is built; with LoRA, frozen weights stay in `computed`."""
    forward: str
    """Format of the weights that the forward pass reads: FSDP gathers fp32 shards in half."""
    trained: str
    """Format of trained weights and of their gradients."""
    computed_bytes: int
    """Bytes of a number in matrix products."""
    stream_bytes: int
    """Bytes of a number in the residual stream between blocks, which autocast leaves in fp32."""
    trained_bytes: int
    """Bytes of a trained weight, and of its gradient as the backward pass leaves it."""
    accumulated_bytes: int
    """Bytes of a gradient that is kept until the optimizer's step."""
    state_bytes: int
    """Bytes of a weight as the optimizer updates it, a master or the weight itself, and of each of its moments."""


def width(precision: str) -> int:
    """Return the bytes of a number: tf32 is stored as fp32."""
    return 2 if precision in HALF else 4


@dataclass(frozen=True)
class States:
    """The model states: their bytes per trained parameter, and what is shared among how many ranks."""

    each: MemoryParts
    """Bytes of a parameter over all ranks that share it."""
    stage: int
    """What ranks share: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too."""
    ranks: int
    """Ranks that share it."""

    @property
    def of_rank(self) -> MemoryParts:
        """Bytes of a parameter on one rank."""
        return memory.model_states(1, self.each, self.stage, self.ranks)


@dataclass(frozen=True)
class ModelSize:
    """What traffic depends on in a model; all ranks together have `parameters`."""

    parameters: float
    trained: float
    layers: float
    hidden: float
    family: str = ""
    undivided: float = 0.0
    """Parameters that AutoTP splits among no ranks: embeddings, the output layer and norms."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that leave a rank in an optimizer step between data-parallel ranks, by collective.

    An all-reduce of n ranks sends 2 (n - 1) / n of a message, a reduce-scatter or an all-gather
    (n - 1) / n (Patarasuk and Yuan 2009).
    """

    all_reduce: float = 0.0
    all_gather: float = 0.0
    reduce_scatter: float = 0.0
    all_to_all: float = 0.0
    data_messages: float = 0.0
    """Collectives."""
    replica_all_reduce: float = 0.0
    """An all-reduce between groups of ranks that hold copies of one another's shards."""
    replica_messages: float = 0.0
    """Its collectives."""
    reduction_overlaps: float = 0.0
    """1 where gradients are reduced beside the passes, else 0."""
    gather_overlaps: float = 0.0
    """1 where weights are gathered beside the passes, else 0."""


class Strategy:
    """One way to share a training among ranks; every method has the answer of most strategies."""

    name: str = ""
    """Value of the setting `strategy`."""
    label: str = ""
    """Display name in tables and legends; by default the name."""
    label_of_groups: str = ""
    """Display name where groups of ranks hold copies of one another's shards."""
    phrase: str = ""
    """Name within a sentence, such as "the plain loop"; empty for the label."""
    kind: str = ""
    """Name among the kinds of settings that predictions have errors for; by default the label."""
    simplicity: int = 9
    """Rank among the strategies, the simplest first, where two settings are equally fast."""
    min_ranks: int = 2
    """Fewest ranks to recommend it for; sharing needs at least two."""
    max_ranks: float = math.inf
    """Most ranks to recommend it for."""
    settings: frozenset[str] = frozenset()
    """Those of `USED_BY` that the strategy has."""
    only_at_stages: Mapping[str, tuple[Collection[int], str]] = {}
    """Settings that apply at some stages of ZeRO only: the stages, and why not at others."""
    is_runnable: bool = True
    """Whether dsnb can train with it; False for those of other programs, found in logs."""
    is_deepspeed: bool = False
    """Whether DeepSpeed's engine trains: it reads `deepspeed.json`, and its hooks cost time."""
    has_zero_stages: bool = False
    """Whether `zero_stage` has a meaning; otherwise tables of runs leave it out."""
    why_no_zero: str = "it has no ZeRO"
    """Why it has no stage of ZeRO, in a sentence that refuses one."""
    may_split_layers: bool = True
    """Whether a tensor- or pipeline-parallel size that is unknown may be other than 1."""
    has_native_half: bool = True
    """Whether `mixed_precision` matters: otherwise half precision is always autocast."""
    has_masters: bool = False
    """Whether native half precision trains weights in half precision, with copies in fp32."""
    may_reduce_in_fp32: bool = False
    """Whether gradients of weights in bf16 without masters can be added up and reduced in fp32."""
    shares_split_inputs: bool = False
    """Whether split layers that read one input add up its gradient together: queries, keys and values."""
    wraps_blocks: bool = False
    """Whether each block is wrapped and has hooks."""
    splits_graphs: bool = False
    """Whether a compiled model is split at every bucket of gradients."""
    bucket: float = 0
    """Default gradients in a message; 0 without buckets."""
    trainer_class: str = "dsnb.measure.train.trainer:TorchTrainer"
    """The class that trains, or a function that returns a trainer, as "module:name"; it is called with the experiment,
    DeepSpeed's configuration and the device."""
    memory_rule: str = ""
    """The function of the moments at which memory can peak, as "module:function"."""

    def label_of(self, zero_stage: object = None) -> str:
        """Return the display name of a setting: "DDP", "ZeRO 3"; empty if it depends on an unknown."""
        return self.label or self.name

    def labels(self) -> tuple[str, ...]:
        """Return all values of `label_of` in display order."""
        return (self.label_of(),)

    def kind_of(self, zero_stage: object = None) -> str:
        """Return the kind of setting that errors of predictions are listed by."""
        return self.kind or self.label_of(zero_stage)

    def short(self, s: Any) -> str:
        """Return its part of an experiment's name: "ddp", "zs2"."""
        return self.name

    def candidates(self) -> list[dict[str, Any]]:
        """Return the settings that `recommend` compares, the simplest first."""
        return [{"strategy": self.name}]

    def has(self, name: str) -> bool:
        """Return whether the strategy has a setting, as far as that depends on the strategy."""
        return name in self.settings or name not in USED_BY

    def lacks(self, name: str, s: Any) -> str:
        """Return why a setting does not apply, from "but" to the end of a sentence; empty if it does."""
        if name == "zero_stage" and not self.has_zero_stages:
            return (
                f"strategy is '{self.name}': {self.why_no_zero}; leave zero_stage at 0, or use "
                "strategy 'deepspeed'"
            )
        if name in self.only_at_stages:
            stages, why = self.only_at_stages[name]
            if s.zero_stage not in stages:
                allowed = " or ".join(map(str, stages))
                return f"zero_stage is {s.zero_stage}: {why}; use zero_stage {allowed}"
        if self.has(name):
            return ""
        return f"strategy is '{self.name}'{USED_BY[name]}"

    def refusals(self, s: Any) -> Iterator[str]:
        """Yield a sentence for each combination of settings that it cannot train with."""
        yield from ()

    def numbers(self, s: Any) -> Numbers:
        """Return the number formats; half precision is native, autocast of fp32 weights, or not mixed at all."""
        computed = s.precision
        is_half = computed in HALF
        is_pure = is_half and s.mixed_precision == "none"
        is_native = is_half and self.has_native_half and s.mixed_precision == "native"
        natively_half = is_native or is_pure
        autocast = is_half and not natively_half
        masters = is_native and self.has_masters
        trains_half = masters or is_pure
        has_adapters = s.lora_rank > 0
        casts_weights = autocast and not has_adapters
        in_fp32 = self.accumulates_in_fp32(s)
        computed_bytes = width(computed)
        trained_bytes = computed_bytes if trains_half else 4
        trained = computed if trains_half else FULL
        built = computed if trains_half or has_adapters else FULL
        return Numbers(
            computed=computed,
            masters=masters,
            autocast=autocast,
            natively_half=natively_half,
            casts_weights=casts_weights,
            accumulates_in_fp32=in_fp32,
            built=built,
            forward=computed if natively_half else built,
            trained=trained,
            computed_bytes=computed_bytes,
            stream_bytes=4 if casts_weights else computed_bytes,
            trained_bytes=trained_bytes,
            accumulated_bytes=4 if in_fp32 else trained_bytes,
            state_bytes=2 if is_pure else 4,
        )

    def accumulates_in_fp32(self, s: Any) -> bool:
        """Return whether gradients in half precision are added up in fp32."""
        return False

    def states(self, s: Any) -> States:
        """Return the model states of Adam: by default whole on each rank."""
        numbers = self.numbers(s)
        each = memory.FULL
        if numbers.masters:
            each = memory.MASTERS
        elif numbers.state_bytes == 2:
            each = memory.PURE
        elif numbers.autocast:
            each = memory.AUTOCAST
        return States(each, self.shared_stage(s), self.shard_ranks(s))

    def shard_ranks(self, s: Any) -> int:
        """Return how many data-parallel ranks share what is shared: by default all."""
        ranks: int = s.data_parallel
        return ranks

    def shared_stage(self, s: Any) -> int:
        """Return what ranks share, as the stage of ZeRO that shares as much: by default nothing."""
        return 0

    def shards_weights(self, s: Any) -> bool:
        """Return whether each rank has a share of the weights, which are gathered to compute."""
        return self.shared_stage(s) >= 3

    def shards_optimizer(self, s: Any) -> bool:
        """Return whether each rank updates a share of the parameters."""
        return self.shared_stage(s) >= 1

    def reductions(self, s: Any) -> int:
        """Return how often gradients are reduced in a step: by default after the last micro-batch."""
        return 1

    def bucket_elements(self, s: Any) -> float:
        """Return the gradients in a message; 0 without buckets."""
        return s.bucket_elements or self.bucket

    def traffic(self, s: Any, model: ModelSize) -> Traffic:
        """Return the bytes that a rank sends to other data-parallel ranks in an optimizer step."""
        ranks = s.data_parallel
        if ranks == 1:
            return Traffic()
        parts = s.tensor_parallel * s.pipeline_parallel
        part = replace(model, parameters=model.parameters / parts, trained=model.trained / parts)
        return self.traffic_of(s, model, part, (ranks - 1) / ranks)

    def traffic_of(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return the traffic between several ranks.

        A rank has a `part` of the model, and sends the share `once` of a message in a
        reduce-scatter or an all-gather.
        """
        return Traffic()

    def gathered_bytes(self, s: Any) -> float:
        """Return the bytes of a weight as it is sent."""
        return float(self.numbers(s).stream_bytes)

    def reduced_bytes(self, s: Any, model: ModelSize) -> float:
        """Return the bytes of a gradient as it is sent."""
        return float(self.numbers(s).stream_bytes)

    def trainer(self, s: Any) -> str:
        """Return the class that trains, as "module:Class"; `load` imports it."""
        return self.trainer_class

    def former_defaults(self, s: Any) -> dict[str, Any]:
        """Return what runs did whose records lack a setting, where it was not today's default."""
        return {}
