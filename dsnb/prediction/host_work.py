"""What the host does in a step, in counts: operations it starts, parameters it goes through, weights it gathers."""

from dsnb.prediction.mode import LINEAR_LAYERS, TENSORS, Mode, recomputed_share, shape, trained_parameters
from dsnb.settings.derived import CUDA_GRAPHS, compiles_blocks
from dsnb.settings.experiment import Experiment

# Python that DeepSpeed and torch run beside the model's own, in launches or gathers of about the same duration. From
# differences in docs/LOG.md: ZeRO 1 with CUDA graphs takes 13.8 ms more than ZeRO 0 for GPT-2's 148 tensors but 6.8 ms
# for OPT-350M's 388, because its hooks run while the GPU is busy; DDP is split at each bucket; FSDP on one GPU.
HOOK_LAUNCHES = 3.5
IDLE_HOOK_LAUNCHES = 0.2
CAST_LAUNCHES = 0.3  # autocast's are started in C++
SPLIT_LAUNCHES = 40.0
COMPILED_LAUNCHES = 0.85  # of the eager ones: the plain loop of GPT-2, 32 x 128, takes 13.8 ms, with CUDA graphs 10.0
TENSOR_LAUNCHES = 8.0  # GPT-1.3B, 1 x 2048: 96 reductions take 34 ms more than one GPU's passes
BLOCK_LAUNCHES = 12.0  # where blocks are compiled one by one
RECOMPUTED_LAUNCHES = 30.0  # GPT-2 medium, 8 x 1024: 12 more recomputed blocks take 17 and 35 ms on two hosts
FSDP_GATHER = 8.0
BLOCK_GATHER = 2.0
FLAT, FLAT_WITH_NORMS = 0.13, 0.35  # in parameters of ZeRO 0, as the next one
ZERO3_PARAMETER = 1.5
ADAFACTOR_TENSOR = 1.2  # torch 2.11 waits for two norms of each: GPT-2 Large and BLOOM-1B7 with LoRA, docs/LOG.md
KEPT_PARAMETERS = 1e9
"""DeepSpeed's default for the parameters that ZeRO 3 holds at once."""


def launches(experiment: Experiment, mode: Mode, launched: float, casts: float) -> float:
    """Return what the host starts in a micro-batch: each kernel, or what a compiler leaves of them.

    Parameters
    ----------
    launched, casts
        Kernels of the passes, and those of autocast.
    """
    launched += CAST_LAUNCHES * casts + _tensor_parallel(experiment)
    if experiment.compile in CUDA_GRAPHS:
        return 5.0
    if mode.kind != "compiled":
        return launched
    parts = COMPILED_LAUNCHES * launched
    if compiles_blocks(experiment.model_dump()):
        each = BLOCK_LAUNCHES + RECOMPUTED_LAUNCHES * recomputed_share(experiment)
        parts += each * shape(experiment.model).layers / experiment.pipeline_parallel
    if experiment.strategy == "ddp" and experiment.gpus > 1:
        bucket = experiment.bucket_elements or 25 * 2**20 / 4
        parts += SPLIT_LAUNCHES * trained_parameters(experiment) / bucket
    return parts


def _tensor_parallel(experiment: Experiment) -> float:
    """Return what DeepSpeed does in Python for the two reductions of a block and pass, in launches."""
    if experiment.tensor_parallel == 1:
        return 0.0
    blocks = shape(experiment.model).layers / experiment.pipeline_parallel
    return TENSOR_LAUNCHES * 2 * blocks * (2 + recomputed_share(experiment))


def hook_launches(experiment: Experiment) -> float:
    """Return what ZeRO's hooks of each gradient do in Python in an optimizer step, in launches.

    ZeRO 2 and 3 move every micro-batch's gradients into buckets, ZeRO 1 only the last one's (DeepSpeed 0.19.8,
    `reduce_ready_partitions_and_remove_grads`); a hook runs for each gradient all the same.
    """
    if experiment.strategy != "deepspeed" or not experiment.zero_stage:
        return 0.0
    moved = 1 if experiment.zero_stage == 1 else experiment.grad_accum
    each = HOOK_LAUNCHES * moved + IDLE_HOOK_LAUNCHES * (experiment.grad_accum - moved)
    return each * _own_tensors(experiment)


def _own_tensors(experiment: Experiment) -> float:
    """Return the trained parameter tensors of a pipeline stage."""
    model = shape(experiment.model)
    whole = model.layers * TENSORS.get(model.family, 12) + 4
    if experiment.lora_rank:
        whole = 2 * model.layers * LINEAR_LAYERS.get(model.family, 4)
    return whole / experiment.pipeline_parallel


def parameters(experiment: Experiment, mode: Mode) -> float:
    """Return the parameter tensors that DeepSpeed's step goes through in Python, weighted by what it does to each.

    ZeRO 0 asks the GPU for overflows of each tensor in native half precision. ZeRO 1 and 2 handle flat buffers, but
    take norms of each tensor unless `gradient_checks` is off. ZeRO 3 partitions, takes norms and copies each.
    Adafactor waits for the norms of each tensor, unless ZeRO has made them flat.
    """
    native = mode.width == 2 and not mode.autocast
    weight = 0.0
    if experiment.strategy == "deepspeed":
        flat = FLAT_WITH_NORMS if experiment.gradient_checks == "on" else FLAT
        weight = {0: 1.0 if native else 0.0, 1: flat, 2: flat, 3: ZERO3_PARAMETER}[experiment.zero_stage]
    is_flat = experiment.strategy == "deepspeed" and (experiment.zero_stage > 0 or native)
    if experiment.optimizer == "adafactor" and not is_flat:
        weight += ADAFACTOR_TENSOR
    return weight * _own_tensors(experiment)


def gathers(experiment: Experiment, mode: Mode, layers: float, again: float) -> float:
    """Return what ZeRO 3 fetches in Python in a micro-batch: parameters, or blocks where these are its leaves."""
    gathered = experiment.strategy == "deepspeed" and experiment.zero_stage == 3
    if not gathered:
        return FSDP_GATHER * layers * (2 + again) if experiment.strategy == "fsdp" else 0.0
    whole = experiment.leaf_modules == "blocks" or (experiment.leaf_modules == "auto" and mode.kind == "compiled")
    each = BLOCK_GATHER if whole else TENSORS.get(shape(experiment.model).family, 12)
    return layers * each * (gathering_passes(experiment) + again)


def gathering_passes(experiment: Experiment) -> float:
    """Return how often ZeRO 3 gathers a weight in a micro-batch: twice, less the share that it keeps in between.

    It keeps `stage3_max_live_parameters` at most, and those used again within `stage3_max_reuse_distance`.
    """
    most = (f"zero_optimization.stage3_max_{name}" for name in ("live_parameters", "reuse_distance"))
    kept = min(float(experiment.deepspeed.get(name, KEPT_PARAMETERS)) for name in most)
    return 2 - min(1.0, kept / shape(experiment.model).parameters)
