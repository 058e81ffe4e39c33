"""Whether a setting fits into the memory of the GPUs of this machine: the predicted need, the room, the error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsnb.formulas.model_shapes import SPLIT, facts
from dsnb.prediction.memory import Room, peak_memory, room
from dsnb.prediction.memory_errors import PeakError, expected_error
from dsnb.prediction.moments import Trace
from dsnb.prediction.traces import attempts
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

KNOWN_KEYS = {"zero_optimization.reduce_bucket_size", "zero_optimization.stage3_max_live_parameters"}
"""Keys of DeepSpeed's configuration that the rules of memory read; what another one does to memory is unknown."""


@dataclass(frozen=True)
class Fit:
    """The predicted peak of a setting, the room that there is, and the errors of such predictions."""

    peak_gib: float
    room: Room
    error: PeakError

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
        experiment.micro_batch_size != "auto"
        and experiment.compile != "deepcompile"
        and experiment.zeropp == "none"
        and not experiment.offload.endswith("nvme")
        and set(experiment.deepspeed) <= KNOWN_KEYS
        and facts(experiment.model).get("family") in SPLIT
    )


def fits_here(experiments: Sequence[Experiment]) -> list[Fit | None]:
    """Return the fit of each setting on this machine; None where need or room are unknown.

    Raises
    ------
    SettingsError
        If torch or transformers is missing.
    """
    rooms = [room_here(one) if is_covered(one) else None for one in experiments]
    known = [number for number, here in enumerate(rooms) if here]
    asked = [experiments[number].model_copy(update={"device": "cuda"}) for number in known]
    found: list[Fit | None] = [None] * len(experiments)
    for number, one, trace in zip(known, asked, attempts(asked), strict=True):
        if (here := rooms[number]) and isinstance(trace, Trace):
            found[number] = Fit(peak_memory(one, trace).peak_allocated_gib, here, expected_error(one)[1])
    return found
