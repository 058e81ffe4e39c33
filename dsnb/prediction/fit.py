"""Whether a setting fits into the memory of this machine's GPUs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsnb.formulas.model_shapes import SPLIT, facts
from dsnb.prediction.calibration import PredictionError, peak_error
from dsnb.prediction.memory import Room, peak_memory, room
from dsnb.prediction.traces import Trace, attempts
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

READ_KEYS = {"zero_optimization.reduce_bucket_size", "zero_optimization.stage3_max_live_parameters"}
"""Keys of DeepSpeed's configuration that the rules of memory read; what another one does to memory is unknown."""


@dataclass(frozen=True)
class Fit:
    """The predicted peak of a setting, the room that there is, and the errors of such predictions."""

    peak_gib: float
    room: Room
    error: PredictionError

    @property
    def is_too_large(self) -> bool:
        """Whether it would not fit even if the prediction is as much too high as the worst one of its kind was."""
        return self.peak_gib * (1 - self.error.worst_pct / 100) > self.room.tensors_gib

    def __str__(self) -> str:
        needed = self.peak_gib + self.room.context_gib
        error = f"error of such predictions {self.error.mean_pct:.1f} %, at worst {self.error.worst_pct:.1f} %"
        return f"needs {needed:.1f} GiB of {self.room.capacity_gib:.1f} ({error})"


def room_here(experiment: Experiment) -> Room | None:
    """Return the room of a run on the smallest visible GPU of this machine; None if that is unknown."""
    elsewhere = experiment.hostfile == hostfile.SLURM and not hostfile.in_allocation()
    gpus = () if experiment.device == "cpu" or elsewhere else hardware.gpus()
    found = room(experiment, min((gpu.memory_gib for gpu in gpus), default=math.inf))
    return found if math.isfinite(found.capacity_gib) else None


def is_covered(experiment: Experiment) -> bool:
    """Return whether there are rules for the memory of a setting."""
    return (
        experiment.compile != "deepcompile"
        and experiment.zeropp == "none"
        and not experiment.offload.endswith("nvme")
        and set(experiment.deepspeed) <= READ_KEYS
        and facts(experiment.model).get("family") in SPLIT
    )


def fits_here(experiments: Sequence[Experiment]) -> list[Fit | None]:
    """Return the fit of each setting on this machine; None where need or room are unknown.

    A SettingsError says that torch or transformers is missing.
    """
    found: list[Fit | None] = [None] * len(experiments)
    rooms = {place: here for place, one in enumerate(experiments) if is_covered(one) and (here := room_here(one))}
    asked = [experiments[place].model_copy(update={"device": "cuda"}) for place in rooms]
    for (place, here), one, trace in zip(rooms.items(), asked, attempts(asked), strict=True):
        if isinstance(trace, Trace):
            found[place] = Fit(peak_memory(one, trace).peak_allocated_gib, here, peak_error(one)[1])
    return found
