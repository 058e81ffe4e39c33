"""Predict the host memory of a node: the processes of its ranks, and what offload keeps in it.

The rules follow the code of DeepSpeed 0.19.8 and torch 2.11. dsnb asks for pinned memory, and torch's allocator of
pinned memory rounds each request up to a power of two: that is why offload takes 21 to 27 bytes for a parameter, where
weights, gradients, fp32 masters and moments are 16 or 18. Building the model and reading weights are not included.
"""

import math
from typing import NamedTuple

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import HALF, MOMENTS, recomputed_blocks
from dsnb.base.system import hardware
from dsnb.prediction import gpus
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.memory import GIB, SUB_GROUP
from dsnb.prediction.shapes import Mode, shape
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import accumulates_in_fp32

PROCESS_GIB = 1.4
"""Memory of a rank's process: the median of the runs of `h200` and `h100` without offload, nine in ten of which took
1.1 to 2.3. No run with offload went into it."""
PINNED_SHARE = 1 / math.log(2)
"""Mean of the next power of two over a size, for tensors of all sizes: those that are pinned one by one."""
USABLE = 0.95
"""Share of a host's memory that a training may take: the system and the page cache need the rest (an assumption)."""


class HostMemory(NamedTuple):
    """Bytes that one rank holds in host memory."""

    process: float
    optimizer: float = 0  # fp32 masters and moments
    gradients: float = 0
    weights: float = 0  # those in half precision, and buffers that they pass
    activations: float = 0

    @property
    def gib(self) -> float:
        """The sum of all parts in GiB."""
        return sum(self) / GIB


def offloads(experiment: Experiment) -> bool:
    """Return whether a training keeps states or activations in host memory."""
    return experiment.offload != "none" or (
        experiment.activation_checkpointing and experiment.checkpoint_offload
    )


def of_node(experiment: Experiment, link: Link) -> float:
    """Return the GiB that the ranks of the fullest node take; NaN where no rule covers it (NVMe)."""
    ranks = math.ceil(experiment.gpus / link.nodes(experiment))
    return math.nan if experiment.offload.endswith("nvme") else ranks * of_rank(experiment).gib


def of_rank(experiment: Experiment) -> HostMemory:
    """Return what one rank holds in host memory."""
    need = HostMemory(process=PROCESS_GIB * GIB)
    if experiment.activation_checkpointing and experiment.checkpoint_offload:
        need = need._replace(activations=_block_inputs(experiment))
    if experiment.offload == "none":
        return need
    return _zero3(experiment, need) if experiment.zero_stage == 3 else _zero12(experiment, need)


def known_gib(gpu: GpuSpec, given: float | None = None) -> float:
    """Return the memory of each host: as given, or this machine's if it has such GPUs; NaN where it is unknown."""
    if given is not None:
        if not (math.isfinite(given) and given > 0):
            raise SettingsError(f"host_memory is {given!r}: give the GiB of one host, such as 512")
        return float(given)
    return (
        hardware.memory_gib() if any(_is(gpu, card.name) for card in hardware.gpus()) else math.nan
    )


def fits(experiment: Experiment, need_gib: float, has_gib: float) -> bool | None:
    """Return whether a host has the memory that a training needs; None if that is unknown and offload depends on it."""
    if math.isnan(has_gib) or math.isnan(need_gib):
        return None if offloads(experiment) else True
    return need_gib <= USABLE * has_gib


def pinned(size: float) -> float:
    """Return the bytes that torch takes for a pinned tensor (`CachingHostAllocator`): the next power of two."""
    return 2.0 ** math.ceil(math.log2(size)) if size > 0 else 0.0


def _is(gpu: GpuSpec, name: str) -> bool:
    try:
        return gpus.find(name) == gpu
    except SettingsError:
        return False


def _width(experiment: Experiment) -> int:
    """Return the bytes of a weight of the model: autocast and fp32 have fp32 weights."""
    return 2 if experiment.precision in HALF and experiment.mixed_precision == "native" else 4


def _block_inputs(experiment: Experiment) -> float:
    """Return the inputs of recomputed blocks (`torch.autograd.graph.save_on_cpu`), each pinned on its own."""
    model = shape(experiment.model)
    tokens = int(experiment.micro_batch_size) * experiment.seq_len
    each = pinned(tokens * model.hidden * Mode.of(experiment).stream_width)
    return recomputed_blocks(model.layers, experiment.checkpoint_every) * each


def _zero12(experiment: Experiment, need: HostMemory) -> HostMemory:
    """Pin fp32 masters, their gradients and the weights on their way back; moments are not pinned.

    `stage_1_and_2.py`: `single_partition_of_fp32_groups`, `param_buffer_of_bit16_for_cpu_offload_groups` and
    `temp_grad_buffer_for_cpu_offload`, the size of the largest parameter. ZeRO 2 accumulates there, tensor by tensor
    (`accumulated_grads_in_cpu`).
    """
    width, share = _width(experiment), trained_parameters(experiment) / experiment.gpus
    largest = 0.0 if experiment.lora_rank else shape(experiment.model).head
    accumulates = experiment.zero_stage == 2 and experiment.grad_accum > 1
    earlier = PINNED_SHARE * width * share if accumulates else 0.0
    return need._replace(
        optimizer=pinned(4 * share) + MOMENTS * share,
        gradients=pinned(4 * share) + pinned(width * largest) + earlier,
        weights=pinned(width * share),
    )


def _zero3(experiment: Experiment, need: HostMemory) -> HostMemory:
    """Pin gradients twice: in fp32 for each sub-group, and flat as they are accumulated.

    `stage3.py`: `fp32_partitioned_groups_flat` and the moments are not pinned, `subgroup_gradient_buffer` and
    `grad_partitions_flat_buffer` are. Offloaded weights are pinned in one piece
    (`param_groups_fp16_flat_cpu_memory`), after each parameter was by itself (`partition_parameters.py`), which torch
    keeps. Weights that stay on the GPU are cast on the host by sub-group, on their way back.
    """
    width, share = _width(experiment), trained_parameters(experiment) / experiment.gpus
    size = float(experiment.deepspeed.get("zero_optimization.sub_group_size", SUB_GROUP))
    groups, rest = divmod(share, size)
    of_groups = groups * pinned(4 * size) + pinned(4 * rest)
    accumulated = 4 if accumulates_in_fp32(vars(experiment)) else width
    if experiment.offload.startswith("all"):
        every = shape(experiment.model).parameters / experiment.gpus
        weights = pinned(width * share) + PINNED_SHARE * width * every
    else:
        weights = width * min(share, size) if width < 4 else 0.0
    return need._replace(
        optimizer=(4 + MOMENTS) * share,
        gradients=of_groups + pinned(accumulated * share),
        weights=weights,
    )
