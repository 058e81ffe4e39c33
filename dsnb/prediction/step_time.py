"""Predict the time of an optimizer step as a sum of parts: work or traffic of a kind over the rate of its resource.

During the passes, GPU kernels and the launching host overlap, so the slower one counts, and a little more where both
take as long: the host may limit one pass and the GPU the other. The host's work on each tensor in the optimizer's step
is added, because the GPU waits for it. Communication counts as far as it is exposed.

Bytes of communication are those that leave a rank: 2 (n - 1) / n of a message for an all-reduce of n ranks, (n - 1) / n
for a reduce-scatter or an all-gather (Patarasuk and Yuan 2009; NVIDIA's nccl-tests, doc/PERFORMANCE.md).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsnb.base.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.shapes import Mode, shape
from dsnb.prediction.work import gathering_passes, recomputed_share, trained_parameters, work
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import accumulates_in_fp32

LATENCY_S = 20e-6
"""Of one collective: an all-reduce of 8 B on two H200 takes 23 to 44 us, of 1 MiB 22 us (docs/LOG.md)."""
FP32_ATTENTION = 1.2
"""Nominal rate of fused attention in fp32 and tf32, which use the same kernels, over fp32's (docs/LOG.md)."""
TF32_PRODUCTS = 1.1
"""Time of products in tf32 over that of their nominal rate, beyond those in half precision (eight settings)."""
OVERLAP_POWER = 5
"""Power p in (host^p + GPU^p)^(1/p), the time of both passes: 5 fits the measured runs best (docs/LOG.md)."""

HOST_CONSTANTS = ("host_launch_us", "host_parameter_us", "host_gather_us")
HOST_COUNTS = ("host_launches", "host_parameters", "host_gathers")

GRADIENT_BUCKET = 25 * 2**20 / 4
"""DDP's gradients in a message (torch's default, 25 MiB of fp32)."""
ZERO_BUCKET = 5e8
"""Elements in a message of ZeRO (DeepSpeed's default)."""
HOST_LINKS = 2
"""Links to the GPUs that the memory of one host feeds at their whole rate. Two GPUs sent block inputs as fast as one
(`checkpoint_offload`); for more, one link for each of two sockets is assumed."""
HOST_CASTS = 12 / 28
"""Time of casting a weight on the host and copying it unpinned, in updates of a parameter, by the bytes that both move:
ZeRO 3 does that where the weights stay on the GPU."""
POWERSGD_SHARE = 1.4
"""Numbers in PowerSGD's factors of rank 1 over hidden size, for each number of hidden size squared."""


@dataclass(frozen=True)
class Constants:
    """Achieved shares of nominal rates (efficiencies) and host costs; `dsnb.prediction.calibration` fits them."""

    matmul_efficiency: float  # of matrix products, without the time to move their operands
    unaligned_efficiency: float  # of products whose width is not a multiple of 8
    attention_efficiency: float  # of fused attention
    memory_efficiency: float
    kernel_us: float  # of a kernel on the GPU, beyond its bytes and FLOPs
    host_launch_us: float  # of the host, to launch an operation from Python or autograd
    host_parameter_us: (
        float  # of the host, to ask the GPU about one parameter tensor in ZeRO 0's optimizer step
    )
    host_gather_us: float  # of the host, to fetch and free a parameter or block at ZeRO 3
    link_efficiency: float  # inside a node
    network_efficiency: float  # between nodes
    host_link_efficiency: float  # to host memory
    overlap: float  # share of communication beside computation that is hidden
    cpu_parameter_ns: (
        float  # of a host, to update a parameter whose optimizer state is in its memory
    )

    def on_host(self, launch_ratio: float) -> "Constants":
        """Return the constants of a host whose launches take `launch_ratio` times as long, as does all its Python."""
        return replace(
            self, **{name: launch_ratio * getattr(self, name) for name in HOST_CONSTANTS}
        )


DEFAULT = Constants(
    **json.loads(Path(__file__).with_name("constants.json").read_text(encoding="utf-8"))
)
"""Fitted on one to four H200 with a 16-core host, torch 2.11 and DeepSpeed 0.19.8, on the settings that
`python -m benchmarks.prediction_errors` names, but those of 2026-11-24 and later, which are held out;
`python -m benchmarks.prediction_errors fit` fits them again, from the `PRIOR` there. Those of the host are then scaled
to the launch time of the median host, because the hosts of these runs were faster than later ones."""
FITTED_SETTINGS = 253
"""Settings that `DEFAULT` was fitted to."""


