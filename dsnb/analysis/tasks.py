"""Tasks: what must be trained, whatever trains it. Runs of different tasks are never compared.

A task is a model, a sequence length, the data, and whether all weights or LoRA adapters are trained. Everything else
is a way to do it: how it is shared among GPUs, precision, batch sizes, recomputation, the GPU itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from dsnb.runs import labels
from dsnb.runs.table import numbers
from dsnb.settings.experiment import Experiment

TRAINED = "trained"
"""Derived column: what is trained, `all weights` or `LoRA adapters`."""
TASK = ("model", "seq_len", "data", TRAINED)
"""The columns that make a task."""
FEWEST = 2
"""Settings that make an answer: one alone is compared with nothing."""
UNKNOWN = labels.text(None)
_USUAL = {"data": "synthetic", TRAINED: "all weights"}


@dataclass(frozen=True)
class Task:
    """One task and its runs; `title` says what is trained, as in "opt-350m, sequence 512"."""

    title: str
    runs: pd.DataFrame


def tasks(runs: pd.DataFrame) -> list[Task]:
    """Split runs by task, the one with most settings of the largest model first; missing columns count as equal.

    The order is by the number of settings with a speed times the model's parameters; tasks with one setting are last.
    """
    keys = with_trained(runs).reindex(columns=list(TASK))
    keys = keys.astype(object).map(labels.text)  # a missing value is equal to another
    unknown = [name for name in TASK if keys[name].nunique() > 1 and (keys[name] == UNKNOWN).any()]
    groups = keys.groupby(list(TASK), sort=False).indices
    parts = [
        Task(_title(dict(zip(TASK, key, strict=True)), unknown), runs.iloc[places])
        for key, places in sorted(groups.items(), key=lambda group: int(group[1][0]))
    ]
    return sorted(parts, key=_order)


def _order(task: Task) -> tuple[bool, float, int, int]:
    status = task.runs.get("status", pd.Series("ok", task.runs.index))
    timed = task.runs[(numbers(task.runs, "tokens_per_s") > 0) & (status == "ok")]
    settings = timed["experiment"].nunique() if "experiment" in timed else len(timed)
    parameters = numbers(task.runs, "parameters").max()
    size = parameters if parameters > 0 else 0.0
    return settings < FEWEST, -settings * size, -settings, -len(task.runs)


def settings_of(experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Return the settings that tell tasks apart, one row per experiment, for `tasks`."""
    names = ("model", "seq_len", "data", "lora_rank")
    return pd.DataFrame({name: [getattr(one, name) for one in experiments] for name in names})


def with_trained(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `trained`; other programs' logs without a LoRA rank train all weights."""
    return runs.copy().assign(  # a copy is in one piece, which pandas asks for
        **{TRAINED: ["LoRA adapters" if rank > 0 else "all weights" for rank in numbers(runs, "lora_rank")]}
    )


def _title(key: Mapping[str, str], unknown: Sequence[str]) -> str:
    """Name a task by model, sequence length, whatever is unusual, and what other tasks do not tell."""
    shown = [name for name in TASK if name in {"model", "seq_len", *unknown} or key[name] != _USUAL.get(name)]
    known = [name for name in shown if key[name] != UNKNOWN]
    return ", ".join(labels.axis(name).describe(key[name]) for name in known)
