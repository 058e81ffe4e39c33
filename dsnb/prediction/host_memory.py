"""Predict the host memory of a node: the processes of its ranks, and what offload keeps in it.

The rules follow the code of DeepSpeed 0.19.8 and torch 2.11. dsnb asks for pinned memory, and
torch's allocator of pinned memory rounds each request up to a power of two: that is why offload
takes 21 to 27 bytes for a parameter, where weights, gradients, fp32 masters and moments are 16 or
18. Building the model and reading weights are not included.
"""

import math

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import MOMENTS, MemoryParts, recomputed_blocks
from dsnb.base.system import hardware
from dsnb.base.system.hardware import GIB
from dsnb.prediction import gpus, tuned
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.shapes import shape
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment
from dsnb.settings.framework_defaults import zero_number

HOST = tuned.numbers("host_memory")
PROCESS_GIB: float = HOST.process_gib
USABLE: float = HOST.usable
"""Share of a host's memory that a training may take."""
PINNED_SHARE = 1 / math.log(2)
"""Mean of the next power of two over a size, for tensors of all sizes: those that are pinned one by
one."""


def offloads(experiment: Experiment) -> bool:
    """Return whether a training keeps states or activations in host memory."""
    return experiment.offload != "none" or offloads_inputs(experiment)


def offloads_inputs(experiment: Experiment) -> bool:
    """Return whether a training keeps the inputs of recomputed blocks in host memory."""
    return experiment.activation_checkpointing and experiment.checkpoint_offload


def of_node(experiment: Experiment, link: Link) -> float:
    """Return the GiB that the ranks of the fullest node take; NaN where no rule covers it (NVMe)."""
    if experiment.offload.endswith("nvme"):
        return math.nan
    ranks = math.ceil(experiment.gpus / link.nodes(experiment))
    return ranks * of_rank(experiment).gib


def of_rank(experiment: Experiment) -> MemoryParts:
    """Return the bytes that one rank holds in host memory; its process is in the buffers."""
    need = MemoryParts(buffers=PROCESS_GIB * GIB)
    if offloads_inputs(experiment):
        need = need.plus(activations=_block_inputs(experiment))
    if experiment.offload == "none":
        return need
    rule = _zero3 if experiment.zero_stage == 3 else _zero12
    return rule(experiment, need)


def known_gib(gpu: GpuSpec, given: float | None = None) -> float:
    """Return the memory of each host: as given, or this machine's if it has such GPUs; NaN where it is unknown."""
    if given is not None:
        if not (math.isfinite(given) and given > 0):
            raise SettingsError(f"host_memory is {given!r}: give the GiB of one host, such as 512")
        return float(given)
    has_such = any(gpus.known_gpu(card.name) == gpu for card in hardware.gpus())
    return hardware.memory_gib() if has_such else math.nan


def fits(experiment: Experiment, need_gib: float, has_gib: float) -> bool | None:
    """Return whether a host has the memory that a training needs; None if that is unknown and offload depends on it."""
    if math.isnan(has_gib) or math.isnan(need_gib):
        return None if offloads(experiment) else True
    return need_gib <= USABLE * has_gib


def pinned(size: float) -> float:
    """Return the bytes that torch takes for a pinned tensor (`CachingHostAllocator`): the next power of two."""
    if size > 0:
        return 2.0 ** math.ceil(math.log2(size))
    return 0.0


def _block_inputs(experiment: Experiment) -> float:
    """Return the inputs of recomputed blocks (`torch.autograd.graph.save_on_cpu`), each pinned on its own."""
    model = shape(experiment.model)
    tokens = experiment.micro_batch_tokens
    each = pinned(tokens * model.hidden * experiment.numbers.stream_bytes)
    return recomputed_blocks(model.layers, experiment.checkpoint_every) * each


def _zero12(experiment: Experiment, need: MemoryParts) -> MemoryParts:
    """Pin fp32 masters, their gradients and the weights on their way back; moments are not pinned.

    `stage_1_and_2.py`: `single_partition_of_fp32_groups`,
    `param_buffer_of_bit16_for_cpu_offload_groups` and `temp_grad_buffer_for_cpu_offload`, the size
    of the largest parameter. ZeRO 2 accumulates there, tensor by tensor
    (`accumulated_grads_in_cpu`).
    """
    width = experiment.numbers.trained_bytes
    share = trained_parameters(experiment) / experiment.gpus
    largest = 0.0 if experiment.lora_rank else shape(experiment.model).head
    gradients = pinned(4 * share) + pinned(width * largest)
    if experiment.zero_stage == 2 and experiment.grad_accum > 1:
        gradients += PINNED_SHARE * width * share
    optimizer = pinned(4 * share) + MOMENTS * share
    return need.plus(optimizer=optimizer, gradients=gradients, weights=pinned(width * share))


def _zero3(experiment: Experiment, need: MemoryParts) -> MemoryParts:
    """Pin gradients twice: in fp32 for each sub-group, and flat as they are accumulated.

    `stage3.py`: `fp32_partitioned_groups_flat` and the moments are not pinned,
    `subgroup_gradient_buffer` and `grad_partitions_flat_buffer` are. Offloaded weights are pinned
    in one piece (`param_groups_fp16_flat_cpu_memory`), after each parameter was by itself
    (`partition_parameters.py`), which torch keeps. Weights that stay on the GPU are cast on the
    host by sub-group, on their way back.
    """
    numbers = experiment.numbers
    width = numbers.trained_bytes
    share = trained_parameters(experiment) / experiment.gpus
    size = zero_number(experiment, "sub_group_size")
    groups, rest = divmod(share, size)
    of_groups = groups * pinned(4 * size) + pinned(4 * rest)
    weights = 0.0
    if experiment.offload.startswith("all"):
        every = shape(experiment.model).parameters / experiment.gpus
        weights = pinned(width * share) + PINNED_SHARE * width * every
    elif numbers.masters:
        weights = width * min(share, size)
    gradients = of_groups + pinned(numbers.accumulated_bytes * share)
    return need.plus(optimizer=(4 + MOMENTS) * share, gradients=gradients, weights=weights)
