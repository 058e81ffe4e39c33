"""The published rows as experiments, and what dsnb predicts for each of them.

`programs.toml` says what programs do that the settings of their rows do not say. A row that dsnb
cannot express, such as one of an unknown GPU or setting, stays in the table with the reason.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from dsnb.base.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.predict import on_gpu, tabulated
from dsnb.prediction.step_time import StepCounts, count_step, step_times
from dsnb.prediction.traces import MemoryTrace, attempts
from dsnb.settings.experiment import Experiment

HERE = Path(__file__).parent
ROWS = HERE / "rows.json"
PROGRAMS: dict[str, Any] = tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))
KERNELS = PROGRAMS["kernels"]
FILES = ("model", "hostfile")
"""Settings that name a file beside the rows."""
COPIED = ("source", "model", "gpu", "gpus", "nodes", "link", "group", "memkind", "close")
ERRORS = (SettingsError, ValidationError, ValueError, TypeError, KeyError, OSError)
"""What a row of unknown settings, models or hardware may raise."""
TOKENS = 1e9
"""Tokens to train on, whose days have the range of a speed."""


@dataclass(frozen=True)
class Row:
    """One published measurement."""

    published: Mapping[str, Any]
    experiment: Experiment | None
    as_published: Experiment | None
    """Without what is known of its program."""
    program: Mapping[str, Any]
    """What is known of its program."""
    problem: str = ""
    """Why dsnb cannot express it; empty if it can."""

    def counts_of_dsnb(self) -> StepCounts:
        """Return the counts of dsnb's own step with the published settings."""
        return self._count(self.as_published)

    def _count(self, experiment: Experiment | None) -> StepCounts:
        assert experiment
        return count_step(experiment, gpus.find(self.gpu), gpus.link(self.published["link"]))

    def counts(self) -> StepCounts:
        """Return the counts of the program's step, with the rates of its card and its attention."""
        counts = self._count(self.experiment)
        rates = self.program.get("rates", {})
        products = rates.get("products", 1.0)
        return replace(
            counts,
            peak_flops=counts.peak_flops * products,
            attention_flops_per_s=counts.attention_flops_per_s * products * self.attention_share,
            memory_bytes_per_s=counts.memory_bytes_per_s * rates.get("memory", 1.0),
        )

    @property
    def gpu(self) -> str:
        """Its GPU, as `dsnb.predict` takes it: the program's, if dsnb knows that by now."""
        of_program = self.program.get("gpu")
        if of_program and gpus.known_gpu(of_program):
            return str(of_program)
        return str(self.published["gpu"])

    @property
    def kernel(self) -> str:
        """Attention of its program, of `KERNELS`, or `sdpa`."""
        return str(self.program.get("attention", KERNELS["usual"]))

    @property
    def attention_share(self) -> float:
        """The rate of the program's attention over that of SDPA on the GPU."""
        return float(KERNELS.get(self.kernel, {}).get(self.gpu, 1.0))

    @property
    def offloads(self) -> bool:
        """Whether states are in host memory, so that the host decides the speed."""
        return self.experiment is not None and self.experiment.offload != "none"

    @property
    def source(self) -> str:
        """Where it was published."""
        return str(self.published.get("source", ""))


def read(file: Path = ROWS) -> list[Row]:
    """Return the rows of a file; models are in its folder, or in that of `ROWS`."""
    published = json.loads(file.read_text(encoding="utf-8"))
    return [row_of(one, file.parent) for one in published]


def row_of(published: Mapping[str, Any], folder: Path) -> Row:
    """Return one published row; models are in the given folder, or in that of `ROWS`."""
    program = _program(str(published.get("source")))
    try:
        experiment = _experiment(published, {}, folder)
        row = Row(published, experiment, experiment, program)
        row.counts()
    except ERRORS as error:
        return Row(published, None, None, program, _reason(error))
    known: dict[str, Any] = {}
    for further in known_settings(published):
        try:
            changed = replace(row, experiment=_experiment(published, known | further, folder))
            changed.counts()
        except ERRORS:  # its own settings contradict what is known of its program
            continue
        row = changed
        known |= further
    return row


