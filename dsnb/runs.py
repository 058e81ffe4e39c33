"""A folder of outputs -> tables: one row per run, and one row per step.

Every run that was ever started is a row, whatever became of it; what was not measured is missing (NaN), never 0.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from dsnb import metrics, records
from dsnb.errors import SettingsError
from dsnb.experiment import Experiment
from dsnb.launcher.outcome import STATUSES
from dsnb.paths import RunPaths

SETTINGS = [name for name in Experiment.model_fields if name not in {"device", "time_limit_s"}]
METRICS = [
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "step_time_median_s",
    "tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "device_memory_gib",
    "host_memory_gib",
    "gpu_util_pct",
    "power_w",
    "tokens_per_joule",
    "sm_clock_mhz",
    "loss_first",
    "loss_last",
    "skipped_steps",
    "timed_steps",
    "timed_wall_s",
    "parameters",
]
PHASES = ["start", "build", "warmup", "timed", "stop", "wall"]
ENVIRONMENT = ["host", "gpu", "cpu", "cores", "driver", "python", "torch", "cuda", "nccl", "deepspeed", "transformers"]
ENVIRONMENT += ["dsnb", "git_commit", "date_utc"]
GPU_FIELDS = ["t_s", "gpu", "util_pct", "memory_used_gib", "power_w", "sm_clock_mhz"]
KEYS = ["sweep", "experiment", "repeat"]
COLUMNS = [
    *KEYS,
    "status",
    "cause",
    *SETTINGS,
    "device",
    *METRICS,
    "attention_used",
    *(f"{phase}_s" for phase in PHASES),
    "notebook_s",
    *ENVIRONMENT,
    "run_dir",
]


_DEFAULTS = {name: field.default for name, field in Experiment.model_fields.items()}
NUMBERS = [
    "repeat",
    *(name for name in SETTINGS if isinstance(_DEFAULTS[name], int | float) and not isinstance(_DEFAULTS[name], bool)),
    *METRICS,
    *(f"{phase}_s" for phase in PHASES),
    "notebook_s",
    "cores",
]


def load_runs(path: str | Path) -> pd.DataFrame:
    """Load all runs below a folder.

    Parameters
    ----------
    path
        A folder of outputs, of a sweep, of an experiment, or of one run.

    Returns
    -------
    pandas.DataFrame
        One row per run, in the order of their folders: `sweep`, `experiment`, `repeat`, `status`, `cause`, every
        setting, every figure with its unit in its name (missing where it was not measured), wall seconds by phase,
        the environment, `run_dir`. A run without a result counts as `interrupted`.

    Raises
    ------
    SettingsError
        If there is no such folder.
    """
    rows = [_row(run) for run in find_runs(path)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    for name in NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def load_gpu(run_dir: str | Path) -> pd.DataFrame:
    """Load the samples of one run's GPUs: the fields of `gpu.jsonl`, empty where there was no GPU."""
    table = pd.DataFrame(records.read_lines(RunPaths(Path(run_dir)).gpu), columns=GPU_FIELDS)
    return table.apply(pd.to_numeric, errors="coerce")


def load_steps(path: str | Path) -> pd.DataFrame:
    """Load the steps of all runs below a folder.

    Returns
    -------
    pandas.DataFrame
        One row per optimizer step: `sweep`, `experiment`, `repeat`, and the fields of `steps.jsonl`; `phase` is
        `warmup` or `timed`.

    Raises
    ------
    SettingsError
        If there is no such folder.
    """
    fields = ["step", "phase", "t_s", "step_time_s", "loss", "tokens", "allocated_gib", "reserved_gib", "skipped"]
    rows = [
        {**_names(run), **{field: step.get(field) for field in fields}}
        for run in find_runs(path)
        for step in records.read_lines(run.steps)
    ]
    table = pd.DataFrame(rows, columns=[*KEYS, *fields])
    for name in ("step", "t_s", "step_time_s", "loss", "tokens", "allocated_gib", "reserved_gib"):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def find_runs(path: str | Path) -> list[RunPaths]:
    """List the run folders below `path`, sorted by name, `run2` before `run10`.

    Raises
    ------
    SettingsError
        If there is no such folder.
    """
    root = Path(path)
    if not root.is_dir():
        raise SettingsError(f"{str(path)!r} is no folder: give a folder of outputs, such as outputs/quickstart")
    runs = [RunPaths(file.parent) for file in root.absolute().rglob(RunPaths(root).experiment.name)]
    return sorted(runs, key=lambda run: (run.dir.parent, run.repeat or 0, run.dir.name))


def _names(run: RunPaths) -> dict[str, Any]:
    if run.repeat is None:
        return {"sweep": run.dir.parent.name, "experiment": run.dir.name, "repeat": 1}
    return {"sweep": run.dir.parent.parent.name, "experiment": run.dir.parent.name, "repeat": run.repeat}


def _row(run: RunPaths) -> dict[str, Any]:
    settings = records.read_json(run.experiment) or {}
    environment = records.read_json(run.environment) or {}
    result = records.read_json(run.result) or {}
    status, cause = result.get("status"), result.get("cause")
    if status not in STATUSES:
        status, cause = "interrupted", "it was cut off before its end; start the sweep again"
    summary, phases = _mapping(result, "summary"), _mapping(result, "phases_s")
    gpus = environment.get("gpus") or []
    return {
        **_names(run),
        "status": status,
        "cause": cause,
        **{name: settings.get(name) for name in (*SETTINGS, "device")},
        **{name: summary.get(name) for name in (*METRICS, "attention_used")},
        "tokens_per_joule": _tokens_per_joule(summary),
        **{f"{phase}_s": phases.get(phase) for phase in PHASES},
        "notebook_s": _notebook_s(run),
        **{name: environment.get(name) for name in ENVIRONMENT if name != "gpu"},
        "gpu": gpus[0].get("name") if gpus and isinstance(gpus[0], dict) else None,
        "run_dir": str(run.dir),
    }


def _tokens_per_joule(summary: dict[str, Any]) -> float | None:
    rate, power_w = summary.get("tokens_per_s_per_gpu"), summary.get("power_w")
    known = isinstance(rate, int | float) and isinstance(power_w, int | float)
    return metrics.tokens_per_joule(rate, power_w) if known else None


def _mapping(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _notebook_s(run: RunPaths) -> float | None:
    """Give the wall seconds of the whole notebook, kernel start included, as papermill wrote them down."""
    if not run.notebook.exists():
        return None
    notebook = records.read_json(run.notebook) or {}
    return _mapping(_mapping(notebook, "metadata"), "papermill").get("duration")
