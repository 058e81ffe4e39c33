"""Reads a console log and splits it into training runs.

A reader that raises costs one line, not the log: what was read before stays, and the rest of the log is read. A warning
and the run's note name the line.
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
from dsnb.runs.logs.lines import line_number, relevant_lines
from dsnb.runs.logs.logged_run import LoggedRun, Steps

Reader = Callable[[LoggedRun, str], None]
_MODULES = (
    launchers, flags, deepspeed_config, deepspeed, topology, chat, megatron, iterations, trainer_arguments, trainer,
)  # fmt: skip
READERS: tuple[tuple[str, Reader], ...] = tuple(
    (needle, reader) for module in _MODULES for needle, reader in module.READERS.items()
)
"""Search string -> reader, called only for lines that contain the string: this keeps logs of gigabytes fast."""
LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ")
LAUNCHES = (*LAUNCHERS, "Initializing torch distributed with backend", "Initializing TorchBackend in DeepSpeed")
WORLD, TRAINING = "using world size: ", "***** Running training *****"
BEGINNINGS = (*LAUNCHES, WORLD, TRAINING)
"""Only a line with one of these can begin a new run."""
MAX_RUNS = 10_000
_LONGEST_FORM, _MOST_FORMS = 1000, 5000


def read(path: Path) -> list[LoggedRun]:
    """Read a console log.

    Returns
    -------
    list of LoggedRun
        In the order of the log; empty if no supported program wrote it.
    """
    runs, classify = [LoggedRun()], _line_classifier()
    for place, line in relevant_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        may_begin, readers = classify(line)
        if may_begin and len(runs) < MAX_RUNS and _begins_new_run(runs[-1], line):
            runs.append(LoggedRun())
        _set(runs[-1], place, line, readers)
        if runs[-1].steps.restarted and len(runs) < MAX_RUNS:
            runs.append(_restarted(runs[-1]))
            _set(runs[-1], place, line, readers)
    _report_reader_errors(path, runs)
    return [_with_final_program(run) for run in runs if not run.is_empty]


def _line_classifier() -> Callable[[str], tuple[bool, list[tuple[str, Reader]]]]:
    """Return a function: line -> whether it may begin a new run, and the readers to call for it.

    Its result is cached for all lines of one form, that is, lines that differ only in digits.
    """
    known: dict[bytes, tuple[bool, list[tuple[str, Reader]]]] = {}
    beginnings, readers = [_form(text) for text in BEGINNINGS], [(_form(pair[0]), pair) for pair in READERS]

    def classify(line: str) -> tuple[bool, list[tuple[str, Reader]]]:
        form = _form(line)
        if (answer := known.get(form)) is None:
            answer = any(part in form for part in beginnings), [pair for part, pair in readers if part in form]
            if len(form) < _LONGEST_FORM and len(known) < _MOST_FORMS:
                known[form] = answer
        return answer

    return classify


def _form(text: str) -> bytes:
    return text.encode().translate(None, b"0123456789")


def _set(run: LoggedRun, place: int, line: str, readers: list[tuple[str, Reader]]) -> None:
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
    """Warn once per log about lines at which a reader raised, and add a note to the runs."""
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
            f"dsnb's reader failed ({error}); please report it with the line",
            DsnbWarning,
            stacklevel=2,
        )


def _begins_new_run(run: LoggedRun, line: str) -> bool:
    """Return whether a line shows that a launcher or program starts, although this run has already started."""
    if run.configured or run.ended:
        if run.ended and TRAINING in line:
            return True
        return any(launch in line for launch in LAUNCHES) or WORLD in line
    if run.has_failed and any(launcher in line for launcher in LAUNCHERS):
        return True
    return run.scratch.get("arguments") is False and WORLD in line


def _restarted(run: LoggedRun) -> LoggedRun:
    """Return a new run that restarts at step 1 without printing its settings: those of the run before still hold."""
    again = LoggedRun(program=run.program, configured=True, settings=dict(run.settings), slots=dict(run.slots))
    again.environment, again.shape, again.steps = dict(run.environment), dict(run.shape), Steps()
    return again


def _with_final_program(run: LoggedRun) -> LoggedRun:
    if run.program == "DeepSpeed" and run.scratch.get("chat"):
        run.program = "DeepSpeed-Chat"
    return run
