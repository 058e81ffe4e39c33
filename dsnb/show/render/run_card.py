"""One run in a notebook: its most important figures, or why it failed and what to do, then all figures folded."""

import html
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from dsnb.base.system import hardware
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS
from dsnb.settings.records import record_schema
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result, last_lines
from dsnb.settings.records.shortage import Shortage
from dsnb.show.render.tables import Html, bullet_list, short_number

HEADLINES = (
    "tokens_per_s", "tokens_per_s_per_gpu", "step_time_mean_s", "MEMORY", "mfu", "cpu_bound", "power_w", "loss_last",
)  # fmt: skip
"""Figures at the top, in this order; `MEMORY` is replaced by the most informative measured figure of memory."""
PHASES = {"build": "building the model", "optimizer": "optimizer step", "forward": "forward pass"}
PHASES |= {"backward": "backward pass", "communication": "communication between pipeline stages"}


def card(result: Result) -> Html:
    """Return the figures of a run, or the cause of its failure, the memory that was lacking, and advice."""
    caption = f"<h3>{_text(result.run_dir.parent.name)}: {_text(result.status)}</h3>"
    shown = _figures(result) if result.status == "ok" else _failure(result)
    return Html(caption + shown + _all_figures(result) + _trace(RunPaths(result.run_dir)))


def _figures(result: Result) -> str:
    memory = next((name for name in MEMORY if result.summary.get(name) is not None), MEMORY[0])
    names = [memory if name == "MEMORY" else name for name in HEADLINES]
    if result.summary.get("tokens_per_s") == result.summary.get("tokens_per_s_per_gpu"):
        names.remove("tokens_per_s_per_gpu")  # one rank
    notes = filter(None, (result.summary.get("note"), _unknown_gpu(result)))
    return _table(_labelled(result, names)) + "".join(
        f"<p>Note: {_text(note)}</p>" for note in notes
    )


def _unknown_gpu(result: Result) -> str:
    """Return that the MFU is missing because the GPU is unknown; empty if it is not."""
    name = (record_schema.read(RunPaths(result.run_dir).worker) or {}).get("gpu_name")
    if not name or hardware.peak_tflops(name, "fp32"):
        return ""
    return f"The peak rate of {name} is unknown, and with it the MFU."


def _failure(result: Result) -> str:
    shortage = result.shortage()
    log = "\n".join(last_lines(RunPaths(result.run_dir).console))
    parts = [
        f"<p><strong>Cause:</strong> {_text(result.cause)}</p>",
        _table(_memory(shortage)) if shortage else "",
    ]
    parts += ["<p><strong>What could help:</strong></p>", bullet_list(result.advice()).text]
    parts += (
        [f"<details><summary>Last lines of the log</summary><pre>{_text(log)}</pre></details>"]
        if log
        else []
    )
    return "".join(parts)


def _memory(shortage: Shortage) -> list[tuple[str, str]]:
    """Return the rows on the memory that was lacking, as far as it is known."""
    capacity = f"memory of the {'machine' if shortage.of_host else 'GPU'} (GiB)"
    rows = {
        "allocated (GiB)": shortage.allocated_gib,
        "requested on top (GiB)": shortage.requested_gib,
        "memory_limit_gib"
        if shortage.experiment.memory_limit_gib
        else capacity: shortage.capacity_gib,
    }
    shown = [(title, f"{value:,.2f}") for title, value in rows.items() if value is not None]
    return shown + (
        [("phase", PHASES.get(shortage.phase, shortage.phase))] if shortage.phase else []
    )


def _labelled(result: Result, names: Iterable[str]) -> list[tuple[str, str]]:
    unit = labels.unit(record_schema.read(RunPaths(result.run_dir).experiment) or {})
    rows = []
    for name in names:
        value, label = result.summary.get(name), METRIC_LABELS[name]
        if value is not None:
            shown = value * label.factor
            digits = label.digits + 2 * (abs(shown) < 1)
            rows.append((label.heading.replace("GPU", unit), f"{shown:,.{digits}f}"))
    return rows


def _all_figures(result: Result) -> str:
    rows = _labelled(result, METRIC_LABELS)
    others = {
        name: value
        for name, value in result.summary.items()
        if value is not None and name not in METRIC_LABELS
    }
    rows += [(name, short_number(value)) for name, value in others.items()]
    rows += [
        (f"wall time: {name} (s)", f"{seconds:,.1f}") for name, seconds in result.phases_s.items()
    ]
    return f"<details><summary>All figures</summary>{_table(rows)}</details>" if rows else ""


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th scope='row' style='text-align:left'>{_text(title)}</th><td>{_text(value)}</td></tr>"
        for title, value in rows
    )
    return f"<table>{cells}</table>" if rows else ""


def _text(value: object) -> str:
    return html.escape(str(value))


def _trace(run: RunPaths) -> str:
    """Return a link to the profiler's trace, relative to the run's notebook or to the current folder."""
    if not run.trace.exists():
        return ""
    target = os.path.relpath(run.trace, run.dir if run.notebook.exists() else Path.cwd())
    link = f'<a href="{html.escape(quote(target))}">{html.escape(target)}</a>'
    return f"<p>{link} (trace of one step, for https://ui.perfetto.dev)</p>"
