"""What a step loses to each cause: the predicted time with it and without it, or what was measured of it.

A cause is `shown` where settings that were stated or signs in a run show it, else `possible`. The
size of a shown cause is its share of the predicted step; that of a possible one is the share that
it would have. Possible ones are ranked by how well they alone explain the slowdown, and by how
often they are the cause in public threads (`causes.toml`).
"""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsnb.base.formulas import planning
from dsnb.base.system import hardware
from dsnb.prediction import tuned
from dsnb.prediction.check.claims import Seen
from dsnb.prediction.check.setup import WAYS, Setup
from dsnb.prediction.gpus import Link
from dsnb.results.runs.templates import fill

CAUSES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("causes.toml").read_text(encoding="utf-8")
)
"""Words and weights of each cause."""
CHECK = tuned.numbers("check")
NETWORKS_GBIT = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 200)
"""Usual networks, and what is left of them, for each GPU."""
COMMUNICATION = (
    "all_reduce_s",
    "reduce_scatter_s",
    "all_gather_s",
    "all_to_all_s",
    "tensor_all_reduce_s",
    "point_to_point_s",
)
"""Parts of a step that are communication."""
SWITCHES = [name for name, cause in CAUSES.items() if "without" in cause]
"""Causes that are settings."""


@dataclass(frozen=True)
class Gap:
    """A cause: its share of the step, and the sentence that is printed."""

    cause: str
    words: str
    is_shown: bool
    share: float | None = None
    """Of the step that has it; None where it is unknown."""
    score: float = 0.0
    """How likely a possible cause is."""


@dataclass(frozen=True)
class Case:
    """A training with its measured speed and what was seen of it."""

    setup: Setup
    tokens_per_s: float
    seen: Seen
    is_measured: bool = True

    @property
    def token_s(self) -> float:
        """The measured seconds of a token."""
        return 1 / self.tokens_per_s

    @property
    def slowdown(self) -> float:
        """The measured time over the predicted one."""
        return self.token_s / self.setup.token_s()

    def is_stated(self, *names: str) -> bool:
        """Whether a setting was stated."""
        return not self.setup.stated.isdisjoint(names)

    def shown(self, cause: str, saved_s: float, **facts: object) -> Gap | None:
        """Return a cause that the settings show, by the seconds of a token that it costs in the prediction.

        The prediction of a slow step has it already, so a small one is beside the point.
        """
        share = saved_s / self.setup.token_s()
        unexplained = 1 - 1 / max(1.0, self.slowdown)
        if share < CHECK.least_of_slow * unexplained:
            return None
        return self.of_share(cause, share, **facts)

    def of_share(self, cause: str, share: float | None, **facts: object) -> Gap | None:
        """Return a cause that the input shows, by its share of the step."""
        if share is not None and share < CHECK.least_shown:
            return None
        return Gap(cause, fill(CAUSES[cause]["shown"], facts), True, share)

    def possible(
        self, cause: str, times: float, rarity: float = 1.0, **facts: object
    ) -> Gap | None:
        """Return a cause that could be, by the factor with which it would lengthen the step.

        `rarity` is how many times as rare it is in this case as in threads.
        """
        about = CAUSES[cause]
        times = min(times, about.get("most", math.inf))
        share = 1 - 1 / times
        if share < CHECK.least_possible or self.slowdown < CHECK.little_slower:
            return None
        facts = {"padded": f"{100 * share:.0f}", **facts}
        misfit = abs(math.log(times / self.slowdown))
        score = about["weight"] / rarity * math.exp(-misfit)
        return Gap(cause, fill(about["possible"], facts), False, share, score)


def gaps(case: Case) -> list[Gap]:
    """Return all causes: those that the input shows by their size, then possible ones, the likeliest first."""
    found = [gap for gap in _each(case) if gap]
    shown = [gap for gap in found if gap.is_shown]
    names = {gap.cause for gap in shown}
    possible = [gap for gap in found if not gap.is_shown and gap.cause not in names]
    shown.sort(key=lambda gap: -(gap.share or 1.0))  # an unknown size may be the largest
    possible.sort(key=lambda gap: -gap.score)
    return shown + possible


def _each(case: Case) -> Iterator[Gap | None]:
    for cause in SWITCHES:
        yield _switch(case, cause)
    yield _emulated(case)
    yield _sharding(case)
    yield _small_batch(case)
    yield _host(case)
    yield from _links(case)
    yield _mask(case)
    yield _padding(case)
    if planning.is_fine_tuning(vars(case.setup.experiment)):
        yield case.possible("real_tokens", max(1.0, case.slowdown))
    yield _loader(case)
    yield _memory(case)
    yield _throttling(case)
    seen = case.seen
    if seen.step_skew and seen.step_skew > CHECK.skewed:
        skew = f"{100 * seen.step_skew:.0f}"
        yield case.of_share("straggler", seen.step_skew / (1 + seen.step_skew), skew=skew)
    if seen.recompilations:
        yield case.of_share("recompilation", None, graphs=f"{seen.recompilations:.0f}")


