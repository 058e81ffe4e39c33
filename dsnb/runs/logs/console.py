"""Goes through a console log and finds the runs of a training in it.

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
from dsnb.runs.logs.logged_run import LoggedRun, Steps

Reader = Callable[[LoggedRun, str], None]
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
"""Only a line with one of these may begin another run."""
MAX_RUNS = 10_000
_LONGEST_FORM, _MOST_FORMS = 1000, 5000


def read(path: Path) -> list[LoggedRun]:
    """Read a console log.

    Returns
    -------
    list of LoggedRun
        In the order of the log; empty if no known program wrote it.
    """
    runs, choose = [LoggedRun()], _chooser()
    for place, line in telling_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        may_begin, readers = choose(line)
        if may_begin and len(runs) < MAX_RUNS and _begins_new_run(runs[-1], line):
            runs.append(LoggedRun())
        _take(runs[-1], place, line, readers)
        if runs[-1].steps.restarted and len(runs) < MAX_RUNS:
            runs.append(_restarted(runs[-1]))
            _take(runs[-1], place, line, readers)
    _report_reader_errors(path, runs)
    return [_refine_program(run) for run in runs if not run.is_empty]


def _chooser() -> Callable[[str], tuple[bool, list[tuple[str, Reader]]]]:
    """Return what says of a line whether it may begin another run, and which readers to ask about it.

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


def _take(run: LoggedRun, place: int, line: str, readers: list[tuple[str, Reader]]) -> None:
    for needle, reader in readers:
        if needle in line:
            try:
                reader(run, line)
            except MemoryError:
                raise
            except Exception as error:
                run.reader_errors += 1
                if run.first_reader_error is None:
                    run.first_reader_error = place, " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _report_reader_errors(path: Path, runs: list[LoggedRun]) -> None:
    """Warn of lines at which a reader failed, once a log, and note them with the runs."""
    for run in runs:
        if run.first_reader_error:
            number = line_number(path, run.first_reader_error[0])
            run.notes.append(f"line {number} could not be read" + (", among others" if run.reader_errors > 1 else ""))
    faulty = [run for run in runs if run.first_reader_error]
    if faulty:
        place, error = faulty[0].first_reader_error or (0, "")
        others = sum(run.reader_errors for run in faulty) - 1
        warnings.warn(
            f"{path}, line {line_number(path, place)} is left out{f', and {others} more' if others else ''}: "
            f"a reader of dsnb's failed at it ({error})",
            DsnbWarning,
            stacklevel=2,
        )


def _begins_new_run(run: LoggedRun, line: str) -> bool:
    """Say whether a line can only be said by a launcher or program that starts, though this one has started already."""
    if run.configured or run.ended:
        if run.ended and TRAINING in line:
            return True
        return any(launch in line for launch in LAUNCHES) or WORLD in line
    if run.has_failed and any(launcher in line for launcher in LAUNCHERS):
        return True
    return run.scratch.get("arguments") is False and WORLD in line


def _restarted(run: LoggedRun) -> LoggedRun:
    """Return a run that begins with no line of its own but step 1: its settings can only be those before."""
    again = LoggedRun(program=run.program, configured=True, settings=dict(run.settings), slots=dict(run.slots))
    again.environment, again.shape, again.steps = dict(run.environment), dict(run.shape), Steps()
    return again


def _refine_program(run: LoggedRun) -> LoggedRun:
    if run.program == "DeepSpeed" and run.scratch.get("chat"):
        run.program = "DeepSpeed-Chat"
    return run
