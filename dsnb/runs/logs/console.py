"""Recognizes logs by their content, not by their names, and splits a console log into training runs."""

import re
from pathlib import Path

from dsnb.runs.logs import deepspeed, launchers, megatron, step_csv, trainer  # noqa: F401  (they register readers)
from dsnb.runs.logs.logged_run import READERS, LoggedRun
from dsnb.runs.logs.text import open_text, relevant_lines

LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ")
LAUNCHES = (*LAUNCHERS, "Initializing torch distributed with backend", "Initializing TorchBackend in DeepSpeed")
WORLD, TRAINING = "using world size: ", "***** Running training *****"
BEGINNINGS = (*LAUNCHES, WORLD, TRAINING)
"""Only a line with one of these can begin a new run."""
HEAD_CHARACTERS = 16 * 2**20
NEVER = (
    ".ipynb", ".html", ".png", ".jpg", ".svg", ".pdf", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".pkl",
    ".parquet", ".arrow", ".zip", ".gz", ".xz", ".zst", ".tar", ".so", ".o", ".pyc", ".py", ".js", ".css", ".yaml",
    ".yml", ".toml", ".md",
)  # fmt: skip
"""Suffixes of files that are never logs."""
_CONSOLE = re.compile(
    r"DeepSpeed info: version=|SamplesPerSec=|DeepSpeedEngine configuration|WORLD INFO DICT: "
    r"|runner\.py:\d+:main\] cmd|elapsed[ _]time[ _]per[ _]iteration|using world size: |iter time \(s\): "
    r"|train_runtime|'loss': |Instantaneous batch size per |Throughput: [\d.]+ samples/sec"
)
_STATE = re.compile(r'\s*\{.*"log_history"\s*:', re.DOTALL)
KINDS = (
    "console logs of DeepSpeed, DeepSpeed-Chat, Megatron-LM, Megatron-DeepSpeed and transformers' Trainer, "
    "trainer_state.json, and step_log.csv"
)
UNSUPPORTED = f"is not a log that dsnb can read: supported are {KINDS}"


def read(path: Path) -> list[LoggedRun]:
    """Read a log of any supported kind; return no runs for other files, raise LogError for a damaged log."""
    with open_text(path) as file:
        head = file.read(HEAD_CHARACTERS)
    if set(step_csv.HEADER) <= set(head.partition("\n")[0].strip().split(",")):
        return step_csv.read(path)
    if _STATE.match(head):
        return trainer.read_state(path)
    return _read_console(path) if _CONSOLE.search(head) else []


def _read_console(path: Path) -> list[LoggedRun]:
    """Return the runs in a console log, in its order; none if no supported program wrote it."""
    runs = [LoggedRun()]
    for line in relevant_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        if any(beginning in line for beginning in BEGINNINGS) and _begins_new_run(runs[-1], line):
            runs.append(LoggedRun())
        read_line(runs[-1], line)
    return [run for run in runs if run.program]


def read_line(run: LoggedRun, line: str) -> None:
    """Pass a line to every reader whose search string it contains."""
    for needle, reader in READERS:
        if needle in line:
            reader(run, line)


def _begins_new_run(run: LoggedRun, line: str) -> bool:
    """Return whether a line is the start of another run."""
    if run.ended and TRAINING in line:
        return True
    if run.configured or run.ended:
        return any(launch in line for launch in (*LAUNCHES, WORLD))
    if run.has_failed and any(launcher in line for launcher in LAUNCHERS):
        return True
    return run.scratch.get("arguments") is False and WORLD in line
