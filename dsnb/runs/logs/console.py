"""Reads a console log and splits it into training runs."""

from functools import cache, lru_cache
from pathlib import Path

from dsnb.errors import LogError
from dsnb.runs.logs import chat, deepspeed, flags, launchers, megatron, trainer
from dsnb.runs.logs.lines import relevant_lines
from dsnb.runs.logs.logged_run import LoggedRun, Reader, Steps

READERS: tuple[tuple[str, Reader], ...] = tuple(
    (needle, reader)
    for module in (launchers, flags, deepspeed, chat, megatron, trainer)
    for needle, reader in module.READERS.items()
)
"""Search string -> reader, called only for lines that contain the string: this keeps logs of gigabytes fast."""
LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ")
LAUNCHES = (*LAUNCHERS, "Initializing torch distributed with backend", "Initializing TorchBackend in DeepSpeed")
WORLD, TRAINING = "using world size: ", "***** Running training *****"
BEGINNINGS = (*LAUNCHES, WORLD, TRAINING)
"""Only a line with one of these can begin a new run."""
MAX_RUNS = 10_000
_MAX_CACHED = 1000
"""Characters of a line whose readers are kept for the next one of its form."""


def read(path: Path) -> list[LoggedRun]:
    """Read a console log.

    Returns
    -------
    list of LoggedRun
        In the order of the log; empty if no supported program wrote it.

    Raises
    ------
    LogError
        If a reader fails at a line.
    """
    runs = [LoggedRun()]
    for number, line in relevant_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        try:
            _read_line(runs, line)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise LogError(path, f"cannot be read: dsnb's reader failed ({what}); please report it", number) from error
    return [_with_final_program(run) for run in runs if run.program]


def _read_line(runs: list[LoggedRun], line: str) -> None:
    form = line.encode("utf-8", "replace").translate(None, b"0123456789")
    may_begin, readers = (_readers if len(form) < _MAX_CACHED else _readers.__wrapped__)(form)
    if may_begin and len(runs) < MAX_RUNS and _begins_new_run(runs[-1], line):
        runs.append(LoggedRun())
    _set(runs[-1], line, readers)
    if runs[-1].steps.restarted and len(runs) < MAX_RUNS:
        runs.append(_restarted(runs[-1]))
        _set(runs[-1], line, readers)


@lru_cache(maxsize=4096)
def _readers(form: bytes) -> tuple[bool, list[tuple[str, Reader]]]:
    """Return whether a line may begin a new run, and its readers; lines of one form differ only in digits."""
    return any(_form(text) in form for text in BEGINNINGS), [one for one in READERS if _form(one[0]) in form]


@cache
def _form(needle: str) -> bytes:
    return needle.encode().translate(None, b"0123456789")


def _set(run: LoggedRun, line: str, readers: list[tuple[str, Reader]]) -> None:
    for needle, reader in readers:
        if needle in line:
            reader(run, line)


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