def known_settings(published: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return settings beyond the published ones: those that the note names, and those of the program."""
    program = _program(str(published.get("source")))
    found = []
    note = str(published.get("note") or "")
    for phrase in PROGRAMS["phrases"]:
        if phrase["note"] in note:
            found.append(phrase["settings"])
    return [*found, program.get("settings", {})]


def _program(source: str) -> dict[str, Any]:
    """Return what is known of the program of a source; nothing for another one."""
    for program in PROGRAMS["programs"]:
        if source.startswith(program["source"]):
            return dict(program)
    return {}


def _experiment(
    published: Mapping[str, Any], further: Mapping[str, Any], folder: Path
) -> Experiment:
    settings = {**published["settings"], **further, "model": published["cfg"]}
    for name in FILES:
        if name in settings:
            settings[name] = str(find_file(settings[name], folder))
    return Experiment(**{"gpus": published["gpus"], "device": "cuda", **settings})


def find_file(name: str, folder: Path) -> Path:
    """Return a file that a row names: in the folder of its rows, or in that of `ROWS`."""
    beside = folder / name
    if beside.exists():
        return beside
    return HERE / name


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the row has no {error}"
    return " ".join(str(error).split())


def predicted(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one line for each row, in order: what was measured beside what is predicted.

    `measured` and `predicted` are tokens/s of a GPU, `low` and `high` the printed range, `ratio`
    is predicted over measured; `of_dsnb` is the speed that dsnb's own training would have with the
    published settings. `memory_gib` is predicted as the row's `mem` was measured. `problem` says
    why dsnb cannot express a row.
    """
    lines = [_measured(row) for row in rows]
    batches: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        if row.experiment:
            key = (row.gpu, row.published["link"])
            batches.setdefault(key, []).append(place)
    for (gpu, link), places in batches.items():
        batch = [rows[place] for place in places]
        for place, figures in zip(places, _predicted(batch, gpu, link), strict=True):
            lines[place] |= figures
    return pd.DataFrame(lines)


def _measured(row: Row) -> dict[str, Any]:
    line = {name: row.published.get(name, "") for name in COPIED}
    unknown = ("predicted", "of_dsnb", "ratio", "low", "high", "error_pct", "memory_gib")
    experiment = row.experiment.name_with_model if row.experiment else ""
    return {
        **line,
        "experiment": experiment,
        "nodes": row.published.get("nodes") or 1,
        "measured": row.published.get("tps"),
        "mem": row.published.get("mem"),
        "oom": bool(row.published.get("oom")),
        "fits": None,
        "tight": False,
        **dict.fromkeys(unknown, math.nan),
        "problem": row.problem,
    }


def _predicted(rows: Sequence[Row], gpu: str, link: str) -> list[dict[str, Any]]:
    """Return the predicted figures of rows on one GPU and link."""
    experiments = [row.experiment for row in rows if row.experiment]
    hardware = on_gpu(gpu, link, probe=False)
    counts = [row.counts() for row in rows]
    of_dsnb = np.asarray(step_times([row.counts_of_dsnb() for row in rows]).step_time_s).tolist()
    traced: list[MemoryTrace | None] = []
    for trace in attempts(experiments):
        traced.append(trace if isinstance(trace, MemoryTrace) else None)
    table = tabulated(experiments, counts, traced, hardware, tokens=TOKENS)
    records = table.to_dict("records")
    found = []
    for row, record, seconds in zip(rows, records, of_dsnb, strict=True):
        figures = _figures(row, record)
        figures["of_dsnb"] = figures["predicted"] * record["step_time_s"] / seconds
        found.append(figures)
    return found


def _figures(row: Row, record: Mapping[Any, Any]) -> dict[str, Any]:
    per_gpu = record["tokens_per_s"] / row.published["gpus"]
    memory = record.get("peak_allocated_gib", math.nan)
    if "reserved" in str(row.published.get("memkind")):
        memory = record.get("peak_reserved_gib", math.nan)
    return {
        "predicted": per_gpu,
        "ratio": per_gpu / (row.published.get("tps") or math.nan),
        "low": per_gpu * record["days"] / record["days_high"],
        "high": per_gpu * record["days"] / record["days_low"],
        "error_pct": record["tokens_per_s_error_pct"],
        "memory_gib": memory,
        "fits": record.get("fits"),
        "tight": record.get("tight", False),
    }
