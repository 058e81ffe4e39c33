"""Measured runs as the time model sees them: settings, GPU, link and step time of each row of a table of runs."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.gpus import Link
from dsnb.prediction.step_time import Setting, setting
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import compile_mode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Measured:
    """One measured run: what was run, on what, how long a step took, and its counts."""

    experiment: Experiment
    gpu_name: str
    step_time_s: float
    setting: Setting


def measured(runs: "pd.DataFrame", link: Link | str = "nvlink") -> list[Measured]:
    """Return the successful runs of a table in the columns of `load_runs`, without unknown GPUs and models.

    Parameters
    ----------
    runs
        One row per run. What a row does not tell has its default; its step time may follow from tokens per second.
    link
        How the GPUs of these runs are connected.
    """
    path = gpus.link(link) if isinstance(link, str) else link
    return [run for record in runs.to_dict("records") if (run := of_record(record, path))]


def recorded(record: dict[str, Any]) -> Experiment:
    """Return the settings of a row of a table of runs, unchecked; what it does not tell has its default."""
    told = {name: value for name, value in record.items() if not _missing(value)}
    settings = {name: value for name, value in told.items() if name in DEFAULTS}
    for name, value in settings.items():
        if isinstance(DEFAULTS[name], int):  # whole numbers and truth values come as fractions
            settings[name] = type(DEFAULTS[name])(value)
    if not isinstance(settings.get("deepspeed"), dict):
        settings["deepspeed"] = {}  # in a table of runs, the column of this name holds DeepSpeed's version
    if "compile" in settings:
        settings["compile"] = compile_mode(settings["compile"])
    keys = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in told.items()
        if name.startswith("deepspeed.")
    }
    return Experiment.recorded(deepspeed_keys.flattened({**settings, **keys}))


def of_record(record: dict[str, Any], link: Link) -> Measured | None:
    """Return the measured run of one row; None if it did not succeed, or its GPU or its model are unknown."""
    told = {name: value for name, value in record.items() if not _missing(value)}
    if told.get("status", "ok") != "ok" or "gpu_name" not in told:
        return None
    experiment, name = recorded(record), str(told["gpu_name"])
    seconds = told.get("step_time_s")
    if seconds is None and "tokens_per_s" in told:
        seconds = experiment.tokens_per_step / float(told["tokens_per_s"])
    try:
        counts = setting(experiment, gpus.find(name), link)
    except SettingsError:
        return None
    return Measured(experiment, name, float(seconds), counts) if seconds and seconds > 0 else None


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
