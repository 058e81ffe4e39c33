"""Goes through a console log and finds the starts of a training in it.

A reader that fails costs its line and not the log: what it had already taken stays, and the rest of the log is read. A
warning and the run's note name the line.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

from dsnb.errors import DsnbWarning
from dsnb.runs.logs import (
    chat,
    deepspeed,
    deepspeed_config,
    flags,
    iterations,
    launchers,
    megatron,
    topology,
    trainer,
    trainer_arguments,
)
from dsnb.runs.logs.lines import line_number, telling_lines
from dsnb.runs.logs.logged_run import Start, Steps

Reader = Callable[[Start, str], None]
_MODULES = (
    launchers, flags, deepspeed_config, deepspeed, topology, chat, megatron, iterations, trainer_arguments, trainer,
)  # fmt: skip
READERS: tuple[tuple[str, Reader], ...] = tuple(
    (needle, reader) for module in _MODULES for needle, reader in module.READERS.items()
)
"""A reader is asked about a line only if its needle is in it: that is what makes gigabytes bearable."""
LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ")
LAUNCHES = (*LAUNCHERS, "Initializing torch distributed with backend", "Initializing TorchBackend in DeepSpeed")
WORLD, TRAINING = "using world size: ", "***** Running training *****"
BEGINNINGS = (*LAUNCHES, WORLD, TRAINING)
"""Only a line with one of these may begin another start."""
MOST_STARTS = 10_000
_LONGEST_FORM, _MOST_FORMS = 1000, 5000


def read(path: Path) -> list[Start]:
    """Read a console log.

    Returns
    -------
    list of Start
        In the order of the log; empty if no known program wrote it.
    """
    starts, choose = [Start()], _chooser()
    for place, line in telling_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        may_begin, readers = choose(line)
        if may_begin and len(starts) < MOST_STARTS and _begins_anew(starts[-1], line):
            starts.append(Start())
        _take(starts[-1], place, line, readers)
        if starts[-1].steps.fell_back and len(starts) < MOST_STARTS:
            starts.append(_again(starts[-1]))
            _take(starts[-1], place, line, readers)
    _tell_faults(path, starts)
    return [_named(start) for start in starts if not start.is_empty]


def _chooser() -> Callable[[str], tuple[bool, list[tuple[str, Reader]]]]:
    """Return what says of a line whether it may begin another start, and which readers to ask about it.

    The answer is remembered for all lines of one form, which differ in nothing but their digits.
    """
    known: dict[bytes, tuple[bool, list[tuple[str, Reader]]]] = {}
    beginnings, readers = [_form(text) for text in BEGINNINGS], [(_form(pair[0]), pair) for pair in READERS]

    def choose(line: str) -> tuple[bool, list[tuple[str, Reader]]]:
        form = _form(line)
        if (answer := known.get(form)) is None:
            answer = any(part in form for part in beginnings), [pair for part, pair in readers if part in form]
            if len(form) < _LONGEST_FORM and len(known) < _MOST_FORMS:
                known[form] = answer
        return answer

    return choose


def _form(text: str) -> bytes:
    return text.encode().translate(None, b"0123456789")


def _take(start: Start, place: int, line: str, readers: list[tuple[str, Reader]]) -> None:
    for needle, reader in readers:
        if needle in line:
            try:
                reader(start, line)
            except MemoryError:
                raise
            except Exception as error:
                start.faults += 1
                if start.first_fault is None:
                    start.first_fault = place, " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _tell_faults(path: Path, starts: list[Start]) -> None:
    """Warn of lines at which a reader failed, once a log, and note them with the runs."""
    for start in starts:
        if start.first_fault:
            number = line_number(path, start.first_fault[0])
            start.notes.append(f"line {number} could not be read" + (", among others" if start.faults > 1 else ""))
    faulty = [start for start in starts if start.first_fault]
    if faulty:
        place, error = faulty[0].first_fault or (0, "")
        others = sum(start.faults for start in faulty) - 1
        warnings.warn(
            f"{path}, line {line_number(path, place)} is left out{f', and {others} more' if others else ''}: "
            f"a reader of dsnb's failed at it ({error})",
            DsnbWarning,
            stacklevel=2,
        )


def _begins_anew(start: Start, line: str) -> bool:
    """Say whether a line can only be said by a launcher or program that starts, though this one had started already."""
    if start.configured or start.ended:
        if start.ended and TRAINING in line:
            return True
        return any(launch in line for launch in LAUNCHES) or WORLD in line
    if start.is_in_trouble and any(launcher in line for launcher in LAUNCHERS):
        return True
    return start.scratch.get("arguments") is False and WORLD in line


def _again(start: Start) -> Start:
    """Return a start that begins with no line of its own but step 1: its settings can only be those before."""
    again = Start(program=start.program, configured=True, settings=dict(start.settings), slots=dict(start.slots))
    again.environment, again.shape, again.steps = dict(start.environment), dict(start.shape), Steps()
    return again


def _named(start: Start) -> Start:
    if start.program == "DeepSpeed" and start.scratch.get("chat"):
        start.program = "DeepSpeed-Chat"
    return start
