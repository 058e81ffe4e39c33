"""What a stated figure may mean: which peak and FLOPs an MFU is of, and whether a rate is that of one GPU."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dsnb.prediction import speed_range
from dsnb.prediction.check.gaps import CAUSES, CHECK, Gap
from dsnb.prediction.check.setup import Setup
from dsnb.prediction.gpus import known
from dsnb.prediction.shapes import shape
from dsnb.results.runs.number_text import amount
from dsnb.results.runs.templates import fill

PEAKS = {"A100": 1, "H100": 1, "V100": CHECK.rare, "B200": CHECK.rare}
"""GPUs whose peak programs take for any GPU, and how rare that is."""
PASSES = 3
"""Forward passes that forward and backward pass are worth."""
RECOMPUTED = 4 / 3
MOST_READINGS = 2
SMALLER = ("pythia-160m", "pythia-410m", "pythia-1b", "pythia-2.8b", "pythia-6.9b")
"""Models that stand for smaller ones than stated."""


@dataclass(frozen=True)
class Reading:
    """Another meaning of an MFU: the true one is `times` as large."""

    name: str
    times: float
    rarity: float = 1.0
    facts: Mapping[str, object] = field(default_factory=dict)


def readings(setup: Setup) -> Iterator[Reading]:
    """Yield the meanings of an MFU."""
    yield Reading("sparse", 2.0)
    yield from _peaks(setup)
    yield Reading("hardware", 1 / RECOMPUTED)
    gpus = setup.experiment.gpus
    if gpus > 1:
        yield Reading("one_gpu", 1 / gpus)
        yield Reading("all_gpus", float(gpus))
        yield Reading("shard", setup.flops_per_token / _shard_flops(setup), CHECK.rare)
    without = 6.0 * shape(setup.experiment.model).parameters
    if without < (1 - CHECK.same_mfu) * setup.flops_per_token:
        yield Reading("no_attention", setup.flops_per_token / without)
        causal = (without + setup.flops_per_token) / 2
        yield Reading("half_attention", setup.flops_per_token / causal)
    yield Reading("forward", float(PASSES), CHECK.rare)


def _peaks(setup: Setup) -> Iterator[Reading]:
    """Yield the peaks of other GPUs and number formats."""
    gpu = setup.gpu
    peak = setup.peak_tflops
    for name, rarity in PEAKS.items():
        other = known()[name].peak_flops("bf16") / 1e12
        if abs(math.log(other / peak)) < CHECK.same_mfu:
            continue
        facts = {"other": name, "peak_other": f"{other:.0f}"}
        yield Reading("other_peak", other / peak, rarity, facts)
        sparse = {"other": f"{name} with sparsity", "peak_other": f"{2 * other:.0f}"}
        yield Reading("other_peak", 2 * other / peak, CHECK.rare * rarity, sparse)
    formats = {"TF32": gpu.tf32_tflops, "fp32": gpu.fp32_tflops}
    for name, rate in formats.items():
        if rate < (1 - CHECK.same_mfu) * peak:
            facts = {"other": f"{gpu.name} in {name}", "peak_other": f"{rate:.0f}"}
            yield Reading("other_peak", rate / peak, CHECK.rare, facts)


def _shard_flops(setup: Setup) -> float:
    """Return the FLOPs of a token by the parameters of one shard, with the attention of the whole model."""
    of_weights = 6.0 * shape(setup.experiment.model).parameters
    attention = setup.flops_per_token - of_weights
    return of_weights / setup.experiment.gpus + max(0.0, attention)


def of_mfu(setup: Setup, mfu: float, true_mfu: float) -> Gap | None:
    """Return what an MFU is of that differs from the one that follows from the rate; None if they agree."""
    times = true_mfu / mfu
    if abs(math.log(times)) < CHECK.same_mfu:
        return None
    near = []
    for reading in readings(setup):
        misfit = abs(math.log(times / reading.times))
        if misfit < CHECK.near_reading:
            near.append((reading.rarity, misfit, reading))
    reading = Reading("unknown", times)
    if near:
        reading = min(near, key=lambda found: found[:2])[2]
    return _gap(setup, reading, true_mfu, is_shown=True)


def of_mfu_alone(setup: Setup, mfu: float, expected: tuple[float, float]) -> list[Gap]:
    """Return the meanings of an MFU without a rate by which it is as expected, the likeliest first."""
    low, high = (setup.mfu(rate) for rate in expected)
    middle = math.sqrt(low * high)
    best = speed_range.best_mfu(setup.gpu.name, setup.experiment)
    most = min(high * CHECK.wider, best * CHECK.above_best)
    found = []
    for reading in readings(setup):
        meant = mfu * reading.times
        if low / CHECK.wider <= meant <= most:
            gap = _gap(setup, reading, meant, is_shown=False)
            misfit = abs(math.log(meant / middle))
            score = CAUSES["peak"]["weight"] * math.exp(-2 * misfit) / reading.rarity
            found.append(replace(gap, score=score))
    found.sort(key=lambda gap: -gap.score)
    return [*found[:MOST_READINGS], *smaller_model(setup, mfu)]


def smaller_model(setup: Setup, mfu: float) -> list[Gap]:
    """Return the size of a smaller model that reaches an MFU, if one does."""
    best = None
    for name in SMALLER:
        other = setup.changed(model=name)
        if other is None or shape(name).parameters > 0.5 * shape(setup.experiment.model).parameters:
            continue
        misfit = abs(math.log(other.mfu(other.tokens_per_s) / mfu))
        if misfit < math.log(CHECK.like_mfu) and (best is None or misfit < best[0]):
            best = (misfit, shape(name).parameters)
    if best is None:
        return []
    return [_of_size(best[1], math.exp(-best[0]))]


def _of_size(parameters: float, fit: float = 1.0) -> Gap:
    about = CAUSES["smaller_model"]
    words = fill(about["possible"], {"size": amount(float(f"{parameters:.2g}"))})
    return Gap("smaller_model", words, False, None, about["weight"] * fit)


def _gap(setup: Setup, reading: Reading, mfu: float, *, is_shown: bool) -> Gap:
    facts = {
        "mfu": f"{100 * mfu:.1f}",
        "gpu": setup.gpu.name,
        "gpus": setup.experiment.gpus,
        "peak": f"{setup.peak_tflops:.0f}",
        **reading.facts,
    }
    return Gap("peak", fill(CAUSES["peak"][reading.name], facts), is_shown)


def of_rate(setup: Setup, tokens_per_s: float, expected: tuple[float, float]) -> Gap | None:
    """Return that a rate beyond the expected range is normal as one of a single GPU, or of all."""
    gpus = setup.experiment.gpus
    low, high = expected
    if gpus == 1 or low <= tokens_per_s <= high:
        return None
    totals = {"per_gpu": tokens_per_s * gpus, "all_gpus": tokens_per_s / gpus}
    for cause, total in totals.items():
        if low / CHECK.wider <= total <= high * CHECK.wider:
            about = CAUSES[cause]
            facts = {"gpus": gpus, "rate": f"{tokens_per_s:,.0f}"}
            return Gap(cause, fill(about["possible"], facts), False, None, about["weight"])
    return None


def of_size(setup: Setup, tokens_per_s: float) -> Gap:
    """Return the size of a model for which a rate would be usual."""
    return _of_size(shape(setup.experiment.model).parameters * setup.tokens_per_s / tokens_per_s)
