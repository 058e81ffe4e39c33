"""Recognises logs by what is in them, not by their names."""

import re
from collections.abc import Callable
from pathlib import Path

from dsnb.errors import LogError
from dsnb.logs import console, step_csv, trainer_state
from dsnb.logs.start import Start

HEAD_BYTES, TAIL_BYTES = 4 * 2**20, 2**20
NEVER = {
    ".ipynb", ".html", ".png", ".jpg", ".svg", ".pdf", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".pkl",
    ".parquet", ".arrow", ".zip", ".gz", ".xz", ".zst", ".tar", ".so", ".o", ".pyc", ".py", ".js", ".css", ".yaml",
    ".yml", ".toml", ".md",
}  # fmt: skip
"""Endings of files that are no logs, whatever is in them."""
_CONSOLE = re.compile(
    rb"DeepSpeed info: version=|SamplesPerSec=|DeepSpeedEngine configuration|WORLD INFO DICT: "
    rb"|runner\.py:\d+:main\] cmd|elapsed[ _]time[ _]per[ _]iteration|using world size: |iter time \(s\): "
    rb"|train_runtime|'loss': |Instantaneous batch size per |Throughput: [\d.]+ samples/sec|, Time/seq "
    rb"|End-to-End => Latency"
)
Reader = Callable[[Path], list[Start]]
_STATE = re.compile(rb'^\s*\{.*"log_history"\s*:', re.DOTALL)


def reader(path: Path) -> Reader | None:
    """Give what can read this file; None if it is no log that dsnb knows.

    Raises
    ------
    LogError
        If it cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
            if len(head) == HEAD_BYTES:
                size = file.seek(0, 2)
                file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
                head += file.read(TAIL_BYTES)
    except OSError as error:
        raise LogError(path, f"cannot be read: {error.strerror}") from error
    first = head.split(b"\n", 1)[0].strip().decode("utf-8", "replace").split(",")
    if set(step_csv.HEADER) <= set(first):
        return step_csv.read
    if _STATE.match(head):
        return trainer_state.read
    return console.read if _CONSOLE.search(head) else None


def read(path: Path, read_it: Reader | None) -> list[Start]:
    """Read a log with what can read it, as `reader` gives it.

    Raises
    ------
    LogError
        If it cannot be read, or is of no known kind.
    """
    try:
        starts = read_it(path) if read_it else []
    except OSError as error:
        raise LogError(path, f"cannot be read: {error.strerror}") from error
    if not starts:
        raise LogError(
            path,
            "is no log that dsnb knows: it reads console logs of DeepSpeed, DeepSpeed-Chat, Megatron-LM, "
            "Megatron-DeepSpeed and transformers' Trainer, trainer_state.json, and step_log.csv",
        )
    return starts