@dataclass(frozen=True)
class StepTime:
    """The parts of one optimizer step in seconds: communication is its exposed time, `host_s` the GPU's idle time."""

    matmul_s: float
    attention_s: float
    memory_bound_s: float
    pipeline_bubble_s: float
    all_reduce_s: float
    reduce_scatter_s: float
    all_gather_s: float
    all_to_all_s: float
    tensor_all_reduce_s: float
    point_to_point_s: float
    optimizer_s: float
    offload_s: float
    host_s: float

    @property
    def step_time_s(self) -> float:
        """The sum of all parts."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Setting:
    """Counts of one step of an experiment on a GPU, or of many as arrays, without measured constants.

    Work is that of the busiest rank; traffic is in bytes that leave a rank, bandwidths of its groups in bytes/s.
    """

    peak_flops: float  # rates of the GPU per second, as `GpuSpec` has them: products, fused attention, memory
    attention_flops_per_s: float
    memory_bytes_per_s: float
    matmul_flops: float  # from here on `dsnb.prediction.work`
    matmul_bytes: float  # the operands of matrix products, read and written
    unaligned_flops: float  # products whose width is no multiple of 8 in half precision and that no compiler pads
    attention_flops: float  # fused attention
    elementwise_bytes: (
        float  # the rest of both passes: norms, sums, activations, scores, casts, the loss
    )
    optimizer_bytes: float  # the optimizer's step on the GPU
    kernels: float  # kernels on the GPU in both passes
    host_launches: float  # operations that Python and autograd start one by one in both passes
    host_parameters: float  # tensors that the optimizer's step handles one by one while the GPU waits, by ZeRO's stage
    host_gathers: float  # parameters or blocks that ZeRO 3 or FSDP gathers and frees in Python
    offloaded_activation_bytes: float  # inputs of a rank's blocks to host memory and back
    pipeline_fill: float  # share of its work for which a stage waits: (p - 1) / m
    data_inside: float  # `routes`: in a node, and between nodes; 0 where a route has no such part
    data_network: float
    tensor_inside: float
    tensor_network: float
    pipeline_inside: float
    pipeline_network: float
    host_link: float
    all_reduce: float = 0.0  # `traffic`: this and the next three among data-parallel ranks
    reduce_scatter: float = 0.0
    all_gather: float = 0.0
    all_to_all: float = 0.0
    tensor_all_reduce: float = 0.0  # among tensor-parallel ranks
    point_to_point: float = 0.0  # between pipeline stages
    to_host: float = 0.0  # between the GPU and host memory
    cpu_parameters: float = 0.0  # parameters that one host updates, for all of its ranks
    data_messages: float = 0.0  # collectives, and sends of a pipeline
    tensor_messages: float = 0.0
    pipeline_messages: float = 0.0
    reduction_overlaps: float = (
        0.0  # 1 where reductions run beside the forward and backward passes, else 0
    )
    gather_overlaps: float = 0.0


def setting(experiment: Experiment, gpu: GpuSpec, link: Link) -> Setting:
    """Return the counts of an experiment on a GPU; a SettingsError says why it cannot be predicted."""
    check(experiment, link)
    peak = attention = gpu.peak_flops(experiment.precision)
    if experiment.precision in {"fp32", "tf32"}:  # which no flash kernel takes
        attention = FP32_ATTENTION * gpu.peak_flops("fp32")
    if experiment.precision == "tf32":
        peak /= TF32_PRODUCTS
    counts = work(experiment) | traffic(experiment) | routes(experiment, gpu, link)
    counts["matmul_flops"] += counts.pop("fp32_flops") * peak / gpu.peak_flops("fp32")
    memory = gpu.memory_gb_per_s * 1e9 * gpu.memory_gain
    return Setting(peak * gpu.product_gain, attention * gpu.product_gain, memory, **counts)


def check(experiment: Experiment, link: Link) -> None:
    """Raise SettingsError if an experiment cannot be predicted, as far as that is known without counting its model."""
    if experiment.matmul == "fp8":
        raise SettingsError(
            "matmul is 'fp8': neither its time nor its memory can be predicted; measure it"
        )
    link.check(experiment.gpus, link.nodes(experiment))


def traffic(experiment: Experiment) -> dict[str, float]:
    """Return the traffic of one rank in an optimizer step, in the fields of `Setting`.

    Tensor parallelism has two all-reduces per block and pass (Shoeybi et al. 2019, arXiv:1909.08053). DeepSpeed's
    layers reduce the gradient of each input, also of OPT's queries, keys and values, which share one.
    """
    sent = _data_traffic(experiment) | _offload_traffic(experiment)
    model, ranks = shape(experiment.model), experiment.tensor_parallel
    hidden_states = (
        int(experiment.micro_batch_size)
        * experiment.seq_len
        * model.hidden
        * Mode.of(experiment).width
    )
    if ranks > 1:
        each = model.linear + 2 * recomputed_share(experiment)
        times = experiment.grad_accum * each * model.layers / experiment.pipeline_parallel
        sent |= {
            "tensor_all_reduce": times * hidden_states * 2 * (ranks - 1) / ranks,
            "tensor_messages": times,
        }
    if experiment.pipeline_parallel > 1:
        count = 2 * experiment.grad_accum
        sent |= {"point_to_point": count * hidden_states, "pipeline_messages": count}
    return sent


def routes(experiment: Experiment, gpu: GpuSpec, link: Link) -> dict[str, float]:
    """Return the bandwidths of an experiment's groups; tensor-parallel ranks are neighbours, then data-parallel ones.

    A ring over several nodes enters and leaves each node once, so its members on a node add up their network.
    """
    nodes = link.nodes(experiment)
    node_gpus = max(1, experiment.gpus // nodes)
    split, replicas = experiment.tensor_parallel, experiment.data_parallel

    def route(name: str, members: int, stride: int) -> dict[str, float]:
        on_node = max(1, min(members, node_gpus // stride)) if stride < node_gpus else 1
        inside = link.inside_gb_per_s(gpu, on_node, node_gpus) * 1e9
        network = link.network_gb_per_s * on_node * 1e9 if on_node < members else 0.0
        return {f"{name}_inside": inside, f"{name}_network": network}

    is_within = split * replicas * experiment.pipeline_parallel <= node_gpus
    return {
        **route("data", replicas, split),
        **route("tensor", split, 1),
        "pipeline_inside": link.inside_gb_per_s(gpu, 2, node_gpus) * 1e9,
        "pipeline_network": 0.0 if is_within else link.network_gb_per_s * 1e9,
        "host_link": gpu.pcie_gb_per_s * 1e9 * min(1.0, HOST_LINKS / node_gpus),
    }


def _data_traffic(experiment: Experiment) -> dict[str, float]:
    ranks, count = experiment.data_parallel, experiment.grad_accum
    if ranks == 1 or experiment.strategy == "plain":
        return {}
    model, once = shape(experiment.model), (ranks - 1) / ranks
    model_parallel = experiment.tensor_parallel * experiment.pipeline_parallel
    trained, everything = (
        trained_parameters(experiment) / model_parallel,
        model.parameters / model_parallel,
    )
    weight, gradient = _widths(experiment)
    if experiment.strategy == "fsdp":
        reductions = 1 if experiment.reduce_gradients == "step" else count
        return {
            "all_gather": 2 * count * everything * weight * once,
            "reduce_scatter": reductions * trained * gradient * once,
            "data_messages": (2 * count + reductions) * model.layers,
            "reduction_overlaps": 1.0,
            "gather_overlaps": 1.0,
        }
    if experiment.strategy == "ddp":
        return {
            "all_reduce": trained * gradient * 2 * once,
            "data_messages": trained / (experiment.bucket_elements or GRADIENT_BUCKET) + 1,
            "reduction_overlaps": 1.0,
        }
    if experiment.zero_stage == 3:
        return _zero_3(experiment, trained * once, everything * once)
    # DeepSpeed 0.19.8, engine.allreduce_gradients and zero/stage_1_and_2.average_tensor: ZeRO 0 and 1 reduce at the
    # last micro-batch, ZeRO 2 at each. ZeRO 1 and 2 all-reduce whole buckets (`use_multi_rank_bucket_allreduce`, on by
    # default) where the paper has a reduce-scatter of half the bytes.
    stage, reductions = experiment.zero_stage, count if experiment.zero_stage == 2 else 1
    messages = trained / (experiment.bucket_elements or ZERO_BUCKET) + 1
    return {
        "all_reduce": reductions * trained * gradient * 2 * once,
        "all_gather": trained * weight * once if stage else 0.0,
        "data_messages": (reductions + (stage > 0)) * messages,
        "reduction_overlaps": float(stage in {1, 2} and experiment.overlap_comm == "on"),
    }


def _zero_3(experiment: Experiment, reduced: float, gathered: float) -> dict[str, float]:
    """Return the traffic of ZeRO 3: weights for each pass, unless they are kept, and gradients per micro-batch."""
    weight, gradient = _widths(experiment)
    count, passes = experiment.grad_accum, gathering_passes(experiment)
    sent = 1.0 if experiment.zeropp in {"weights", "all"} else weight
    to_all = experiment.zeropp in {"gradients", "all"}
    return {
        "all_gather": passes * count * gathered * sent,
        "reduce_scatter": 0.0 if to_all else reduced * count * gradient,
        # 4 bits, inside nodes and between them (Wang et al. 2023)
        "all_to_all": reduced * count * 0.5 * 2 if to_all else 0.0,
        "data_messages": (passes + 1) * count * shape(experiment.model).layers * 2,
        "reduction_overlaps": float(experiment.overlap_comm != "off"),
        "gather_overlaps": 1.0,
    }


def _widths(experiment: Experiment) -> tuple[float, float]:
    """Return the bytes of a weight as it is gathered and of a gradient as it is sent (explanation/fairness.md)."""
    mode = Mode.of(experiment)
    if experiment.strategy == "ddp":
        factors = {"bf16": 2.0, "powersgd": 4 * POWERSGD_SHARE * experiment.powersgd_rank}
        sent = factors.get(
            experiment.gradient_compression or "none",
            float(mode.width if experiment.lora_rank else 4),
        )
        if experiment.gradient_compression == "powersgd":
            sent /= shape(experiment.model).hidden
        return 4.0, sent
    if experiment.strategy == "fsdp":
        return float(2 if experiment.precision == "bf16" and not mode.autocast else 4), 4.0
    half_linear = (
        mode.autocast and experiment.zero_stage > 0 and shape(experiment.model).family != "gpt2"
    )
    return float(mode.stream_width), 2.0 if half_linear else float(mode.stream_width)


def _offload_traffic(experiment: Experiment) -> dict[str, float]:
    """Return a rank's traffic to host memory, and the parameters that its host updates.

    The ranks of a host share its memory's bandwidth: one rank with all parameters on 16 cores takes as long as four
    with a quarter each on 64 (OPT-1.3B on H100), so an update costs a host as much for any number of ranks.

    Gradients go down in fp32 (ZeRO 1 and 2) or as they are accumulated (ZeRO 3), and weights up. Where earlier
    gradients are in host memory (ZeRO 2 and 3), each further micro-batch fetches them and sends the sum back. With
    `all`, weights come up for each pass instead.
    """
    offloaded = (experiment.offload or "none").partition("-")[0]
    if offloaded == "none":
        return {}
    shard, count = trained_parameters(experiment) / experiment.gpus, experiment.grad_accum
    weight, gradient = _widths(experiment)
    if experiment.zero_stage == 3:
        accumulated = 4.0 if accumulates_in_fp32(vars(experiment)) else gradient
        moved = (2 * count - 1) * accumulated
    else:
        moved = 4.0 + (
            (2 * count - 1) * gradient if experiment.zero_stage == 2 and count > 1 else 0.0
        )
    moved += 2 * count * weight if offloaded == "all" else weight
    casts = (
        HOST_CASTS
        if offloaded == "optimizer" and experiment.zero_stage == 3 and weight < 4
        else 0.0
    )
    of_host = trained_parameters(experiment) / Link().nodes(experiment)
    return {"to_host": moved * shard, "cpu_parameters": (1 + casts) * of_host}


def problem(experiment: Experiment, gpu: str, link: str) -> str:
    """Return why an experiment cannot be predicted on a known GPU and link; empty if it can."""
    spec, path = gpus.find(gpu), gpus.link(link)
    try:
        setting(experiment, spec, path)
    except SettingsError as error:
        return str(error)
    return ""


def step_times(settings: Sequence[Setting], constants: Constants = DEFAULT) -> StepTime:
    """Return the predicted times of many settings at once: every part is an array of shape (settings,)."""
    return parts(stack(settings), constants)


def stack(settings: Sequence[Setting]) -> Setting:
    """Combine settings into one whose counts are arrays of shape (settings,)."""
    return Setting(*np.array([list(vars(counts).values()) for counts in settings], dtype=float).T)


def parts(counts: Setting, constants: Constants) -> StepTime:
    """Return the parts of a step, numbers or arrays like the counts."""
    c, memory = constants, counts.memory_bytes_per_s * constants.memory_efficiency
    matmul = (
        counts.matmul_flops / (counts.peak_flops * c.matmul_efficiency)
        + counts.matmul_bytes / memory
    )
    matmul = matmul + counts.unaligned_flops / (counts.peak_flops * c.unaligned_efficiency)
    attention = counts.attention_flops / (counts.attention_flops_per_s * c.attention_efficiency)
    elementwise = counts.elementwise_bytes / memory + counts.kernels * c.kernel_us * 1e-6
    # Nothing hides tensor and pipeline parallelism.
    tensor = _seconds(
        counts.tensor_all_reduce,
        counts.tensor_messages,
        counts.tensor_inside,
        counts.tensor_network,
        c,
    )
    p2p = _seconds(
        counts.point_to_point,
        counts.pipeline_messages,
        counts.pipeline_inside,
        counts.pipeline_network,
        c,
    )
    passes = matmul + attention + elementwise + tensor + p2p
    bubble = counts.pipeline_fill * passes
    data, beside = _data_parallel(counts, c, passes)
    optimizer = counts.optimizer_bytes / memory
    launches = (
        counts.host_launches * c.host_launch_us + counts.host_gathers * c.host_gather_us
    ) * 1e-6
    waits = _waits(launches, passes + beside) * (1 + counts.pipeline_fill)
    offload = (counts.to_host + counts.offloaded_activation_bytes) / (
        counts.host_link * c.host_link_efficiency
    )
    return StepTime(
        matmul_s=matmul,
        attention_s=attention,
        memory_bound_s=elementwise,
        pipeline_bubble_s=bubble,
        **data,
        tensor_all_reduce_s=tensor,
        point_to_point_s=p2p,
        optimizer_s=optimizer,
        offload_s=offload + counts.cpu_parameters * c.cpu_parameter_ns * 1e-9,
        host_s=waits + counts.host_parameters * c.host_parameter_us * 1e-6,
    )


def _waits(launches: Any, busy: Any) -> Any:
    """Return the GPU's idle time in both passes, given the times of host and GPU alone."""
    longer = np.maximum(np.maximum(launches, busy), 1e-30)
    both = (launches / longer) ** OVERLAP_POWER + (busy / longer) ** OVERLAP_POWER
    return longer * both ** (1 / OVERLAP_POWER) - busy


