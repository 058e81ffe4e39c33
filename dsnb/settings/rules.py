"""Rules for settings that exclude each other, each with the reason in one sentence.

Combinations that DeepSpeed or torch rejects only after minutes, or silently treats differently, are
rejected here (docs/TRAPS.md). A rule yields sentences that name a setting and its value, and say
what to do. It reads settings as attributes of an experiment, which lacks those that are invalid by
themselves (`checks.contradictions`).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dsnb.settings.strategies import HALF
from dsnb.settings.strategies.base import USED_BY
from dsnb.settings.tables import REFUSALS
from dsnb.settings.training import CUDA_GRAPHS, Training

if TYPE_CHECKING:  # it imports the rules
    from dsnb.settings.experiment import Experiment

Rule = Callable[["Experiment"], Iterator[str]]
FIELDS = Training.model_fields
SHARED = ("tensor_parallel", "pipeline_parallel")


def _of_strategy(s: "Experiment") -> Iterator[str]:
    chosen = s.parallel_strategy
    if not chosen.is_runnable:
        yield f"strategy is '{s.strategy}': the package that adds it could not be loaded"
    for name in ("zero_stage", *USED_BY):
        default = FIELDS[name].default
        value = getattr(s, name, default)  # an invalid one is missing
        why = chosen.lacks(name, s)
        if why and value != default:
            yield f"{name} is {value!r}, but {why}"


def _beside_others(s: "Experiment") -> Iterator[str]:
    """Refuse settings that exclude each other, set the same key, or have no effect without another."""
    is_set = {name: getattr(s, name, each.default) != each.default for name, each in FIELDS.items()}
    for first, others in REFUSALS["exclusive"].items():
        for second, why in others.items():
            if is_set[first] and is_set[second]:
                yield f"{first} is {getattr(s, first)!r}, but {second} is {getattr(s, second)!r}: {why}"
    given = getattr(s, "deepspeed", {})
    for name, keys in REFUSALS["keys_of_settings"].items():
        twice = next((key for key in keys if key in given), "")
        if twice and is_set[name]:
            value = getattr(s, name)
            yield f"{name} is {value!r}, but deepspeed.{twice} is {given[twice]!r}: both set it; drop one"
    for name in ("checkpoint_every", "checkpoint_ops", "checkpoint_offload"):
        if not s.activation_checkpointing and is_set[name]:
            yield f"{name} is {getattr(s, name)!r}, but activation_checkpointing is off: turn it on, or drop {name}"
    for name in ("lora_targets", "frozen_weights"):
        if s.lora_rank == 0 and is_set[name]:
            yield f"{name} is '{getattr(s, name)}', but lora_rank is 0: nothing is frozen; set it, or drop {name}"
    if s.powersgd_rank != 1 and s.gradient_compression != "powersgd":
        how = s.gradient_compression
        yield f"powersgd_rank is {s.powersgd_rank}, but gradient_compression is '{how}': set it to 'powersgd'"
    if s.nvme_path and not s.offload.endswith("nvme"):
        yield f"nvme_path is set, but offload is '{s.offload}': drop it, or offload to NVMe"


def _optimizer(s: "Experiment") -> Iterator[str]:
    is_split = s.pipeline_parallel > 1 or s.tensor_parallel > 1
    if s.optimizer == "muon":
        if not s.parallel_strategy.is_deepspeed or s.zero_stage == 0:
            yield "optimizer is 'muon': it is ZeRO's, which sees whole matrices; use zero_stage 1, 2 or 3"
        elif is_split:
            yield "optimizer is 'muon', but the model is split: it needs whole matrices; use data parallelism alone"
    if s.optimizer != "adafactor" or s.parallel_strategy.shards_optimizer(s):
        return
    if s.tensor_parallel > 1:
        yield "optimizer is 'adafactor', but tensor_parallel is set: its factors would be those of slices; use 'adamw'"
    elif s.pipeline_parallel > 1 and s.precision == "bf16" and s.mixed_precision == "native":
        why = "in native bf16 it cannot factor a pipeline's flat shards; use mixed_precision 'autocast'"
        yield f"optimizer is 'adafactor', but pipeline_parallel is set: {why}"


def _precision(s: "Experiment") -> Iterator[str]:
    if s.mixed_precision == "native":
        return
    if s.mixed_precision == "none":
        yield from _pure(s)
        return
    if s.precision not in HALF:
        yield f"mixed_precision is 'autocast', but precision is '{s.precision}': nothing is mixed; use 'native'"
    elif not s.parallel_strategy.has_native_half:
        yield f"mixed_precision is 'autocast', but strategy is '{s.strategy}', which uses it anyway; use 'native'"
    if s.precision == "fp16" and s.pipeline_parallel > 1:
        yield "mixed_precision is 'autocast': in fp16 only a pipeline's last stage starts its loss scaler; use 'native'"
    elif s.precision == "fp16" and s.tensor_parallel > 1 and _is_zero_0(s):
        yield "mixed_precision is 'autocast': in fp16 at ZeRO 0 each rank skips steps on its own; use zero_stage 1"


def _is_zero_0(s: "Experiment") -> bool:
    return s.parallel_strategy.is_deepspeed and s.zero_stage == 0


def _pure(s: "Experiment") -> Iterator[str]:
    if s.precision == "fp16":
        yield "mixed_precision is 'none', but precision is 'fp16', which cannot hold small updates; use 'bf16'"
    elif s.precision != "bf16":
        yield f"mixed_precision is 'none', but precision is '{s.precision}': nothing is mixed; use 'native'"


def _ranks(s: "Experiment") -> Iterator[str]:
    if isinstance(s.gpus, int) and s.gpus % (s.tensor_parallel * s.pipeline_parallel):
        sizes = f"{s.tensor_parallel} x {s.pipeline_parallel}"
        yield f"gpus is {s.gpus}: it must be a multiple of tensor_parallel x pipeline_parallel ({sizes})"
    if s.tensor_parallel > 1 and s.zero_stage == 3:
        yield "zero_stage is 3, but tensor_parallel is set: AutoTP needs whole layers to split; use ZeRO 0 to 2"
    elif s.pipeline_parallel > 1 and s.zero_stage >= 2:
        yield f"zero_stage is {s.zero_stage}, but pipeline_parallel is set: it keeps gradients whole; use ZeRO 0 or 1"


def _clipping(s: "Experiment") -> Iterator[str]:
    if not s.gradient_clipping or not _is_zero_0(s):
        return
    if s.pipeline_parallel > 1 and (s.precision != "bf16" or s.mixed_precision == "autocast"):
        why = "at ZeRO 0 a pipeline clips by the norm of all its stages in native bf16 alone"
        yield f"gradient_clipping is set: {why}; use zero_stage 1"
    elif s.tensor_parallel > 1 and s.precision in HALF and s.mixed_precision == "native":
        why = "at ZeRO 0 in half precision DeepSpeed counts tensor-parallel gradients wrongly"
        yield f"gradient_clipping is set: {why}; use zero_stage 1"


def _gradients(s: "Experiment") -> Iterator[str]:
    dtype = s.grad_accum_dtype
    if dtype == "auto":
        return
    if s.mixed_precision == "none":
        if dtype != "fp32" or not s.parallel_strategy.may_reduce_in_fp32:
            yield f"grad_accum_dtype is '{dtype}', but mixed_precision is 'none': every number is in bf16; drop it"
    elif s.parallel_strategy.may_reduce_in_fp32:
        yield (
            f"grad_accum_dtype is '{dtype}', but strategy is '{s.strategy}': gradients are in fp32 anyway "
            "unless mixed_precision is 'none'; drop it"
        )
    elif s.precision not in HALF or s.mixed_precision != "native":
        yield f"grad_accum_dtype is '{dtype}': gradients are in fp32 anyway unless half precision is native; drop it"
    elif dtype not in {"fp32", s.precision}:
        yield f"grad_accum_dtype is '{dtype}', but precision is '{s.precision}': use 'fp32' or '{s.precision}'"
    elif dtype == "fp32" and s.zero_stage == 0:
        yield "grad_accum_dtype is 'fp32', but zero_stage is 0: DeepSpeed accumulates in the weights' format there"


def _gradient_checks(s: "Experiment") -> Iterator[str]:
    if s.gradient_checks == "on":
        return
    if s.gradient_clipping:
        yield "gradient_checks is 'off', but gradient_clipping is set: clipping needs the norm; set it to 0"
    elif s.offload != "none":
        yield "gradient_checks is 'off', but offload is set: DeepSpeed needs the norm there; leave the checks on"
    elif s.precision == "fp16":
        yield "gradient_checks is 'off', but precision is 'fp16': its loss scaler needs them; use 'bf16'"
    elif s.zero_stage == 1 and s.numbers.accumulates_in_fp32:
        yield "gradient_checks is 'off', but ZeRO 1 accumulates in fp32, which computes the norm; use ZeRO 2"


def _zeropp(s: "Experiment") -> Iterator[str]:
    if s.zeropp in {"weights", "all"} and s.mixed_precision == "autocast":
        yield f"zeropp is '{s.zeropp}', but mixed_precision is 'autocast': DeepSpeed cannot do both; use 'native'"
    elif s.zeropp in {"gradients", "all"} and s.nodes == 1:
        yield f"zeropp is '{s.zeropp}', but nodes is 1: gradients are quantized between nodes only; use 'weights'"
    elif s.zeropp not in {"none", "partition"} and s.device == "cpu":
        yield f"zeropp is '{s.zeropp}', but device is 'cpu': DeepSpeed quantizes on GPUs only; use 'partition'"


def _padded_vocabulary(s: "Experiment") -> Iterator[str]:
    if s.pad_vocab and s.zero_stage == 3:
        yield f"pad_vocab is {s.pad_vocab}, but zero_stage is 3: weights are partitioned as built; use ZeRO 0 to 2"


def _fp8(s: "Experiment") -> Iterator[str]:
    if s.matmul != "fp8":
        return
    if s.precision != "bf16":
        yield f"matmul is 'fp8', but precision is '{s.precision}': it is tested in bf16 only; use 'bf16'"
    if s.zero_stage == 3:
        yield "matmul is 'fp8', but zero_stage is 3: it is tested with whole weights and FSDP; use ZeRO 0 to 2"
    tokens = s.micro_batch_size * s.seq_len
    if tokens % 16:
        yield f"matmul is 'fp8', but a micro-batch has {tokens} tokens: give it a multiple of 16"


def _nf4(s: "Experiment") -> Iterator[str]:
    if s.frozen_weights == "nf4" and s.zero_stage == 3:
        yield "frozen_weights is 'nf4', but zero_stage is 3: weights are partitioned as built; use strategy 'fsdp'"


def _cuda_graphs(s: "Experiment") -> Iterator[str]:
    """Refuse CUDA graphs where memory that a graph owns would be used after its next replay, or at another address."""
    if s.compile not in CUDA_GRAPHS:
        return
    mode = f"compile is '{s.compile}', which uses CUDA graphs"
    if s.grad_accum > 1:
        yield f"{mode}, but grad_accum is {s.grad_accum}: a graph owns its gradients and overwrites them; use 'default'"
    elif s.parallel_strategy.shards_weights(s):
        who = s.parallel_strategy.label_of(s.zero_stage)
        yield f"{mode}: {who} gathers weights at changing addresses, which a graph cannot; use compile 'default'"
    elif s.tensor_parallel > 1:
        yield f"{mode}, but tensor_parallel is set: its collectives cannot be in a graph; use compile 'default'"
    elif s.checkpoint_offload:
        yield f"{mode}, but checkpoint_offload is on: copies to host memory cannot be in a graph; use 'default'"


def _compiler(s: "Experiment") -> Iterator[str]:
    if s.compile == "deepcompile":
        if not s.parallel_strategy.is_deepspeed or s.zero_stage not in {1, 3}:
            yield "compile is 'deepcompile': it compiles the communication of ZeRO 1 and 3; use zero_stage 1 or 3"
        elif s.device == "cpu":
            yield "compile is 'deepcompile', but device is 'cpu': its kernels need a GPU; use 'default'"
    unit = f"compile_unit is '{s.compile_unit}', but"
    if s.compile_unit != "auto" and s.compile == "off":
        yield f"{unit} compile is 'off': nothing is compiled; set it to 'default'"
    elif s.compile_unit == "block" and s.compile == "deepcompile":
        yield f"{unit} compile is 'deepcompile', which orders communication over the whole model; use 'default'"
    elif s.compile_unit == "block" and s.compile in CUDA_GRAPHS:
        yield f"{unit} compile is '{s.compile}': a CUDA graph is of a whole step; use 'default'"
    if s.leaf_modules == "none" and s.zero_stage == 3 and s.compiles_blocks:
        yield "leaf_modules is 'none', but blocks are compiled one by one: gathers would break graphs; use 'blocks'"


def _loss_chunks(s: "Experiment") -> Iterator[str]:
    if s.loss == "whole":
        return
    is_compiled_by_engine = s.compile != "off" and s.parallel_strategy.is_deepspeed
    is_whole_model = is_compiled_by_engine and not s.compiles_blocks
    if s.pipeline_parallel > 1:
        yield "loss is 'chunked', but pipeline_parallel is set: the last stage computes the loss whole; use 'whole'"
    elif is_whole_model and (s.compile == "deepcompile" or s.zero_stage == 3):
        yield "loss is 'chunked', but the engine compiles the whole model: its gradients are in no graph; use 'whole'"


RULES: list[Rule] = [
    _of_strategy, _beside_others, lambda s: s.parallel_strategy.refusals(s), _optimizer,
    _precision, _ranks, _clipping, _gradients, _gradient_checks, _zeropp, _padded_vocabulary, _fp8, _nf4,
    _cuda_graphs, _compiler, _loss_chunks,
]  # fmt: skip
