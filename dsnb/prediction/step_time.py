"""Predict the time of an optimizer step as a sum of parts: work or traffic of a kind over the rate of its resource.

During the passes, GPU kernels and the launching host overlap, so the slower one counts, and a
little more where both take as long: the host may limit one pass and the GPU the other. The host's
work on each tensor in the optimizer's step is added, because the GPU waits for it. Communication
counts as far as it is exposed.

Bytes of communication are those that leave a rank: 2 (n - 1) / n of a message for an all-reduce of
n ranks, (n - 1) / n for a reduce-scatter or an all-gather (Patarasuk and Yuan 2009; NVIDIA's
nccl-tests, doc/PERFORMANCE.md). The messages of a strategy are its `traffic`
(`dsnb/settings/strategies/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import NF4
from dsnb.prediction import gpus, tuned
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.shapes import shape
from dsnb.prediction.work import (
    WORK,
    quantized_parameters,
    recomputed_share,
    trained_parameters,
    work,
)
from dsnb.settings import known
from dsnb.settings.experiment import Experiment
from dsnb.settings.strategies import ModelSize

HOST_CONSTANTS = ("host_launch_us", "host_parameter_us", "host_gather_us")
SHARES = (
    "matmul_efficiency",
    "unaligned_efficiency",
    "attention_efficiency",
    "memory_efficiency",
    "link_efficiency",
    "network_efficiency",
    "host_link_efficiency",
)
"""Constants that are shares of nominal rates."""
HOST_COUNTS = ("host_launches", "host_parameters", "host_gathers")
STEP = tuned.numbers("step")
ATTENTION_GAINS = tuned.rows(tuned.TUNED["attention_gains"])
HOST_CASTS = 12 / 28
"""Time of casting a weight on the host and copying it unpinned, in updates of a parameter, by the
bytes that both move: ZeRO 3 does that where the weights stay on the GPU."""


@dataclass(frozen=True)
class Constants:
    """Achieved shares of nominal rates (efficiencies) and costs of a host; `tuned.toml` says what each means."""

    matmul_efficiency: float
    unaligned_efficiency: float
    attention_efficiency: float
    memory_efficiency: float
    kernel_us: float
    host_launch_us: float
    host_parameter_us: float
    host_gather_us: float
    link_efficiency: float
    network_efficiency: float
    host_link_efficiency: float
    overlap: float
    cpu_parameter_ns: float

    def on_host(self, launch_ratio: float) -> "Constants":
        """Return the constants of a host whose launches take `launch_ratio` times as long, as does all its Python."""
        changed = {name: launch_ratio * getattr(self, name) for name in HOST_CONSTANTS}
        return replace(self, **changed)

    def slower(self, times: float) -> "Constants":
        """Return the constants of a loop whose steps take `times` as long: all but the latency of messages."""
        changed = {}
        for name, value in vars(self).items():
            if name in SHARES:
                changed[name] = value / times
            elif name != "overlap":
                changed[name] = value * times
        return replace(self, **changed)


DEFAULT = Constants(*tuned.column("constants", "value"))
"""Fitted by `python -m benchmarks.prediction_errors fit`; `dsnb.prediction.calibration` fits
others."""
FITTED_SETTINGS: int = tuned.TUNED["constants"]["settings"]
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
class StepCounts:
    """Counts of one step of an experiment on a GPU, or of many as arrays, without measured constants.

    Work is that of the busiest rank; traffic is in bytes that leave a rank, bandwidths of its
    groups in bytes/s.
    """

    peak_flops: float  # rates of the GPU per second, as `GpuSpec` has them: products, fused attention, memory
    attention_flops_per_s: float
    memory_bytes_per_s: float
    matmul_flops: float  # from here on `dsnb.prediction.work`
    matmul_bytes: float  # the operands of matrix products, read and written
    unaligned_flops: float  # products whose width is no multiple of 8 in half precision and that no compiler pads
    attention_flops: float  # fused attention
    elementwise_bytes: float  # the rest of both passes: norms, sums, scores, casts, the loss
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
    replica_inside: float
    replica_network: float
    host_link: float
    all_reduce: float = 0.0  # `traffic`: from here on of data-parallel ranks, as `Traffic` has it
    reduce_scatter: float = 0.0
    all_gather: float = 0.0
    all_to_all: float = 0.0
    tensor_all_reduce: float = 0.0  # among tensor-parallel ranks
    point_to_point: float = 0.0  # between pipeline stages
    to_host: float = 0.0  # between the GPU and host memory
    cpu_parameters: float = 0.0  # parameters that one host updates, for all of its ranks
    replica_all_reduce: float = 0.0  # between groups that hold copies of one another's shards
    nodes: float = 1.0
    sockets: float = 0.0  # 1 where nodes are connected by sockets, not by RDMA
    data_messages: float = 0.0  # collectives, and sends of a pipeline
    replica_messages: float = 0.0
    tensor_messages: float = 0.0
    pipeline_messages: float = 0.0
    reduction_overlaps: float = 0.0  # 1 where reductions run beside both passes, else 0
    gather_overlaps: float = 0.0


def count_step(
    experiment: Experiment, gpu: GpuSpec, link: Link, masked: bool = False
) -> StepCounts:
    """Return the counts of an experiment on a GPU; a SettingsError says why it cannot be predicted.

    `masked` says that all attention of a measured run had a mask (`dsnb.prediction.work`).
    """
    check(experiment, link)
    peak_flops = gpu.peak_flops(experiment.precision)
    attention_flops = peak_flops
    if experiment.precision in {"fp32", "tf32"}:  # which no flash kernel takes
        attention_flops = STEP.fp32_attention * gpu.peak_flops("fp32")
    if experiment.precision == "tf32":
        peak_flops /= STEP.tf32_products
    counts = work(experiment, masked) | traffic(experiment) | routes(experiment, gpu, link)
    in_fp8 = counts.pop("fp8_flops")
    if in_fp8:
        counts["matmul_flops"] += in_fp8 * peak_flops / (gpu.fp8_flops() * WORK.fp8_efficiency)
    (attention_gain,) = ATTENTION_GAINS.get(gpu.name, [1.0])
    counts["matmul_flops"] += counts.pop("fp32_flops") * peak_flops / gpu.peak_flops("fp32")
    return StepCounts(
        peak_flops=peak_flops * gpu.product_gain,
        attention_flops_per_s=attention_flops * gpu.product_gain * attention_gain,
        memory_bytes_per_s=gpu.memory_gb_per_s * 1e9 * gpu.memory_gain,
        **counts,
    )


def check(experiment: Experiment, link: Link) -> None:
    """Raise SettingsError if an experiment cannot be predicted, as far as that is known without counting its model."""
    known.check(experiment)
    link.check(experiment.gpus, link.nodes(experiment))


def traffic(experiment: Experiment) -> dict[str, float]:
    """Return the traffic of one rank in an optimizer step, in the fields of `StepCounts`.

    Tensor parallelism has two all-reduces per block and pass (Shoeybi et al. 2019,
    arXiv:1909.08053). DeepSpeed's layers reduce the gradient of each input, also of OPT's queries,
    keys and values, which share one; torch's strategies do it together.
    """
    model = shape(experiment.model)
    trained = trained_parameters(experiment)
    undivided = model.parameters - model.layers * model.weights
    # Weights of 4 bits are gathered as such.
    parameters = model.parameters
    if experiment.frozen_weights == "nf4":  # weights of 4 bits are gathered as such
        less = 1 - NF4 / experiment.numbers.computed_bytes
        parameters -= less * quantized_parameters(experiment)
    size = ModelSize(parameters, trained, model.layers, model.hidden, model.family, undivided)
    sent = dict(vars(experiment.parallel_strategy.traffic(experiment, size)))
    sent |= _offload_traffic(experiment, size)
    tokens = experiment.micro_batch_tokens
    hidden_states = tokens * model.hidden * experiment.numbers.computed_bytes
    ranks = experiment.tensor_parallel
    if ranks > 1:
        of_passes = 4 if experiment.parallel_strategy.shares_split_inputs else model.linear
        of_block = of_passes + 2 * recomputed_share(experiment)
        blocks = model.layers / experiment.pipeline_parallel
        reductions = experiment.grad_accum * of_block * blocks
        sent["tensor_all_reduce"] = reductions * hidden_states * 2 * (ranks - 1) / ranks
        sent["tensor_messages"] = reductions
    if experiment.pipeline_parallel > 1:
        sends = 2 * experiment.grad_accum
        sent["point_to_point"] = sends * hidden_states
        sent["pipeline_messages"] = sends
    return sent


def _offload_traffic(experiment: Experiment, size: ModelSize) -> dict[str, float]:
    """Return a rank's traffic to host memory, and the parameters that its host updates.

    The ranks of a host share its memory's bandwidth: one rank with all parameters on 16 cores takes
    as long as four with a quarter each on 64 (OPT-1.3B on H100), so an update costs a host as much
    for any number of ranks.

    Gradients go down in fp32 (ZeRO 1 and 2) or as they are accumulated (ZeRO 3), and weights up.
    Where earlier gradients are in host memory (ZeRO 2 and 3), each further micro-batch fetches them
    and sends the sum back. With `all`, weights come up for each pass instead.
    """
    offloaded = experiment.offload.partition("-")[0]
    if offloaded == "none":
        return {}
    strategy = experiment.parallel_strategy
    weight = strategy.gathered_bytes(experiment)
    gradient = strategy.reduced_bytes(experiment, size)
    count = experiment.grad_accum
    stage = experiment.zero_stage
    moved = 4.0
    if stage == 3:
        accumulated = 4.0 if experiment.numbers.accumulates_in_fp32 else gradient
        moved = (2 * count - 1) * accumulated
    elif stage == 2 and count > 1:
        moved += (2 * count - 1) * gradient
    moved += 2 * count * weight if offloaded == "all" else weight
    updated = size.trained / Link().nodes(experiment)
    if offloaded == "optimizer" and stage == 3 and weight < 4:
        updated *= 1 + HOST_CASTS
    return {"to_host": moved * size.trained / experiment.gpus, "cpu_parameters": updated}


def routes(experiment: Experiment, gpu: GpuSpec, link: Link) -> dict[str, float]:
    """Return the bandwidths of an experiment's groups.

    Tensor-parallel ranks are neighbours, then those that share shards, then groups with copies.
    A ring over several nodes enters and leaves each node once, so its members on a node add up
    their network.
    """
    node_gpus = max(1, experiment.gpus // link.nodes(experiment))
    split = experiment.tensor_parallel
    network = link.of_gpu_gb_per_s(node_gpus) * 1e9

    is_one_node = split * experiment.data_parallel * experiment.pipeline_parallel <= node_gpus
    bandwidths = {
        "nodes": float(link.nodes(experiment)),
        "sockets": float(link.sockets),
        "pipeline_inside": _inside(gpu, link, 2, node_gpus),
        "pipeline_network": 0.0 if is_one_node else network,
        "host_link": gpu.pcie_gb_per_s * 1e9 * min(1.0, STEP.host_links / node_gpus),
    }
    shared = experiment.shard_ranks
    replicas = experiment.data_parallel // shared
    groups = [("tensor", split, 1), ("data", shared, split), ("replica", replicas, split * shared)]
    for name, members, stride in groups:
        on_node = max(1, min(members, node_gpus // stride))
        bandwidths[f"{name}_inside"] = _inside(gpu, link, on_node, node_gpus)
        bandwidths[f"{name}_network"] = 0.0 if on_node == members else network * on_node
    return bandwidths


def _inside(gpu: GpuSpec, link: Link, members: int, node_gpus: int) -> float:
    """Return a GPU's bandwidth to others of its node in bytes/s.

    Collectives over PCIe reach less of it than those over NVLink: between sockets, and between
    cards without access to each other's memory, they go through the memory of the host.
    """
    rate = link.inside_gb_per_s(gpu, members, node_gpus) * 1e9
    if not link.nvlink or not gpu.nvlink_gb_per_s:
        rate *= STEP.pcie_share
    return rate


def problem(experiment: Experiment, gpu: str | GpuSpec, link: str) -> str:
    """Return why an experiment cannot be predicted on a GPU and link; empty if it can."""
    spec = gpus.find(gpu)
    path = gpus.link(link)
    try:
        count_step(experiment, spec, path)
    except SettingsError as error:
        return str(error)
    return ""


def step_times(settings: Sequence[StepCounts], constants: Constants = DEFAULT) -> StepTime:
    """Return the predicted times of many settings at once: every part is an array of shape (settings,)."""
    return parts(stack(settings), constants)


def stack(settings: Sequence[StepCounts]) -> StepCounts:
    """Combine settings into one whose counts are arrays of shape (settings,)."""
    return StepCounts(
        *np.array([list(vars(counts).values()) for counts in settings], dtype=float).T
    )


def parts(counts: StepCounts, constants: Constants) -> StepTime:
    """Return the parts of a step, numbers or arrays like the counts."""
    c = constants
    slower = _slowest_node(counts.nodes)
    memory = counts.memory_bytes_per_s * c.memory_efficiency
    products = counts.matmul_flops / (counts.peak_flops * c.matmul_efficiency)
    unaligned = counts.unaligned_flops / (counts.peak_flops * c.unaligned_efficiency)
    matmul = slower * (products + counts.matmul_bytes / memory + unaligned)
    attention = counts.attention_flops / (counts.attention_flops_per_s * c.attention_efficiency)
    attention = slower * attention
    elementwise = counts.elementwise_bytes / memory + counts.kernels * c.kernel_us * 1e-6
    elementwise = slower * elementwise
    # Nothing hides tensor and pipeline parallelism.
    tensor = _seconds(counts, "tensor", counts.tensor_all_reduce, c)
    p2p = _seconds(counts, "pipeline", counts.point_to_point, c)
    passes = matmul + attention + elementwise + tensor + p2p
    exposed, beside = _data_parallel(counts, c, passes)
    launches_us = counts.host_launches * c.host_launch_us + counts.host_gathers * c.host_gather_us
    waits = _waits(launches_us * 1e-6, passes + beside) * (1 + counts.pipeline_fill)
    transferred = counts.to_host + counts.offloaded_activation_bytes
    offload = transferred / (counts.host_link * c.host_link_efficiency)
    return StepTime(
        matmul_s=matmul,
        attention_s=attention,
        memory_bound_s=elementwise,
        pipeline_bubble_s=counts.pipeline_fill * passes,
        **exposed,
        tensor_all_reduce_s=tensor,
        point_to_point_s=p2p,
        optimizer_s=counts.optimizer_bytes / memory,
        offload_s=offload + counts.cpu_parameters * c.cpu_parameter_ns * 1e-9,
        host_s=waits + counts.host_parameters * c.host_parameter_us * 1e-6,
    )


def _waits(launches: Any, busy: Any) -> Any:
    """Return the GPU's idle time in both passes, given the times of host and GPU alone."""
    power = STEP.overlap_power
    longer = np.maximum(np.maximum(launches, busy), 1e-30)
    both = (launches / longer) ** power + (busy / longer) ** power
    return longer * both ** (1 / power) - busy


