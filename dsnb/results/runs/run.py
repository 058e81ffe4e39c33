"""One run folder of dsnb: its records, how the run ended, and its row in the table of runs.

A run is a few small files, so system calls dominate when thousands are loaded: paths are strings
instead of `Path` objects, every file is read once, and of the executed notebook only the end is
read, where papermill stores its times.
"""

import functools
import hashlib
import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Self

import orjson

from dsnb.base.files import json_files, plain_text
from dsnb.base.formulas import metrics, model_shapes
from dsnb.base.system import hardware
from dsnb.results.runs import names
from dsnb.results.runs.names import displayable
from dsnb.settings import flat_keys, programs
from dsnb.settings.experiment import DEFAULTS, UNNAMED, Experiment, with_former_defaults
from dsnb.settings.records import agreement, record_schema
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.columns import (
    ENVIRONMENT,
    METRIC_COLUMNS,
    ORDER,
    PHASES,
    SETTINGS,
    SUMMARY_TEXTS,
)
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import missing_record

RUN_ID = "run_id"
NOTEBOOK_END_BYTES = 8 * 1024
MAX_NAMED = 3
"""Copies of one run that its note names."""
MAX_HOST = 253
"""Characters; the limit of the domain name system."""
MAX_DIGEST = 12
"""Characters of an input file's digest in the table."""
Record = dict[str, Any]
_DURATION = re.compile(rb'"duration": ([0-9]{1,9}(?:\.[0-9]{1,20})?)[,\s}]')
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_RUN = RunPaths(Path())
_SETTINGS = _RUN.experiment.name
_MACHINE = _RUN.environment.name
_RESULT = _RUN.result.name
_STEPS = _RUN.steps.name
_NOTEBOOK = _RUN.notebook.name
_SETTING_COLUMNS = {*SETTINGS, "device", "launcher", *ORDER}
_DEFAULTS = {name: value for name, value in DEFAULTS.items() if name in _SETTING_COLUMNS}
_SUMMARY_COLUMNS = {*METRIC_COLUMNS, *SUMMARY_TEXTS}
_MACHINE_COLUMNS = {*ENVIRONMENT}
_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