def _seconds(sent: Any, messages: Any, inside: Any, network: Any, c: Constants) -> Any:
    """Return latency plus bytes over the slower part of the route; `network` is 0 within a node."""
    across = np.where(np.asarray(network) > 0, network * c.network_efficiency, np.inf)
    rate = np.minimum(inside * c.link_efficiency, across)
    return messages * LATENCY_S + sent / rate


def _data_parallel(counts: Setting, c: Constants, passes: Any) -> tuple[dict[str, Any], Any]:
    """Return the exposed times of data-parallel communication by kind, and those exposed during the passes.

    The share `overlap` of communication during the passes is hidden, at most for their duration.
    """
    sent = counts.all_reduce + counts.reduce_scatter + counts.all_to_all + counts.all_gather
    total = _seconds(sent, counts.data_messages, counts.data_inside, counts.data_network, c)
    each = total / np.maximum(sent, 1.0)  # seconds a byte, latencies shared out
    reducing, gathering = each * (sent - counts.all_gather), each * counts.all_gather
    beside = counts.reduction_overlaps * reducing + counts.gather_overlaps * gathering
    hidden = np.minimum(c.overlap * beside, passes) / np.maximum(beside, 1e-30)
    reduction, gather = (
        each * (1 - counts.reduction_overlaps * hidden),
        each * (1 - counts.gather_overlaps * hidden),
    )
    exposed = {
        "all_reduce_s": counts.all_reduce * reduction,
        "reduce_scatter_s": counts.reduce_scatter * reduction,
        "all_gather_s": counts.all_gather * gather,
        "all_to_all_s": counts.all_to_all * reduction,
    }
    return exposed, beside * (1 - hidden)
