"""Recognizes logs by their content, not by their names, and splits a console log into training runs."""

import os
import re
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from dsnb.base.errors import DsnbWarning
from dsnb.results.logs import (  # noqa: F401  (they register readers)
    deepspeed,
    failures,
    json_lines,
    launchers,
    megatron,
    step_csv,
    step_lines,
    tables,
    trainer,
)
from dsnb.results.logs.reading import MARKS, READERS, LoggedRun
from dsnb.results.logs.text import MAX_LINE, open_text, relevant_lines
from dsnb.results.logs.values import DECLARED

GROUP = "dsnb.log_readers"
"""The group of entry points that name modules with further readers."""
LAUNCHERS = ("Setting OMP_NUM_THREADS environment variable", ":main] cmd = ", "run sh: ")
LAUNCHES = (
    *LAUNCHERS,
    "Initializing torch distributed with backend",
    "Initializing TorchBackend in DeepSpeed",
)
WORLD, TRAINING = "using world size: ", "***** Running training *****"
BEGINNINGS = (*LAUNCHES, WORLD, TRAINING)
"""Only a line with one of these can begin a new run."""
HEAD_CHARACTERS = 16 * 2**20
NEVER = tuple(DECLARED["never_logs"])
"""Suffixes of files that are never logs."""
LIKELY = re.compile(r"(?i)\.(?:log|out|err|txt|jsonl|stdout|stderr|[oe]\d{1,12})(?:\.\d{1,6})?$")
"""Names that logs have."""
_CONSOLE = re.compile(
    r"step=\d+, skipped=\d+, lr=|time \(ms\) \| (?:fwd|forward): |DeepSpeed info: version="
    r"|SamplesPerSec=|DeepSpeedEngine configuration|WORLD INFO DICT: "
    r"|elapsed[ _]time[ _]per[ _]iteration|using world size: |iter time \(s\): "
    r"|train_runtime|'loss': |\*{5} Running training|Instantaneous batch size per |Throughput: [\d.]+ samples/sec"
    r"|iteration: \d+ (?:/ \d+ )?\||Training epoch \d+, iteration|train_step_timing in s=|step: +\d.{0,60}loss: "
    r"|\d+/\d+ \[[\d:]+<[^]\n]{0,200}loss"
    r"|\bcmd = |run sh: |with command: |\b[A-Z]\w*Arguments\(|-{4} arguments -{4}"
    r"|Setting OMP_NUM_THREADS|^\++ .*\.py|\[INFO:swift\]"
    r"|Traceback \(most recent call last\)|OutOfMemoryError: |srun: error: |slurmstepd: error: |Killing subprocess"
    r"|exits with return code|torch\.distributed\.elastic",
    re.MULTILINE,
)
"""What programs and launchers print; a launcher's line, a command line or a traceback is enough."""
_STATE = re.compile(r'\s*\{.*"log_history"\s*:', re.DOTALL)
_RESULTS = re.compile(r'\s*\{[^{}]*"train_runtime"\s*:')
KINDS = (
    "console logs of DeepSpeed, DeepSpeed-Chat, Megatron-LM, Megatron-DeepSpeed, GPT-NeoX, transformers' Trainer, "
    "ms-swift, NeMo, nanotron, torchtitan and VeOmni, trainer_state.json, all_results.json, logging.jsonl and "
    "trainer_log.jsonl of Trainers, step_log.csv, and CSV files with dsnb's columns"
)
UNSUPPORTED = f"is not a log that dsnb can read: supported are {KINDS}"


def read(path: Path) -> list[LoggedRun]:
    """Read a log of any supported kind; return no runs for other files, raise LogError for a damaged log."""
    load_plugins()
    with open_text(path) as file:
        head = file.read(HEAD_CHARACTERS)
    header, _, _ = head.partition("\n")
    is_json = path.suffix == ".json"
    if set(step_csv.HEADER) <= set(header.strip().split(",")):
        return step_csv.read(path)
    if not is_json and tables.is_table(header[:MAX_LINE]):
        return tables.read(path)
    if is_json and _RESULTS.match(head):
        return trainer.read_results(path)
    return _read_log(path, head)


def _read_log(path: Path, head: str) -> list[LoggedRun]:
    """Read a record of a Trainer or a console log."""
    if path.suffix != ".json" and json_lines.is_log(head):
        return json_lines.read(path)
    if _STATE.match(head):
        return trainer.read_state(path)
    is_log = _CONSOLE.search(head) or any(mark in head for mark in MARKS)
    if is_log:
        return _read_console(path)
    return []


@cache
def load_plugins() -> None:
    """Import the modules of installed packages that register readers; warn once of one that fails."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # a package of someone else, which may fail in any way
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"log reader '{point.name}' cannot be used: {point.value} could not be loaded ({reason})",
                DsnbWarning,
                stacklevel=2,
            )


def _read_console(path: Path) -> list[LoggedRun]:
    """Return the runs in a console log, in its order; none if it is no log of a training."""
    runs = [LoggedRun()]
    for line in relevant_lines(path, {*(needle for needle, _ in READERS), *BEGINNINGS}):
        if any(beginning in line for beginning in BEGINNINGS) and _begins_new_run(runs[-1], line):
            runs.append(LoggedRun())
        read_line(runs[-1], line)
    return [run for run in runs if run.program or run.launched]


def error_files(paths: Sequence[str]) -> dict[str, str]:
    """Return the files of standard output among paths, each with that of standard error beside it."""
    stems = {path: os.path.splitext(path)[0] for path in paths}
    errors = {stems[path]: path for path in paths if path.endswith((".err", ".stderr"))}
    outputs = [path for path in paths if path.endswith((".out", ".stdout"))]
    return {path: errors[stems[path]] for path in outputs if stems[path] in errors}


def read_errors(run: LoggedRun, path: Path) -> None:
    """Read the standard error of a run whose standard output was read: progress, settings and failures."""
    for line in relevant_lines(path, {needle for needle, _ in READERS}):
        read_line(run, line)


def looks_like_log(path: Path) -> bool:
    """Return whether a file that was not read may be a log: by its name, unless it is empty."""
    return LIKELY.search(path.name) is not None and path.stat().st_size > 0


def read_line(run: LoggedRun, line: str) -> None:
    """Pass a line to every reader whose search string it contains."""
    for reader in [reader for needle, reader in READERS if needle in line]:
        reader(run, line)


def _begins_new_run(run: LoggedRun, line: str) -> bool:
    """Return whether a line is the start of another run."""
    if TRAINING in line and (run.ended or (run.has_failed and run.progress)):
        return True
    if run.configured or run.ended:
        return any(launch in line for launch in (*LAUNCHES, WORLD))
    if run.has_failed and any(launcher in line for launcher in LAUNCHERS):
        return True
    return run.scratch["arguments"] is False and WORLD in line