def _switch(case: Case, cause: str) -> Gap | None:
    """Return the cost of a setting by the time without it, or with it where it is unknown."""
    about = CAUSES[cause]
    setup = case.setup
    (name,) = about["without"]
    value = getattr(setup.experiment, name)
    is_there = _differs(value, about["without"][name])
    if is_there:
        without = setup.changed(**about["without"])
        if without is None:
            return None
        if case.is_stated(name):
            saved_s = setup.token_s() - without.token_s()
            return case.shown(cause, saved_s, value=value)
        times = setup.token_s() / without.token_s()
        return case.possible(cause, max(1.0, times), value=value)
    if case.is_stated(name) or not _could_have(case, cause):
        return None
    having = setup.changed(**about["with"])
    if having is None:
        return None
    return case.possible(cause, max(1.0, having.token_s() / setup.token_s()))


def _differs(value: object, usual: object) -> bool:
    """Return whether a setting has a cause: it is not the value without; half precisions are alike."""
    alike = {
        "fp16": "bf16",
        "sdpa": "auto",
        "reduce-overhead": "default",
        "max-autotune": "default",
    }
    return alike.get(str(value), value) != usual


def _could_have(case: Case, cause: str) -> bool:
    """Return whether an unknown setting can be the cause: offload needs DeepSpeed or an unknown strategy."""
    if cause != "offload":
        return True
    stage = case.setup.experiment.zero_stage
    return not case.is_stated("strategy", "zero_stage") or stage >= 1


def _emulated(case: Case) -> Gap | None:
    """Return that a GPU does not have the number format that was stated."""
    setup = case.setup
    name = setup.gpu.name
    if setup.experiment.precision != "bf16" or not hardware.peak_tflops(name, "fp16"):
        return None
    if hardware.peak_tflops(name, "bf16"):
        return None
    return case.of_share("emulated", None, gpu=name)


def _sharding(case: Case) -> Gap | None:
    """Return what the strategy costs over the fastest simpler one on which the model fits."""
    setup = case.setup
    now = setup.experiment
    if now.gpus == 1 or now.offload != "none" or now.tensor_parallel * now.pipeline_parallel > 1:
        return None
    best = None
    for way in WAYS:
        other = setup.changed(**{"zero_stage": 0, "shard_size": 0, **way})
        if other is None or other.experiment.label == now.label or not other.fits:
            continue
        if best is None or other.token_s() < best.token_s():
            best = other
    if best is None or best.token_s() >= setup.token_s():
        return None
    other_label = best.experiment.label
    if case.is_stated("strategy", "zero_stage"):
        saved_s = setup.token_s() - best.token_s()
        return case.shown("sharding", saved_s, strategy=now.label, other=other_label)
    times = setup.token_s() / best.token_s()
    return case.possible("sharding", times, other=other_label)


def _small_batch(case: Case) -> Gap | None:
    """Return what a larger micro-batch would save for each token."""
    setup = case.setup
    size = setup.experiment.micro_batch_size
    if not case.is_stated("micro_batch_size"):
        single = setup.changed(micro_batch_size=1) or setup
        times = single.token_s() / setup.token_s()
        return case.possible("small_batch", max(1.0, times))
    larger = setup.changed(micro_batch_size=CHECK.larger_batch * size)
    if larger is None:
        return None
    saved_s = setup.token_s() - larger.token_s()
    tokens = f"{setup.experiment.micro_batch_tokens:,}"
    more = f"{CHECK.larger_batch} times as many"
    if not larger.fits:
        more += ", with recomputation or shards if they do not fit,"
    return case.shown("small_batch", saved_s, tokens=tokens, more=more)


def _host(case: Case) -> Gap | None:
    """Return the time that the GPU waits for the host, measured or predicted."""
    setup = case.setup
    what = _work_of_host(case)
    better = ""
    if setup.experiment.compile == "off":
        better = "compile, or use a larger micro-batch"
    measured = case.seen.cpu_bound
    if measured is not None:
        if measured < CHECK.host_share:
            return None
        return case.of_share("host", measured, what=what, better=better)
    parts = setup.parts()
    share = float(parts.host_s) / float(parts.step_time_s)
    is_stated = case.is_stated("micro_batch_size", "strategy", "zero_stage")
    if share >= CHECK.least_possible and is_stated:
        waits_s = share * setup.token_s()
        return case.shown("host", waits_s, what=what, better=better)
    times = setup.on_host(CHECK.slow_host).token_s() / setup.token_s()
    if what:  # what hooks take of a model of many tensors is not predicted
        times = max(times, case.slowdown)
    return case.possible("host", max(1.0, times), what=what)


