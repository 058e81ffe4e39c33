"""Readers of the parallel layout that DeepSpeed's pipeline engine and Megatron print at their start."""

import re

from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.logs.text import count

_COORDINATE = re.compile(r"ProcessCoord\(((?:\w{1,20}=\d{1,6}(?:, )?){1,4})\)")
_AXIS = re.compile(r"(\w{1,20})=(\d{1,6})")
_STAGE = re.compile(r"RANK=\d{1,7} STAGE=(\d{1,6}) LAYERS=\d|^stage=(\d{1,6}) layers=\d")
_STAGES = re.compile(r"\bnum_stages['\"]?\s?[=:]\s?(\d{1,6})\b")
_BATCHES = re.compile(r"CONFIG: micro_batches=(\d{1,9}) micro_batch_size=(\d{1,9})\s")
_GROUP = re.compile(r"MPU (DP|PP|MP): \[(\d[\d, ]{0,60000})\]")
_INITIALIZING = re.compile(r"> initializing (tensor |pipeline )?model parallel with size (\d{1,6})\s")
AXES = {"pipe": "pipeline_parallel", "data": "data_parallel", "model": "tensor_parallel"}
GROUPS = {"PP": "pipeline_parallel", "DP": "data_parallel", "MP": "tensor_parallel"}


def coordinates(run: LoggedRun, line: str) -> None:
    """Read the sizes from `Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ...}`: each axis counts from 0.

    With many ranks the line is longer than what is read of it, and the last ranks are missing: then it is ignored.
    """
    if not line.rstrip().endswith("}"):
        return
    sizes: dict[str, int] = {}
    for coordinate in _COORDINATE.findall(line):
        for axis, place in _AXIS.findall(coordinate):
            sizes[axis] = max(sizes.get(axis, 0), int(place) + 1)
    if sizes.keys() <= AXES.keys() and sizes:
        run.set_used(**{setting: sizes.get(axis, 1) for axis, setting in AXES.items()})


def stage(run: LoggedRun, line: str) -> None:
    """Read `RANK=4 STAGE=1 LAYERS=15 [14, 29) ...` and `stage=1 layers=15`: a lower bound for the number of stages."""
    if found := _STAGE.search(line):
        at_least = int(found[1] or found[2]) + 1
        if at_least > run.settings.get("pipeline_parallel", 0):
            run.set_used(pipeline_parallel=at_least)


def stages(run: LoggedRun, line: str) -> None:
    """`num_stages=4`, an argument of the pipeline engine."""
    if found := _STAGES.search(line):
        run.set_requested(pipeline_parallel=count(found[1]))


def batches(run: LoggedRun, line: str) -> None:
    """`CONFIG: micro_batches=256 micro_batch_size=4`: a pipeline accumulates gradients over its micro-batches."""
    if found := _BATCHES.search(line):
        run.set_used(grad_accum=count(found[1]), micro_batch_size=count(found[2]))


def group(run: LoggedRun, line: str) -> None:
    """`MPU PP: [0, 4, 8, 12]`: the ranks of one group."""
    if found := _GROUP.search(line):
        run.set_used(**{GROUPS[found[1]]: found[2].count(",") + 1})


def initializing(run: LoggedRun, line: str) -> None:
    """`> initializing pipeline model parallel with size 16`; `model` alone is the format from before pipelines."""
    if found := _INITIALIZING.search(line):
        name = "pipeline_parallel" if found[1] == "pipeline " else "tensor_parallel"
        run.set_used(**{name: count(found[2])})


READERS = {
    "ProcessCoord(": coordinates,
    "STAGE=": stage,
    "stage=": stage,
    "num_stages": stages,
    "CONFIG: micro_batches=": batches,
    "MPU ": group,
    "model parallel with size": initializing,
}
