"""The time of an optimizer step as a sum of parts, each the work or traffic of a kind over the rate of its resource.

The GPU's kernels and the host that launches them run side by side in the passes, so whichever takes longer counts. What
the host does to each tensor in the optimizer's step is added: the GPU waits for it. Communication counts as far as
nothing hides it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dsnb.errors import SettingsError
from dsnb.prediction import communication, gpus
from dsnb.prediction.communication import Routes, Traffic
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.work import Work, work
from dsnb.settings.experiment import Experiment

LATENCY_S = 20e-6
"""Of one collective: an all-reduce of 8 B on two H200 takes 23 to 44 us, of 1 MiB 22 us (docs/LOG.md)."""

TF32_ATTENTION = 2.0
"""Nominal rate of fused attention in tf32 over that of fp32 (BLOOM-560M, 2 x 1024 and 16 x 1024; docs/LOG.md)."""


@dataclass(frozen=True)
class StepTime:
    """The parts of one optimizer step in seconds, which sum to `step_time_s`.

    Communication is what is not hidden behind computation, by kind; `host_s` is what the GPU waits for the host.
    """

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
class Rates:
    """The nominal rates of a GPU for an experiment, per second."""

    flops: float
    attention: float
    memory: float


@dataclass(frozen=True)
class Setting:
    """All counts of one experiment on a GPU, or of many as arrays; no constant that was measured."""

    work: Work
    traffic: Traffic
    routes: Routes
    rates: Rates


Part = TypeVar("Part")


def setting(experiment: Experiment, gpu: GpuSpec, link: Link) -> Setting:
    """Return the counts of an experiment on a GPU.

    Raises
    ------
    SettingsError
        If the model is unknown, the micro-batch is `auto`, or several nodes have no network.
    """
    if experiment.micro_batch_size == "auto":
        raise SettingsError("micro_batch_size is 'auto': a step time is predicted for a number")
    peak = attention = gpu.peak_flops(experiment.precision)
    if experiment.precision == "tf32":  # no flash kernel takes tf32, and the other one is slower
        attention = min(peak, TF32_ATTENTION * gpu.peak_flops("fp32"))
    routes = communication.routes(experiment, gpu, link)
    rates = Rates(peak, attention, gpu.memory_gb_per_s * 1e9)
    return Setting(work(experiment), communication.traffic(experiment), routes, rates)


def problem(experiment: Experiment, gpu: str, link: str) -> str:
    """Return why an experiment cannot be predicted on a GPU; empty if nothing speaks against it.

    Raises
    ------
    SettingsError
        If GPU or link are unknown.
    """
    kind, path = gpus.find(gpu), gpus.link(link)
    try:
        setting(experiment, kind, path)
    except SettingsError as error:
        return str(error)
    return ""


def step_times(settings: Sequence[Setting], constants: Constants = DEFAULT) -> StepTime:
    """Return the predicted times of many settings at once: every part is an array of shape (settings,)."""
    return parts(stack(settings), constants)


def stack(settings: Sequence[Setting]) -> Setting:
    """Return many settings as one, whose counts are arrays of shape (settings,)."""

    def stacked(items: list[Part]) -> Part:
        return type(items[0])(*np.array([list(vars(item).values()) for item in items], dtype=float).T)

    kinds = ([getattr(one, name) for one in settings] for name in Setting.__dataclass_fields__)
    return Setting(*map(stacked, kinds))


def parts(one: Setting, constants: Constants) -> StepTime:
    """Return the parts of a step, numbers or arrays like the counts of `one`."""
    w, c, memory = one.work, constants, one.rates.memory * constants.memory_efficiency
    matmul = w.matmul_flops / (one.rates.flops * c.matmul_efficiency) + w.matmul_bytes / memory
    matmul = matmul + w.unaligned_flops / (one.rates.flops * c.unaligned_efficiency)
    attention = w.attention_flops / (one.rates.attention * c.attention_efficiency)
    elementwise = w.elementwise_bytes / memory + w.kernels * c.kernel_us * 1e-6
    t, r = one.traffic, one.routes  # nothing hides tensor and pipeline parallelism
    tensor = _seconds(t.tensor_all_reduce, t.tensor_messages, r.tensor_inside, r.tensor_network, c)
    point = _seconds(t.point_to_point, t.pipeline_messages, r.pipeline_inside, r.pipeline_network, c)
    passes = matmul + attention + elementwise + tensor + point
    bubble = w.pipeline_fill * passes
    data, beside = _data_parallel(one, c, passes)
    optimizer = w.optimizer_bytes / memory
    launches = (w.host_launches * c.host_launch_us + w.host_gathers * c.host_gather_us) * 1e-6
    waits = np.maximum(launches - passes - beside, 0) * (1 + w.pipeline_fill)
    offload = (t.host + w.offloaded_activation_bytes) / (r.host * c.host_link_efficiency)
    return StepTime(
        matmul_s=matmul,
        attention_s=attention,
        memory_bound_s=elementwise,
        pipeline_bubble_s=bubble,
        **data,
        tensor_all_reduce_s=tensor,
        point_to_point_s=point,
        optimizer_s=optimizer,
        offload_s=offload + t.cpu_parameters * c.cpu_parameter_ns * 1e-9,
        host_s=waits + w.host_parameters * c.host_parameter_us * 1e-6,
    )


def _seconds(sent: Any, messages: Any, inside: Any, network: Any, c: Constants) -> Any:
    """Return latency plus bytes over the slower part of the route; `network` is 0 within a node."""
    across = np.where(np.asarray(network) > 0, network * c.network_efficiency, np.inf)
    rate = np.minimum(inside * c.link_efficiency, across)
    return messages * LATENCY_S + sent / rate


def _data_parallel(one: Setting, c: Constants, passes: Any) -> tuple[dict[str, Any], Any]:
    """Return the exposed times of data-parallel communication by kind, and how much of it is beside the passes.

    The share `overlap` of what runs beside the passes is hidden, at most as much as they take.
    """
    t, r = one.traffic, one.routes
    sent = t.all_reduce + t.reduce_scatter + t.all_to_all + t.all_gather
    total = _seconds(sent, t.data_messages, r.data_inside, r.data_network, c)
    each = total / np.maximum(sent, 1.0)  # seconds a byte, latencies shared out
    reducing, gathering = each * (sent - t.all_gather), each * t.all_gather
    beside = t.reduction_overlaps * reducing + t.gather_overlaps * gathering
    hidden = np.minimum(c.overlap * beside, passes) / np.maximum(beside, 1e-30)
    reduction, gather = each * (1 - t.reduction_overlaps * hidden), each * (1 - t.gather_overlaps * hidden)
    exposed = {
        "all_reduce_s": t.all_reduce * reduction,
        "reduce_scatter_s": t.reduce_scatter * reduction,
        "all_gather_s": t.all_gather * gather,
        "all_to_all_s": t.all_to_all * reduction,
    }
    return exposed, beside * (1 - hidden)