def _work_of_host(case: Case) -> str:
    """Return what DeepSpeed does in Python, if it is stated to train."""
    experiment = case.setup.experiment
    if not case.is_stated("strategy", "zero_stage"):
        return ""
    if experiment.zero_stage == 3:
        return "whose hooks of ZeRO 3 fetch parameters one by one"
    if experiment.parallel_strategy.is_deepspeed:
        return "with DeepSpeed's work for each tensor"
    return ""


def _links(case: Case) -> Iterator[Gap | None]:
    """Yield what communication costs, where it is predicted, and what slower links would cost."""
    setup = case.setup
    link = setup.hardware.link
    if setup.experiment.gpus == 1:
        return
    parts = setup.parts()
    sent_s = sum(float(getattr(parts, name)) for name in COMMUNICATION)
    sent_s /= setup.experiment.tokens_per_step
    if setup.nodes > 1:
        node_gpus = max(1, setup.experiment.gpus // setup.nodes)
        rate = f"{8 * link.of_gpu_gb_per_s(node_gpus):.3g}"
        if case.is_stated("link"):
            yield case.shown("network", sent_s, nodes=setup.nodes, rate=rate)
            return
        yield _slow_network(case)
        return
    if not link.nvlink or not setup.gpu.nvlink_gb_per_s:
        yield case.shown("pcie", sent_s, rate=f"{setup.gpu.pcie_gb_per_s:.0f}")
        return
    if case.is_stated("strategy", "zero_stage"):
        yield case.shown("communication", sent_s)
    if not case.is_stated("link"):
        slower = setup.on(link=replace(link, nvlink=False))
        yield case.possible("pcie", slower.token_s() / setup.token_s())


def _slow_network(case: Case) -> Gap | None:
    """Return the fastest usual network that explains the measured time; the slowest if none does."""
    setup = case.setup
    for gbit in reversed(NETWORKS_GBIT):
        link = Link(nvlink=setup.hardware.link.nvlink, network_gb_per_s=gbit / 8)
        slower = setup.on(link=link)
        if slower.token_s() >= case.token_s:
            break
    times = slower.token_s() / setup.token_s()
    rate = f"{gbit:g}"
    return case.possible("network", min(times, case.slowdown), nodes=setup.nodes, rate=rate)


def _mask(case: Case) -> Gap | None:
    """Return what a mask costs in fused attention."""
    setup = case.setup
    if case.seen.masked is False:
        return None
    plain_s = setup.token_s()
    masked_s = setup.token_s(masked=True)
    if case.seen.masked:
        return case.shown("mask", masked_s - plain_s)
    return case.possible("mask", masked_s / plain_s)


def _padding(case: Case) -> Gap | None:
    """Return the share of padding; where it is unknown, the share that would explain the slowdown."""
    real = case.seen.real_tokens
    if real is not None:
        share = 1 - real
        return case.of_share("padding", share, padded=f"{100 * share:.0f}")
    rarity = CHECK.unpacked_pretraining
    if planning.is_fine_tuning(vars(case.setup.experiment)):
        rarity = 1.0
    return case.possible("padding", max(1.0, case.slowdown), rarity)


def _loader(case: Case) -> Gap | None:
    """Return the time between steps by the GPUs' utilization; where it is unknown, what would explain the slowdown."""
    util = case.seen.gpu_util_pct
    if util is not None:
        waits = 1 - util / 100 - (case.seen.cpu_bound or 0.0)  # in a step, it waits for the host
        if util >= CHECK.busy_pct or waits <= 0:
            return None
        return case.of_share("loader", waits, util=f"{util:.0f}")
    return case.possible("loader", max(1.0, case.slowdown))


def _memory(case: Case) -> Gap | None:
    """Return that memory is tight: as seen, or because little room is left."""
    retries = case.seen.alloc_retries
    if retries is not None:
        if not retries:
            return None
        return case.of_share("memory", None, retries=f"{retries:.0f}")
    setup = case.setup
    if (
        not case.is_stated("micro_batch_size")
        or setup.need_gib < CHECK.tight_memory * setup.room_gib
    ):
        return None
    need = f"{setup.need_gib:.0f}"
    room = f"{setup.room_gib:.0f}"
    return case.possible("memory", max(1.0, case.slowdown), need=need, room=room)


def _throttling(case: Case) -> Gap | None:
    """Return what a low clock costs: products and attention are slower in proportion."""
    clock = case.seen.sm_clock_mhz
    boost = case.setup.gpu.boost_mhz
    if clock is None:
        return case.possible("throttling", max(1.0, case.slowdown))
    if boost is None or clock > CHECK.slow_clock * boost:
        return None
    parts = case.setup.parts()
    products = float(parts.matmul_s) + float(parts.attention_s)
    share = products / float(parts.step_time_s)
    lost = share * (1 - clock / boost)
    return case.of_share("throttling", lost, clock=f"{clock:.0f}", boost=f"{boost:.0f}")
