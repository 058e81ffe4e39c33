"""Goes through a console log, line by line, and finds the starts of a training in it."""

from pathlib import Path

from dsnb.logs import chat, deepspeed, deepspeed_config, flags, launchers, megatron, trainer
from dsnb.logs.start import Start, Steps
from dsnb.logs.text import lines

READERS = tuple(
    (needle, reader)
    for module in (launchers, flags, deepspeed_config, deepspeed, chat, megatron, trainer)
    for needle, reader in module.READERS.items()
)
"""A reader is asked about a line only if its needle is in it: that is what makes gigabytes bearable."""
LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ")
LAUNCHES = (*LAUNCHERS, "Initializing torch distributed with backend", "Initializing TorchBackend in DeepSpeed")
MOST_STARTS = 10_000


def read(path: Path) -> list[Start]:
    """Read a console log.

    Returns
    -------
    list of Start
        In the order of the log; empty if no known program wrote it.
    """
    starts = [Start()]
    for line in lines(path):
        if len(starts) < MOST_STARTS and _begins_anew(starts[-1], line):
            starts.append(Start())
        _take(starts[-1], line)
        if starts[-1].steps.fell_back and len(starts) < MOST_STARTS:
            starts.append(_again(starts[-1]))
            _take(starts[-1], line)
    return [_named(start) for start in starts if not start.is_empty]


def _take(start: Start, line: str) -> None:
    for needle, reader in READERS:
        if needle in line:
            reader(start, line)


def _begins_anew(start: Start, line: str) -> bool:
    """Say whether a line can only be said by a launcher or program that starts, though this one had started already."""
    if start.configured or start.ended:
        if start.ended and "***** Running training *****" in line:
            return True
        return any(launch in line for launch in LAUNCHES) or "using world size: " in line
    if start.is_in_trouble and any(launcher in line for launcher in LAUNCHERS):
        return True
    return start.scratch.get("arguments") is False and "using world size: " in line


def _again(start: Start) -> Start:
    """Give a start that begins with no line of its own but step 1: its settings can only be those before."""
    again = Start(program=start.program, configured=True, settings=dict(start.settings), slots=dict(start.slots))
    again.environment, again.shape, again.steps = dict(start.environment), dict(start.shape), Steps()
    return again


def _named(start: Start) -> Start:
    if start.program == "DeepSpeed" and start.scratch.get("chat"):
        start.program = "DeepSpeed-Chat"
    return start
