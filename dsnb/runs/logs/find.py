"""Detects logs by their content, not by their names."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from dsnb.errors import LogError
from dsnb.runs.logs import console, step_csv, trainer_state
from dsnb.runs.logs.lines import decode, encoding
from dsnb.runs.logs.logged_run import LoggedRun

HEAD_BYTES, TAIL_BYTES = 4 * 2**20, 2**20
NEVER = {
    ".ipynb", ".html", ".png", ".jpg", ".svg", ".pdf", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".pkl",
    ".parquet", ".arrow", ".zip", ".gz", ".xz", ".zst", ".tar", ".so", ".o", ".pyc", ".py", ".js", ".css", ".yaml",
    ".yml", ".toml", ".md",
}  # fmt: skip
"""Suffixes of files that are never logs."""
_CONSOLE = re.compile(
    rb"DeepSpeed info: version=|SamplesPerSec=|DeepSpeedEngine configuration|WORLD INFO DICT: "
    rb"|runner\.py:\d+:main\] cmd|elapsed[ _]time[ _]per[ _]iteration|using world size: |iter time \(s\): "
    rb"|train_runtime|'loss': |Instantaneous batch size per |Throughput: [\d.]+ samples/sec|, Time/seq "
    rb"|End-to-End => Latency"
)
KINDS = (
    "console logs of DeepSpeed, DeepSpeed-Chat, Megatron-LM, Megatron-DeepSpeed and transformers' Trainer, "
    "trainer_state.json, and step_log.csv"
)
Reader = Callable[[Path], list[LoggedRun]]
_STATE = re.compile(rb'^\s*\{.*"log_history"\s*:', re.DOTALL)


def reader(path: Path) -> Reader | None:
    """Return the function that can read this file; None if it is not a supported log.

    Raises
    ------
    LogError
        If it cannot be opened, or looks like a log in an unsupported encoding.
    """
    with contained(path):
        return _reader(path, _head(path))


def _head(path: Path) -> bytes:
    """Return the beginning of a file, and the end of a large one, as UTF-8."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if len(head) == HEAD_BYTES:
            size = file.seek(0, 2)
            file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
            head += file.read(TAIL_BYTES)
    return head if encoding(head) == "utf-8" else decode(head).encode("utf-8", "replace")


def _reader(path: Path, head: bytes) -> Reader | None:
    first = head.split(b"\n", 1)[0].strip().decode("utf-8", "replace").split(",")
    if set(step_csv.HEADER) <= set(first):
        return step_csv.read
    if _STATE.match(head):
        return trainer_state.read
    if _CONSOLE.search(head):
        return console.read
    if b"\0" in head and _CONSOLE.search(head.replace(b"\0", b"")):
        raise LogError(
            path, "looks like a log in an unsupported encoding: save it as UTF-8, or as UTF-16 with a byte order mark"
        )
    return None


def read(path: Path, read_it: Reader | None) -> list[LoggedRun]:
    """Read a log with the function that `reader` returned for it.

    Raises
    ------
    LogError
        If it cannot be read, or is not a supported log.
    """
    with contained(path):
        runs = read_it(path) if read_it else []
    if not runs:
        raise LogError(path, f"is not a log that dsnb can read: supported are {KINDS}")
    return runs


@contextlib.contextmanager
def contained(path: Path) -> Iterator[None]:
    """Convert any exception from one log to a `LogError`, so that the other logs of a folder are still read.

    Raises
    ------
    LogError
        For every `Exception` except `MemoryError`.
    """
    try:
        yield
    except (LogError, MemoryError):
        raise
    except OSError as error:
        raise LogError(path, f"cannot be read: {error.strerror or error}") from error
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise LogError(path, f"cannot be read: dsnb's reader failed ({what}); please report it with the log") from error
