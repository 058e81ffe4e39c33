"""Measured runs as the time model sees them: settings, GPU, link and step time of each row of a table of runs."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsnb.errors import SettingsError
from dsnb.prediction import gpus, links
from dsnb.prediction.links import Link
from dsnb.prediction.step_time import Setting, setting
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import compile_mode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Measured:
    """One measured run.

    Attributes
    ----------
    experiment, gpu_name, step_time_s
        What was run, on what, and how long a step took.
    setting
        Its counts.
    """

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
    path = links.link(link) if isinstance(link, str) else link
    found = (of_record(record, path) for record in runs.to_dict("records"))
    return [row for row in found if row is not None]


def recorded(record: dict[str, Any]) -> Experiment:
    """Return the settings of a row of a table of runs, unchecked; what it does not tell has its default."""
    known = {name: value for name, value in record.items() if name in DEFAULTS and not _missing(value)}
    for name, value in known.items():
        if isinstance(DEFAULTS[name], int):  # whole numbers and truth values come as fractions
            known[name] = type(DEFAULTS[name])(value)
    if not isinstance(known.get("deepspeed"), dict):
        known["deepspeed"] = {}  # in a table of runs, the column of this name holds DeepSpeed's version
    if "compile" in known:
        known["compile"] = compile_mode(known["compile"])
    of_deepspeed = ((name, value) for name, value in record.items() if name.startswith("deepspeed."))
    keys = {name: _whole(value) for name, value in of_deepspeed if not _missing(value)}
    return Experiment.recorded(deepspeed_keys.flattened({**known, **keys}))


def of_record(record: dict[str, Any], link: Link) -> Measured | None:
    """Return the measured run of one row; None if it did not succeed, or its GPU or its model are unknown."""
    status = record.get("status")
    if not (_missing(status) or status == "ok") or _missing(record.get("gpu_name")):
        return None
    experiment, name = recorded(record), str(record["gpu_name"])
    seconds = record.get("step_time_s")
    if _missing(seconds):
        rate = record.get("tokens_per_s")
        seconds = None if _missing(rate) else experiment.tokens_per_step / float(rate)  # type: ignore[arg-type]
    try:
        counts = setting(experiment, gpus.find(name), link)
    except SettingsError:
        return None
    return Measured(experiment, name, float(seconds), counts) if seconds and seconds > 0 else None


def _whole(value: Any) -> Any:
    """Return a number as it was given: a column of whole numbers with gaps holds fractions."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
