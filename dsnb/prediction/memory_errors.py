"""How wrong predicted peaks of memory were on measured runs, by kind of setting."""

from dataclasses import dataclass

from dsnb.prediction.time_errors import ALL, kind
from dsnb.settings.experiment import Experiment

FEWEST = 3
"""Settings of a kind that its own error is taken from; with fewer it is that of all settings."""


@dataclass(frozen=True)
class PeakError:
    """Mean and largest absolute error of `peak_allocated_gib` in per cent of the measured ones, on so many settings."""

    settings: int
    mean_pct: float
    worst_pct: float


# On one and two H200: `python -m benchmarks.prediction_errors memory`.
DEFAULT_ERRORS: dict[str, PeakError] = {
    "DDP": PeakError(11, 0.2, 0.71),
    "FSDP": PeakError(18, 0.37, 3.22),
    "LoRA": PeakError(22, 1.8, 15.17),
    "ZeRO 0": PeakError(112, 0.23, 2.03),
    "ZeRO 1": PeakError(73, 0.39, 4.1),
    "ZeRO 2": PeakError(37, 0.54, 7.32),
    "ZeRO 3": PeakError(51, 0.67, 7.1),
    "compressed gradients": PeakError(4, 7.99, 13.08),
    "offload to the CPU": PeakError(8, 0.42, 1.71),
    "plain loop": PeakError(47, 0.46, 4.66),
    "tensor and pipeline parallel": PeakError(11, 0.44, 2.28),
    "all": PeakError(394, 0.56, 15.17),
}


def expected_error(experiment: Experiment) -> tuple[str, PeakError]:
    """Return the kind of settings on which the error of a predicted peak was measured, and that error."""
    own = kind(experiment)
    name = own if own in DEFAULT_ERRORS and DEFAULT_ERRORS[own].settings >= FEWEST else ALL
    return name, DEFAULT_ERRORS[name]