def _seconds(counts: StepCounts, group: str, sent: Any, c: Constants) -> Any:
    """Return the time of a group's messages: latency, and bytes over the slower part of its route."""
    inside, waiting = _inside_and_waiting(counts, group, sent, c)
    return inside + waiting


def _inside_and_waiting(counts: StepCounts, group: str, sent: Any, c: Constants) -> tuple[Any, Any]:
    """Return the time that a group's messages would take inside a node, and the time that they wait for the network.

    NCCL forms rings that enter each node once, so all members on a node share its network, and
    trees of nodes. A collective takes the slower of both parts, and a latency for each hop between
    nodes.
    """
    messages = getattr(counts, f"{group}_messages")
    inside = sent / (getattr(counts, f"{group}_inside") * c.link_efficiency)
    network = np.asarray(getattr(counts, f"{group}_network"))
    by_sockets = np.asarray(counts.sockets) > 0
    efficiency = np.where(by_sockets, STEP.socket_efficiency, c.network_efficiency)
    hop_s = np.where(by_sockets, STEP.socket_hop_s, STEP.hop_s)
    across = np.where(network > 0, network * efficiency, np.inf)
    hops = np.where(network > 0, _hops(counts, group), 0.0)
    crossing = sent
    if group == "data":
        crossing = sent - _saved_by_tree(counts, sent)
    waiting = np.maximum(0.0, crossing / across - inside) + messages * hops * hop_s
    return messages * STEP.latency_s + inside, waiting