@dataclass(eq=False)
class Run:
    """A run folder and its records, which are empty for a missing file."""

    folder: str
    settings: Record
    machine: Record
    result: Record
    names: dict[str, Any]
    """The columns that name the run; `dsnb.results.runs.names`."""
    copies: list[str] = field(default_factory=list)
    """Folders that were left out as copies of this run."""
    problem: str | None = None
    """The first invalid value in the records, in words."""
    timed_steps: TimedSteps | None = None
    """What the steps say, if their file changed after the run."""

    @classmethod
    def read(cls, folder: str) -> Self:
        """Read the records of a run as they are in its files."""
        return cls(
            folder,
            settings=json_files.read_json(f"{folder}/{_SETTINGS}") or {},
            machine=json_files.read_json(f"{folder}/{_MACHINE}") or {},
            result=json_files.read_json(f"{folder}/{_RESULT}") or {},
            names=names.from_folder(folder),
        )

    @property
    def run_id(self) -> str | None:
        """The random name of the run; None for runs of earlier versions."""
        value = self.settings.get(RUN_ID)
        if isinstance(value, str) and value:
            return value
        return None

    @property
    def has_ended(self) -> bool:
        """Whether there is a result."""
        return bool(self.result.get("status"))

    @functools.cached_property
    def outcome(self) -> tuple[str, str, bytes] | None:
        """Date, host and result, which two runs hardly share; None for a run without a date or a result."""
        date = self.machine.get("date_utc")
        if not date or not self.has_ended:
            return None
        host = self.machine.get("host")
        return str(date), str(host), orjson.dumps(self.result, option=_SORTED)

    def content(self) -> bytes:
        """Return a digest of everything that a copy has unchanged."""
        settings = {name: value for name, value in self.settings.items() if name != RUN_ID}
        recorded = orjson.dumps([settings, self.machine, self.result], option=_SORTED)
        steps = json_files.read_bytes(f"{self.folder}/{_STEPS}") or b""
        return hashlib.sha256(recorded + steps).digest()

    @property
    def model_name(self) -> str | None:
        """The name of the model: its slug, which a sweep may have extended to the left."""
        model = self.settings.get("model")
        if not isinstance(model, str) or not model:
            return None
        name = self.settings.get("model_name")
        slug = model_shapes.slug(model)
        if isinstance(name, str) and name.endswith(slug):
            return name
        return slug

    @functools.cached_property
    def is_own(self) -> bool:
        """Whether dsnb's own loop trained."""
        return programs.is_own(self.settings)

    @property
    def is_standalone(self) -> bool:
        """Whether a script of a user was recorded, which dsnb did not start."""
        return programs.is_standalone(self.settings)

    @functools.cached_property
    def recorded_name(self) -> str:
        """The name of model and experiment in the settings; empty if one of them is unknown or no name.

        That of a recorded script follows from its settings, which its recorder may have learned
        after it chose a folder.
        """
        if self.is_standalone:
            return _name_of(self.settings)
        name = self.settings.get("name")
        if not self.model_name or not isinstance(name, str) or not _NAME.fullmatch(name):
            return ""
        return f"{self.model_name}_{name}"

    def clean(self) -> None:
        """Bring the records up to date and remove their invalid values, the first of which is the problem."""
        self.settings = self._cleaned(_SETTINGS, self.settings)
        self.machine = self._cleaned(_MACHINE, self.machine)
        self.result = self._cleaned(_RESULT, self.result)

    def _cleaned(self, file: str, record: Record) -> Record:
        record = record_schema.current(file, record)
        if not record_schema.wrong_values(file, record)[0]:
            return record
        content, problem = record_schema.cleaned(file, record)
        self.problem = self.problem or problem
        # An invalid setting is unknown: assuming its default would be wrong.
        return {**dict.fromkeys(record), **content}

    @functools.cached_property
    def steps_bytes(self) -> int | None:
        """Size of the file of steps; None if there is none."""
        try:
            return os.stat(f"{self.folder}/{_STEPS}").st_size
        except OSError:
            return None

    @functools.cached_property
    def unfinished(self) -> str | None:
        """Why the records are not those of a finished run; None if they are."""
        has_steps = self.steps_bytes is not None
        return self.problem or missing_record(self.settings, self.machine, self.result, has_steps)

    @property
    def has_changed_steps(self) -> bool:
        """Whether the steps of a finished run are not those that its result was computed from."""
        if self.unfinished or self.result["status"] != "ok":
            return False
        return self.result.get("steps_bytes") != self.steps_bytes

    def status_and_cause(self) -> tuple[str, str | None]:
        """Return how the run ended; an unfinished one is `interrupted`, whatever its result."""
        reason = self.unfinished
        if reason is None and self.result["status"] == "ok":
            reason = agreement.contradiction(self.settings, self.result, self.timed_steps)
        if reason is None:
            return self.result["status"], self.result.get("cause")
        again = "start the sweep again"
        if self.is_standalone:
            again = "run the script again"
        return "interrupted", f"{reason}; {again}"

    def setting_columns(self) -> Record:
        """Return the settings as columns.

        Of dsnb's own runs, those that the record does not have had their former defaults; of other
        programs, they are unknown.
        """
        if not self.settings:
            return {}
        recorded = with_former_defaults(self.settings)
        chosen = _chosen(recorded, _SETTING_COLUMNS)
        if programs.is_own(self.settings):
            chosen = _DEFAULTS | chosen
        for name in flat_keys.NAMES:
            for key, value in (recorded.get(name) or {}).items():
                chosen[f"{name}.{key}"] = value
        if chosen.get("device") == "cpu":
            chosen["allocator"] = None
        return chosen

    def row(self) -> Record:
        """Return the row of a clean run in the table of runs."""
        row = self.names | self.setting_columns()
        row |= _chosen(self.result.get("summary") or {}, _SUMMARY_COLUMNS)
        row |= _chosen(self.machine, _MACHINE_COLUMNS)
        phases = _chosen(self.result.get("phases_s") or {}, PHASES)
        row |= {f"{phase}_s": time_s for phase, time_s in phases.items()}
        row["status"], row["cause"] = self.status_and_cause()
        row["program"] = programs.of_record(self.settings)
        row["source"] = row["program"]
        row["run_dir"] = displayable(self.folder)
        row["variables"] = assignments(self.machine.get("variables"))
        row["inputs"] = assignments(self.settings.get("inputs"), MAX_DIGEST)
        row["note"] = self._note(row.get("note"))
        row["notebook_s"] = self._notebook_s()
        row["hosts"] = self._hosts()
        row["price"] = self.settings.get("price_per_gpu_hour") or None
        row |= self._gpu()
        formulas = _OF_OTHERS
        if self.is_own:
            formulas = _FORMULAS
        for name, (formula, *needed) in formulas.items():
            values = [row.get(column) for column in needed]
            row[name] = None
            if None not in values:
                row[name] = formula(*values)
        return row

    def _gpu(self) -> Record:
        gpus = self.machine.get("gpus") or [{}]
        gpu = gpus[0] or {}
        memory_gib = gpu.get("memory_gib")
        limit_gib = self.settings.get("memory_limit_gib")
        if memory_gib and limit_gib:
            memory_gib = min(memory_gib, limit_gib)
        return {"gpu_name": gpu.get("name"), "gpu_memory_gib": memory_gib}

    def _note(self, note: str | None) -> str | None:
        """Return the note with the folders that were left out as copies of this run."""
        if not self.copies:
            return note
        named = ", ".join(map(displayable, self.copies[:MAX_NAMED]))
        if len(self.copies) > MAX_NAMED:
            named += f" and {len(self.copies) - MAX_NAMED} more"
        are_copies = "are copies"
        if len(self.copies) == 1:
            are_copies = "is a copy"
        return "; ".join(filter(None, [note, f"counted once: {named} {are_copies}"]))

    def _notebook_s(self) -> float | None:
        """Return papermill's wall seconds of the whole notebook, kernel start included."""
        end = json_files.read_end(f"{self.folder}/{_NOTEBOOK}", NOTEBOOK_END_BYTES) or b""
        # The first key of papermill's metadata, after all cells.
        begin = end.rfind(b'"default_parameters"')
        duration = None
        if begin >= 0:
            duration = _DURATION.search(end, begin)
        if duration:
            return float(duration[1])
        return None

    def _hosts(self) -> str | None:
        """Return the names of the hosts, `a,b`; those that were requested if it ended before it reached them."""
        if not self.settings.get("hostfile"):
            return None
        record = record_schema.read(Path(self.folder) / _RUN.nodes) or {}
        hosts = [node["host"] for node in record.get("nodes", []) if "host" in node]
        if not hosts:
            requested = str(self.settings.get("include") or "").split("@")
            hosts = [host.partition(":")[0] for host in requested]
            if not hosts[0] or len(hosts) != self.settings.get("nodes"):
                return None
        shown = [plain_text.line(host[:MAX_HOST]) for host in hosts]
        return ",".join(re.sub("[, ]", "?", host) for host in shown)


