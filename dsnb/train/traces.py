"""Reads from a torch profiler trace of one step how long collectives ran, and for how long without computation.

It needs no torch, so a trace can be read anywhere.
"""

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

Interval = tuple[float, float]


def length(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals (begin, end): overlaps count once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def length_outside(intervals: Iterable[Interval], others: Sequence[Interval]) -> float:
    """Return the length of `intervals` that no interval of `others` covers."""
    return length([*intervals, *others]) - length(others)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the events of a trace in Chrome's format, gzipped.

    Raises
    ------
    OSError, ValueError
        If the file is missing or damaged.
    """
    with gzip.open(path) as file:
        trace = orjson.loads(file.read())
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError(f"{path} holds no trace: it has no list 'traceEvents'")
    return [event for event in trace["traceEvents"] if isinstance(event, dict)]


def communication_s(events: Iterable[dict[str, Any]], device: str) -> tuple[float | None, float | None]:
    """Return how long collectives ran, and for how much of that time no other kernel ran.

    Parameters
    ----------
    events
        Events of one rank's trace of one step.
    device
        `cuda`: NCCL's kernels, including the time in which they wait for other ranks. `cpu`: gloo's operations, from
        when its threads start them.

    Returns
    -------
    tuple
        Seconds of the union of all collectives, None if the trace shows none; and the seconds of it that no other
        kernel overlaps, None on a CPU, where the trace does not show when an operation really has a core.
    """
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    if device == "cuda":
        kernels = [event for event in spans if event.get("cat") == "kernel"]
        collectives = [_interval_s(event) for event in kernels if _is_nccl(event)]
        computing = [_interval_s(event) for event in kernels if not _is_nccl(event)]
    else:
        collectives = [_interval_s(event) for event in spans if str(event.get("name")).startswith("gloo:")]
    if not collectives:
        return None, None
    return length(collectives), length_outside(collectives, computing) if device == "cuda" else None


def step_s(events: Iterable[dict[str, Any]]) -> float | None:
    """Return how long the traced step took, including the overhead of tracing; None if the trace does not mark it."""
    steps = [event for event in events if event.get("cat") == "user_annotation" and _is_step(event)]
    return length(map(_interval_s, steps)) if steps else None


def _is_step(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith("ProfilerStep#")


def _is_nccl(event: dict[str, Any]) -> bool:
    return "nccl" in str(event.get("name")).lower()


def _interval_s(event: dict[str, Any]) -> Interval:
    """Return the interval of an event; traces are in microseconds."""
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