def _saved_by_tree(counts: StepCounts, sent: Any) -> Any:
    """Return the bytes of large all-reduces that do not cross a network of sockets between two nodes.

    A ring of N ranks on two nodes sends 2 (N - 1) / N of the gradients through the network, a tree
    sends them once each way. NCCL took the tree for messages of 64 MiB, the ring for 32.
    """
    message = sent / np.maximum(counts.data_messages, 1.0)
    by_tree = (counts.sockets > 0) & (counts.nodes == 2) & (message > STEP.tree_message_bytes)
    return np.where(by_tree, counts.all_reduce * (1 - 1 / STEP.tree_gain), 0.0)


def _hops(counts: StepCounts, group: str) -> Any:
    """Return the hops between nodes of a message: nodes of a ring, or twice the depth of a tree for an all-reduce.

    A tree needs fewer (NCCL 2.4), but only all-reduces have one. Messages of a step are taken to
    be of one size.
    """
    ring = counts.nodes
    tree = 2 * np.ceil(np.log2(np.maximum(ring, 1.0)))
    if group == "replica":  # nothing but all-reduces
        return tree
    if group != "data":
        return ring
    reduced = counts.all_reduce / 2
    others = counts.reduce_scatter + counts.all_gather + counts.all_to_all
    by_tree = reduced / np.maximum(reduced + others, 1.0)
    return by_tree * tree + (1 - by_tree) * ring


