"""One run in a notebook: its most important figures, or why it failed and what to do, then all figures folded."""

import html
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from dsnb.base.system import hardware
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS, short_number
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result, last_lines
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.records.shortage import Shortage
from dsnb.show.render.tables import Html, bullet_list, escaped, subheading

HEADLINES = (
    "tokens_per_s", "tokens_per_s_per_gpu", "step_time_mean_s", "MEMORY", "mfu", "cpu_bound", "power_w", "loss_last",
)  # fmt: skip
"""Figures at the top, in this order; `MEMORY` is replaced by the most informative measured figure
of memory."""
PHASES = {
    "build": "building the model",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "communication": "communication between pipeline stages",
}


def card(result: Result) -> Html:
    """Return the figures of a run, or the cause of its failure, the memory that was lacking, and advice."""
    title = f"{result.run_dir.parent.name}: {result.status}"
    shown = _figures(result) if result.status == "ok" else _failure(result)
    return Html(f"{subheading(title)}{shown}{_all_figures(result)}{_trace(result.paths)}")


def _figures(result: Result) -> str:
    summary = result.summary
    memory = next((name for name in MEMORY if summary.get(name) is not None), MEMORY[0])
    names = [memory if name == "MEMORY" else name for name in HEADLINES]
    if summary.get("tokens_per_s") == summary.get("tokens_per_s_per_gpu"):
        names.remove("tokens_per_s_per_gpu")  # one rank
    text = _table(_labelled(result, names))
    for remark in (summary.get("note"), _unknown_gpu(result)):
        text += f"<p>Note: {escaped(remark)}</p>" if remark else ""
    return text


def _unknown_gpu(result: Result) -> str:
    """Return that the MFU is missing because the GPU is unknown; empty if it is not."""
    name = RunRecord(result.paths).worker.get("gpu_name")
    if not name or hardware.peak_tflops(name, "fp32"):
        return ""
    return f"The peak rate of {name} is unknown, and with it the MFU."


def _failure(result: Result) -> str:
    text = f"<p><strong>Cause:</strong> {escaped(result.cause)}</p>"
    shortage = result.shortage()
    if shortage:
        text += _table(_memory(shortage))
    text += f"<p><strong>What could help:</strong></p>{bullet_list(result.advice())}"
    log = "\n".join(last_lines(result.paths.console))
    if log:
        text += _folded("Last lines of the log", f"<pre>{escaped(log)}</pre>")
    return text


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _memory(shortage: Shortage) -> list[tuple[str, str]]:
    """Return the rows on the memory that was lacking, as far as it is known."""
    capacity = f"memory of the {'machine' if shortage.of_host else 'GPU'} (GiB)"
    if shortage.experiment.memory_limit_gib:
        capacity = "memory_limit_gib"
    rows = {
        "allocated (GiB)": shortage.allocated_gib,
        "requested on top (GiB)": shortage.requested_gib,
        capacity: shortage.capacity_gib,
    }
    shown = [(title, f"{value:,.2f}") for title, value in rows.items() if value is not None]
    if shortage.phase:
        shown.append(("phase", PHASES.get(shortage.phase, shortage.phase)))
    return shown


def _labelled(result: Result, names: Iterable[str]) -> list[tuple[str, str]]:
    unit = labels.unit(RunRecord(result.paths).settings)
    rows = []
    for name in names:
        label = METRIC_LABELS[name]
        value = result.summary.get(name)
        if value is not None:
            shown = value * label.factor
            digits = label.digits + 2 if abs(shown) < 1 else label.digits
            rows.append((label.heading.replace("GPU", unit), f"{shown:,.{digits}f}"))
    return rows


def _all_figures(result: Result) -> str:
    rows = _labelled(result, METRIC_LABELS)
    for name, value in result.summary.items():
        if value is not None and name not in METRIC_LABELS:
            rows.append((name, short_number(value)))
    for name, seconds in result.phases_s.items():
        rows.append((f"wall time: {name} (s)", f"{seconds:,.1f}"))
    return _folded("All figures", _table(rows)) if rows else ""


def _table(rows: list[tuple[str, str]]) -> str:
    cells = ""
    for title, value in rows:
        name = f"<th scope='row' style='text-align:left'>{escaped(title)}</th>"
        cells += f"<tr>{name}<td>{escaped(value)}</td></tr>"
    return f"<table>{cells}</table>" if rows else ""


def _trace(run: RunPaths) -> str:
    """Return a link to the profiler's trace, relative to the run's notebook or to the current folder."""
    if not run.trace.exists():
        return ""
    target = os.path.relpath(run.trace, run.dir if run.notebook.exists() else Path.cwd())
    link = f'<a href="{html.escape(quote(target))}">{html.escape(target)}</a>'
    return f"<p>{link} (trace of one step, for https://ui.perfetto.dev)</p>"
