"""The largest micro-batch that is predicted to fit on this machine, from the traces of two sizes."""

from bisect import bisect_left
from dataclasses import replace

from dsnb.errors import SettingsError
from dsnb.prediction.fit import is_covered, room_here
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.moments import Trace
from dsnb.prediction.traces import attempts
from dsnb.settings.experiment import Experiment

TRACED = (16, 32)
"""The sizes that are traced, which takes as long for large ones as for small ones. At smaller ones, tensors that do not
grow with the micro-batch may decide which moment is the peak."""


def largest_predicted(experiment: Experiment, most: int) -> int | None:
    """Return the largest micro-batch from 0 to `most` that is predicted to fit; None if that cannot be predicted.

    On a CPU, memory is limited for the whole process, of which most is not predicted.

    Parameters
    ----------
    experiment
        Settings whose micro-batch does not count.
    """
    here = room_here(experiment)
    sized = [experiment.model_copy(update={"device": "cuda", "micro_batch_size": size}) for size in TRACED]
    if experiment.device == "cpu" or here is None or not is_covered(sized[0]):
        return None
    try:
        low, high = attempts(sized)
    except SettingsError:  # torch is missing
        return None
    if isinstance(low, SettingsError) or isinstance(high, SettingsError):
        return None

    def is_too_large(size: int) -> bool:
        of_size = sized[0].model_copy(update={"micro_batch_size": size})
        return peak_memory(of_size, on_the_line(low, high, size)).peak_allocated_gib > here.tensors_gib

    return bisect_left(range(1, most + 1), True, key=is_too_large)


def on_the_line(low: Trace, high: Trace, size: int) -> Trace:
    """Return the trace of a size: every tensor of a micro-batch grows in proportion to its size, or not at all."""
    share = (size - TRACED[0]) / (TRACED[1] - TRACED[0])

    def line(start: float, end: float) -> float:
        return start + share * (end - start)

    done = sorted({at for trace in (low, high) for _, at in trace.moments})
    return replace(
        low,
        forward_peak=line(low.forward_peak, high.forward_peak),
        kept=line(low.kept, high.kept),
        block_input=line(low.block_input, high.block_input),
        moments=tuple((line(_most_after(low, at), _most_after(high, at)), at) for at in done),
    )


def _most_after(trace: Trace, done: float) -> float:
    """Return the most bytes when so many elements of gradients had been computed, or more."""
    return max((size for size, at in trace.moments if at >= done), default=0.0)