def _data_parallel(counts: StepCounts, c: Constants, passes: Any) -> tuple[dict[str, Any], Any]:
    """Return the exposed times of data-parallel communication by kind, and those exposed during the passes.

    Of communication during the passes, the share `overlap` of its time inside a node is hidden,
    where it takes compute units and memory bandwidth from the passes, and `network_overlap` of the
    time that it waits for the network; both together at most for the duration of the passes.
    """
    reduced = counts.all_reduce + counts.reduce_scatter + counts.all_to_all
    sent = np.maximum(reduced + counts.all_gather, 1.0)
    inside, waiting = _inside_and_waiting(counts, "data", sent, c)
    inside_replicas, waiting_replicas = _inside_and_waiting(
        counts, "replica", counts.replica_all_reduce, c
    )
    per_byte = (inside + waiting) / sent
    between = inside_replicas + waiting_replicas
    during = counts.reduction_overlaps * reduced + counts.gather_overlaps * counts.all_gather
    beside = per_byte * during + counts.reduction_overlaps * between
    hideable_inside = inside * during / sent + counts.reduction_overlaps * inside_replicas
    hideable_waiting = waiting * during / sent + counts.reduction_overlaps * waiting_replicas
    hideable = c.overlap * hideable_inside + STEP.network_overlap * hideable_waiting
    hidden = np.minimum(hideable, passes) / np.maximum(beside, 1e-30)
    reduction = per_byte * (1 - counts.reduction_overlaps * hidden)
    gather = per_byte * (1 - counts.gather_overlaps * hidden)
    of_replicas = between * (1 - counts.reduction_overlaps * hidden)
    exposed = {
        "all_reduce_s": counts.all_reduce * reduction + of_replicas,
        "reduce_scatter_s": counts.reduce_scatter * reduction,
        "all_gather_s": counts.all_gather * gather,
        "all_to_all_s": counts.all_to_all * reduction,
    }
    return exposed, beside * (1 - hidden)


def _slowest_node(nodes: Any) -> Any:
    """Return how much longer the slowest of some nodes takes than one: all others wait for it in each step.

    Delays of a node are taken to be exponentially distributed, so that the longest of n grows with
    the logarithm of n.
    """
    return 1 + STEP.node_delay * np.log(np.maximum(nodes, 1.0))
