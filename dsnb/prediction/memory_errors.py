"""How wrong predicted peaks of memory were on measured runs, by kind of setting, and how much more was reserved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsnb.prediction.time_errors import ALL, kind
from dsnb.settings.experiment import Experiment

FEWEST = 3
"""Settings of a kind that its own error is taken from; with fewer it is that of all settings."""


@dataclass(frozen=True)
class PeakError:
    """Errors of predicted peaks in per cent of the measured ones.

    Attributes
    ----------
    settings
        Number of settings.
    mean_pct, worst_pct
        Mean and largest absolute error of `peak_allocated_gib`.
    reserved
        Median of measured `peak_reserved_gib` over `peak_allocated_gib`, of settings whose allocations are not replayed
        if there are a few.
    reserved_mean_pct
        Mean absolute error of `peak_reserved_gib` of these settings if it is the predicted peak times `reserved`.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    reserved: float
    reserved_mean_pct: float


# On one and two H200: `python -m benchmarks.prediction_errors memory`.
DEFAULT_ERRORS: dict[str, PeakError] = {
    "DDP": PeakError(11, 0.2, 0.71, 1.073, 3.5),
    "FSDP": PeakError(18, 0.37, 3.22, 1.233, 6.2),
    "LoRA": PeakError(22, 1.8, 15.17, 1.049, 6.3),
    "ZeRO 0": PeakError(112, 0.23, 2.03, 1.076, 3.8),
    "ZeRO 1": PeakError(73, 0.39, 4.1, 1.198, 8.1),
    "ZeRO 2": PeakError(37, 0.54, 7.32, 1.187, 7.8),
    "ZeRO 3": PeakError(51, 0.67, 7.1, 1.165, 4.9),
    "compressed gradients": PeakError(4, 7.99, 13.08, 1.682, 25.0),
    "offload to the CPU": PeakError(8, 0.42, 1.71, 1.411, 18.9),
    "plain loop": PeakError(47, 0.46, 4.66, 1.166, 6.1),
    "tensor and pipeline parallel": PeakError(11, 0.44, 2.28, 1.175, 8.1),
    "all": PeakError(394, 0.56, 15.17, 1.174, 8.1),
}


@dataclass(frozen=True)
class ReservedError:
    """Errors of a replayed `peak_reserved_gib` in per cent of the measured one: their number, mean and largest."""

    settings: int
    mean_pct: float
    worst_pct: float


# On one and two H200, and one H100: `python -m benchmarks.prediction_errors memory`.
REPLAYED: dict[str, ReservedError] = {
    "DDP": ReservedError(9, 2.2, 4.7),
    "LoRA": ReservedError(20, 2.7, 15.2),
    "ZeRO 0": ReservedError(98, 0.9, 13.1),
    "ZeRO 1": ReservedError(71, 2.3, 16.8),
    "ZeRO 2": ReservedError(37, 1.7, 15.4),
    "plain loop": ReservedError(38, 1.4, 8.5),
    "all": ReservedError(273, 1.6, 16.8),
}


@dataclass(frozen=True)
class Peak:
    """A measured run and its prediction, in GiB.

    `reserved_gib` is NaN where it was not measured, `replayed_gib`, what is predicted to be reserved, where no replay
    covers the settings.
    """

    experiment: Experiment
    predicted_gib: float
    allocated_gib: float
    reserved_gib: float
    replayed_gib: float = math.nan

    @property
    def error_pct(self) -> float:
        """The error of the predicted peak in per cent."""
        return 100 * (self.predicted_gib / self.allocated_gib - 1)


def expected_error(experiment: Experiment) -> tuple[str, PeakError]:
    """Return the kind of settings on which the error of a predicted peak was measured, and that error."""
    own = kind(experiment)
    name = own if own in DEFAULT_ERRORS and DEFAULT_ERRORS[own].settings >= FEWEST else ALL
    return name, DEFAULT_ERRORS[name]


def by_kind(peaks: Sequence[Peak]) -> dict[str, PeakError]:
    """Return the errors of predicted peaks by kind of setting, and of all of them."""
    groups: dict[str, list[Peak]] = {name: [] for name in sorted({kind(one.experiment) for one in peaks})}
    for one in peaks:
        groups[kind(one.experiment)].append(one)
    return {name: _error(group) for name, group in [*groups.items(), (ALL, list(peaks))]}


def reserved_error(peaks: Sequence[Peak], errors: Mapping[str, PeakError]) -> ReservedError:
    """Return the errors of `peak_reserved_gib` as it is predicted: replayed, or by the ratio of its kind."""
    found = []
    for one in peaks:
        ratio = errors.get(kind(one.experiment), errors[ALL]).reserved
        predicted = one.predicted_gib * ratio if math.isnan(one.replayed_gib) else one.replayed_gib
        if not math.isnan(one.reserved_gib):
            found.append(abs(100 * (predicted / one.reserved_gib - 1)))
    return ReservedError(len(found), round(sum(found) / len(found), 1), round(max(found), 1))


def replayed_by_kind(peaks: Sequence[Peak]) -> dict[str, ReservedError]:
    """Return the errors of what is predicted to be reserved by replaying allocations, by kind of setting."""
    errors: dict[str, list[float]] = {}
    for one in peaks:
        if not math.isnan(one.reserved_gib) and not math.isnan(one.replayed_gib):
            errors.setdefault(kind(one.experiment), []).append(abs(100 * (one.replayed_gib / one.reserved_gib - 1)))
    everything = [one for own in errors.values() for one in own]
    return {
        name: ReservedError(len(own), round(sum(own) / len(own), 1), round(max(own), 1))
        for name, own in [*sorted(errors.items()), (ALL, everything)]
    }


def _error(peaks: Sequence[Peak]) -> PeakError:
    sizes = [abs(one.error_pct) for one in peaks]
    measured = [one for one in peaks if not math.isnan(one.reserved_gib)]
    known = [one for one in measured if math.isnan(one.replayed_gib)]
    known = known if len(known) >= FEWEST else measured
    ratios = sorted(one.reserved_gib / one.allocated_gib for one in known)
    reserved = ratios[len(ratios) // 2] if ratios else 1.0
    wrong = [abs(one.predicted_gib * reserved / one.reserved_gib - 1) * 100 for one in known]
    return PeakError(
        len(peaks),
        round(sum(sizes) / len(sizes), 2),
        round(max(sizes), 2),
        round(reserved, 3),
        round(sum(wrong) / max(1, len(wrong)), 1),
    )
