"""The verdict on a speed, in about ten lines: expected range, nearest measured run, and the largest gaps."""

import math
from dataclasses import dataclass

from dsnb.prediction import nearest, speed_range
from dsnb.prediction.check import accounting
from dsnb.prediction.check import setup as setups
from dsnb.prediction.check.claims import Claim
from dsnb.prediction.check.gaps import CHECK, Case, Gap, gaps
from dsnb.prediction.check.setup import Setup
from dsnb.results.runs.labels import count
from dsnb.settings.training import file_name

MOST_SHOWN = 4
MOST_GAPS = 6
OF_FIGURES = {"peak", "per_gpu", "all_gpus", "smaller_model", "real_tokens"}
"""Causes that concern the figure, not the step."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a speed."""

    kind: str
    """`normal`, `slow` or `fast`."""
    ratio: float
    """The speed over the predicted one."""
    gaps: tuple[Gap, ...]
    lines: tuple[str, ...]

    @property
    def causes(self) -> list[str]:
        """The names of the causes in the order in which they are printed."""
        return [gap.cause for gap in self.gaps]


def check(claim: Claim) -> Verdict:
    """Return the verdict on a claim.

    Raises SettingsError if its model or GPU is unknown, or its settings are refused.
    """
    setup = setups.of_claim(claim)
    expected = setup.expected()
    rate = total_rate(claim, setup)
    case = Case(setup, rate, claim.seen)
    kind, words = _verdict(setup, rate, expected)
    stated = _figures(claim, setup, expected, kind)
    found = [*stated, *gaps(case)]
    if kind == "normal":
        found = [gap for gap in found if gap.is_shown or gap.cause == "peak"]
    chosen = _largest(found)
    if kind == "fast":
        chosen.sort(key=lambda gap: gap.cause not in OF_FIGURES)
    lines = [_training(claim, setup, rate), words, nearest_line(setup)]
    lines += [_line(gap) for gap in chosen]
    if not chosen and kind != "normal":
        lines.append("nothing that is known explains it")
    if setup.assumed:
        lines.append(f"assumed: {', '.join(setup.assumed)} (--set for others)")
    ratio = rate / setup.tokens_per_s
    return Verdict(kind, ratio, tuple(chosen), tuple(lines))


def total_rate(claim: Claim, setup: Setup) -> float:
    """Return the tokens/s of all GPUs that a claim states, by the figure that says it most directly."""
    experiment = setup.experiment
    gpus = 1
    if claim.per_gpu:
        gpus = experiment.gpus
    if claim.tokens_per_s is not None:
        return claim.tokens_per_s * gpus
    if claim.samples_per_s is not None:
        return claim.samples_per_s * experiment.seq_len * gpus
    if claim.step_s is not None:
        return experiment.tokens_per_step / claim.step_s
    tflops = claim.tflops
    if tflops is None:
        tflops = (claim.mfu or math.nan) * setup.peak_tflops
    return tflops * 1e12 / setup.flops_per_token * experiment.gpus


def _figures(claim: Claim, setup: Setup, expected: tuple[float, float], kind: str) -> list[Gap]:
    """Return what the stated figures may mean other than they say."""
    rate = total_rate(claim, setup)
    mfu = claim.mfu
    has_rate = claim.tokens_per_s or claim.samples_per_s or claim.step_s or claim.tflops
    if mfu is not None and not has_rate:
        if kind == "normal":
            return []
        return accounting.of_mfu_alone(setup, mfu, expected)
    found: list[Gap | None] = []
    if (claim.tokens_per_s or claim.samples_per_s) and not claim.per_gpu:
        unit = accounting.of_rate(setup, rate, expected)
        found.append(unit)
        if unit and unit.cause == "per_gpu":
            rate *= setup.experiment.gpus
        elif unit:
            rate /= setup.experiment.gpus
    if mfu is not None:
        found.insert(0, accounting.of_mfu(setup, mfu, setup.mfu(rate)))
    is_far = rate > CHECK.far * setup.tokens_per_s
    if kind == "fast" and is_far and not any(found):
        found.append(accounting.of_size(setup, rate))
    return [gap for gap in found if gap]


def _verdict(setup: Setup, rate: float, expected: tuple[float, float]) -> tuple[str, str]:
    """Return `normal`, `slow` or `fast`, and the sentence."""
    low, high = expected
    low_pct = 100 * setup.mfu(low)
    high_pct = 100 * setup.mfu(high)
    rates = f"{_number(low)} to {_number(high)} tokens/s, MFU {low_pct:.2g} to {high_pct:.2g} %"
    on = f"{rates} ({setup.range.on})"
    ratio = rate / setup.tokens_per_s
    best = speed_range.best_mfu(setup.gpu.name, setup.experiment)
    if setup.mfu(rate) > CHECK.above_best * best:
        return "fast", (
            f"fast: above what any run reached (MFU {100 * best:.0f} %), check the count of tokens or GPUs; "
            f"expected are {on}"
        )
    if rate > high:
        return "fast", f"fast: {ratio:.2f} of what is expected, {on}"
    if rate < low:
        return "slow", f"slow: {ratio:.2f} of what is expected, {on}"
    return "normal", f"normal: within {on}"


def _training(claim: Claim, setup: Setup, rate: float) -> str:
    """Return the training and its speed in one line."""
    experiment = setup.experiment
    parts = [
        file_name(claim.model or experiment.model),
        f"{count(experiment.gpus, 'GPU')} {setup.gpu.name}",
        experiment.label,
        f"{experiment.micro_batch_size} x {experiment.seq_len:,} tokens",
    ]
    if experiment.grad_accum > 1:
        parts.append(f"{experiment.grad_accum} micro-batches")
    if claim.program and claim.program != "dsnb":
        parts.append(claim.program)
    per_gpu = rate / experiment.gpus
    speed = f"{_number(rate)} tokens/s"
    if experiment.gpus > 1:
        speed += f", {_number(per_gpu)} a GPU"
    mfu = 100 * setup.mfu(rate)
    speed += f", MFU {mfu:.3g} % of {setup.peak_tflops:.0f} dense TFLOP/s"
    if claim.tflops is not None:
        speed += f" ({mfu / 2:.3g} % of the peak with sparsity)"
    return f"{', '.join(parts)}: {speed}"


def nearest_line(setup: Setup) -> str:
    """Return where measured runs lie: the nearest one, with the error of its own prediction."""
    return f"nearest run, {nearest.sentence(setup.experiment, setup.gpu, setup.nodes)}"


def _largest(found: list[Gap]) -> list[Gap]:
    """Return the causes to print: those shown before possible ones, of each the first few."""
    shown = [gap for gap in found if gap.is_shown][:MOST_SHOWN]
    possible = [gap for gap in found if not gap.is_shown]
    possible.sort(key=lambda gap: -gap.score)
    return (shown + possible)[:MOST_GAPS]


def _line(gap: Gap) -> str:
    basis = "possible"
    if gap.is_shown:
        basis = "shown"
    size = "size unknown"
    if gap.share is not None:
        size = f"{100 * gap.share:.0f} % of the step"
    if gap.cause in OF_FIGURES:
        size = "the figure"
    return f"{basis:8} {size:>16}: {gap.words}"


def _number(value: float) -> str:
    """Return a rate with three digits."""
    return f"{float(f'{value:.3g}'):,.10g}"
