"""Whether a setting fits into the memory of this machine's GPUs, and the largest micro-batch that is predicted to."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsnb.errors import SettingsError
from dsnb.formulas.model_shapes import SPLIT, facts
from dsnb.prediction.accuracy import PredictionError, peak_error
from dsnb.prediction.memory import Room, peak_memory, room
from dsnb.prediction.traces import Trace, attempts, traces
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

READ_KEYS = {"zero_optimization.reduce_bucket_size", "zero_optimization.stage3_max_live_parameters"}
"""Keys of DeepSpeed's configuration that the rules of memory read; what another one does to memory is unknown."""
TRACED_SIZES = (16, 32)
"""The sizes that are traced, which takes as long for large ones as for small ones. At smaller ones, tensors that do not
grow with the micro-batch may decide which moment is the peak."""


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
        experiment.micro_batch_size != "auto"
        and experiment.compile != "deepcompile"
        and experiment.zeropp == "none"
        and not experiment.offload.endswith("nvme")
        and set(experiment.deepspeed) <= READ_KEYS
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
    asked = [one.model_copy(update={"device": "cuda"}) for one, here in zip(experiments, rooms, strict=True) if here]
    made = iter(zip(asked, attempts(asked), strict=True))

    def fit(here: Room | None) -> Fit | None:
        if here is None:
            return None
        experiment, trace = next(made)
        if isinstance(trace, SettingsError):
            return None
        return Fit(peak_memory(experiment, trace).peak_allocated_gib, here, peak_error(experiment)[1])

    return [fit(here) for here in rooms]


def largest_predicted(experiment: Experiment, most: int) -> int | None:
    """Return the largest micro-batch from 0 to `most` that is predicted to fit; None if that cannot be predicted.

    On a CPU, memory is limited for the whole process, of which most is not predicted.

    Parameters
    ----------
    experiment
        Settings whose micro-batch does not count.
    """
    here = room_here(experiment)
    sized = [experiment.model_copy(update={"device": "cuda", "micro_batch_size": size}) for size in TRACED_SIZES]
    if experiment.device == "cpu" or here is None or not is_covered(sized[0]):
        return None
    try:
        low, high = traces(sized)
    except SettingsError:  # torch is missing, or the model cannot be traced
        return None

    def is_too_large(size: int) -> bool:
        of_size = sized[0].model_copy(update={"micro_batch_size": size})
        return peak_memory(of_size, on_the_line(low, high, size)).peak_allocated_gib > here.tensors_gib

    return bisect_left(range(1, most + 1), True, key=is_too_large)


def on_the_line(low: Trace, high: Trace, size: int) -> Trace:
    """Return the trace of a size: every tensor of a micro-batch grows in proportion to its size, or not at all."""
    share = (size - TRACED_SIZES[0]) / (TRACED_SIZES[1] - TRACED_SIZES[0])

    def line(start: float, end: float) -> float:
        return start + share * (end - start)

    done = sorted({at for trace in (low, high) for _, at in trace.moments})
    return replace(
        low,
        forward_peak=line(low.forward_peak, high.forward_peak),
        kept=line(low.kept, high.kept),
        moments=tuple((line(_most_after(low, at), _most_after(high, at)), at) for at in done),
    )


def _most_after(trace: Trace, done: float) -> float:
    """Return the most bytes when so many elements of gradients had been computed, or more."""
    return max((size for size, at in trace.moments if at >= done), default=0.0)