def _chosen(record: Record, columns: Collection[str]) -> Record:
    return {name: value for name, value in record.items() if name in columns}


def _data_parallel(gpus: int, *sizes: int) -> int | None:
    if min(gpus, *sizes) > 0:
        return gpus // prod(sizes)
    return None


def _product(size: int | str, *times: int) -> int | None:
    if isinstance(size, int):
        return size * prod(times)
    return None  # "auto" in earlier versions


def _per_s(count: float, time_s: float) -> float | None:
    if time_s > 0:
        return count / time_s
    return None


def _name_of(settings: Record) -> str:
    """Return the name of model and experiment by the settings; empty if nothing is known."""
    experiment = Experiment.recorded(record_schema.cleaned(_SETTINGS, settings)[0])
    if experiment.name == UNNAMED and not experiment.model:
        return ""
    return experiment.name_with_model


def _gpu_hours(device: str, wall_s: float, gpus: int) -> float | None:
    if device == "cuda":
        return metrics.run_gpu_hours(wall_s, gpus)
    return None


_FORMULAS: dict[str, tuple[Any, ...]] = {
    "data_parallel": (_data_parallel, "gpus", "tensor_parallel", "pipeline_parallel"),
    "global_batch_size": (_product, "micro_batch_size", "grad_accum", "data_parallel"),
    "tokens_per_joule": (metrics.tokens_per_joule, "tokens_per_s_per_gpu", "power_w"),
    "samples_per_s": (metrics.samples_per_s, "tokens_per_s", "seq_len"),
    "peak_tflops": (hardware.matmul_tflops, "gpu_name", "precision"),
    "mfu_of_matmul": (metrics.mfu, "tflops_per_gpu", "peak_tflops"),
    "gpu_hours": (_gpu_hours, "device", "wall_s", "gpus"),
    "cost": (metrics.cost, "gpu_hours", "price"),
}
"""Derived columns: a formula, and the columns that it needs; the column is missing if one of these is."""
_OF_OTHERS = _FORMULAS | {"samples_per_s": (_per_s, "global_batch_size", "step_time_mean_s")}
"""The same for other programs, whose sequences may differ in length."""


def assignments(values: Mapping[str, Any] | None, max_length: int | None = None) -> str | None:
    """Return an object as `name=value name=value`, values cut to a length; None if it was not recorded."""
    if values is None:
        return None
    pairs = (f"{name}={str(value)[:max_length]}" for name, value in sorted(values.items()))
    return " ".join(map(shlex.quote, pairs))
