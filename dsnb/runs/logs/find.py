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
UNSUPPORTED = f"is not a log that dsnb can read: supported are {KINDS}"
_STATE = re.compile(rb'^\s*\{.*"log_history"\s*:', re.DOTALL)


def read(path: Path) -> list[LoggedRun]:
    """Read a log of any supported kind; no runs for a file that is none.

    Raises
    ------
    LogError
        If it looks like a log and cannot be read.
    """
    with contained(path):
        if not (reader := _reader(_head(path))):
            return []
        if runs := reader(path):
            return runs
    raise LogError(path, UNSUPPORTED)


def _head(path: Path) -> bytes:
    """Return the beginning of a file, and the end of a large one, as UTF-8."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if len(head) == HEAD_BYTES:
            size = file.seek(0, 2)
            file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
            head += file.read(TAIL_BYTES)
    return head if encoding(head) == "utf-8" else decode(head).encode("utf-8", "replace")


def _reader(head: bytes) -> Callable[[Path], list[LoggedRun]] | None:
    first = head.split(b"\n", 1)[0].strip().decode("utf-8", "replace").split(",")
    if set(step_csv.HEADER) <= set(first):
        return step_csv.read
    if _STATE.match(head):
        return trainer_state.read
    return console.read if _CONSOLE.search(head) else None


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
