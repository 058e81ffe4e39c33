"""Tasks: what must be trained, whatever trains it. Runs of different tasks are never compared.

A task is a model, a sequence length, the data, whether all weights or LoRA adapters are trained, and
the program that trains. Everything else is a way to do it: how it is shared among GPUs, precision,
batch sizes, recomputation, the GPU itself. Another program's loop does other work besides, so its
speed says nothing about a setting of dsnb's loop. Runs on an unknown number of GPUs are a task of their own: neither
their tokens/s nor those per GPU can be compared with others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dsnb.base.formulas import planning
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.results.runs import labels
from dsnb.results.runs.table import loops, numbers
from dsnb.settings.experiment import Experiment
from dsnb.settings.programs import DSNB, PUBLISHED

TRAINED = "trained"
"""Derived column: what is trained, `all weights` or `LoRA adapters`."""
PROGRAM = "program"
TASK = ("model", "seq_len", "data", TRAINED, PROGRAM)
"""The columns that make a task."""
UNKNOWN = labels.text(None)
FEWEST_SETTINGS = 5
"""Settings of a task below which none is recommended: the best of a few may be far from the
best."""
_HAS_GPUS = "has_gpus"
"""Whether the number of GPUs is known."""
_USUAL = {"data": "synthetic", TRAINED: "all weights", PROGRAM: DSNB}


@dataclass(frozen=True)
class Task:
    """One task and its runs."""

    title: str
    """What is trained, as in "opt-350m, sequence 512"."""
    model: str
    rest: str
    """What makes the task besides the model, as in "sequence 512"."""
    name: str
    """The title without the sequence length."""
    runs: pd.DataFrame
    knows_gpus: bool
    """Whether the number of GPUs of its runs is known."""

    @property
    def settings(self) -> int:
        """The number of settings with an ok run."""
        runs = self.runs.reindex(columns=["sweep", "experiment", "status"])
        return len(runs[runs["status"] == "ok"].drop_duplicates())

    @property
    def parameters(self) -> float:
        """The size of the model: as measured, else as published, else 0."""
        return parameters(self.runs)


def parameters(runs: pd.DataFrame) -> float:
    """Return the size of the model of a task: as measured, else as published, else 0."""
    measured = float(numbers(runs, "parameters").max())
    if measured > 0:
        return measured
    for name in runs["model"].unique() if "model" in runs else []:
        if name in PRESETS:
            return float(PRESETS[name].parameters)
    return 0.0


def is_fine_tuning(runs: pd.DataFrame) -> bool:
    """Return whether every run of a task adapts a trained model, by LoRA or from pretrained weights."""
    columns = runs.reindex(columns=["lora_rank", "weights"])
    return bool(len(runs)) and all(map(planning.is_fine_tuning, columns.to_dict("records")))


def tasks(runs: pd.DataFrame) -> list[Task]:
    """Split runs by task, those with the most runs first and those with few settings last.

    Columns that are missing count as equal.

    >>> runs = pd.DataFrame({"model": ["gpt2", "gpt2", "opt-125m"], "seq_len": [128, 128, 512], "gpus": 1})
    >>> [(task.title, len(task.runs)) for task in tasks(runs)]
    [('gpt2, sequence 128', 2), ('opt-125m, sequence 512', 1)]
    """
    keys = labels.texts(with_trained(runs).reindex(columns=list(TASK)))
    keys[PROGRAM] = loops(runs)
    is_unknown = (keys == UNKNOWN).any() & (keys.nunique() > 1)
    unknown = [name for name in TASK if is_unknown[name]]
    says_program = keys[PROGRAM].nunique() > 1
    source = runs.get("source", pd.Series("", runs.index)).astype(str)
    is_published = source.str.startswith(PUBLISHED)  # its name says so
    keys[_HAS_GPUS] = runs.get("gpus", pd.Series(0, runs.index)).notna()
    parts = []
    for _, part in keys.reset_index(drop=True).groupby([*TASK, _HAS_GPUS], sort=False):
        key = part.iloc[0].copy()
        if not says_program or is_published.iloc[part.index].all():
            key[PROGRAM] = DSNB
        model, *rest = _names(key, unknown)
        known = [name for name in rest if name]
        task = Task(
            title=", ".join(filter(None, [model, *rest])),
            model=model,
            rest=", ".join(known),
            name=", ".join(filter(None, [model, *rest[1:]])),
            runs=runs.iloc[part.index],
            knows_gpus=bool(part[_HAS_GPUS].iloc[0]),
        )
        parts.append(task)
    return sorted(parts, key=lambda task: (task.settings < FEWEST_SETTINGS, -len(task.runs)))


def settings_of(experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Return the settings that tell tasks apart, one row per experiment, for `tasks`."""
    names = ("model", "seq_len", "data", "lora_rank")
    return pd.DataFrame(
        {name: [getattr(experiment, name) for experiment in experiments] for name in names}
    )


def with_trained(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `trained`, which is missing where a log does not say whether it trains adapters."""
    rank = numbers(runs, "lora_rank")
    trained = pd.Series("all weights", runs.index, dtype=object).mask(rank > 0, "LoRA adapters")
    return runs.copy().assign(trained=trained.where(rank.notna()))  # a copy is in one piece


def _names(key: pd.Series, unknown: Sequence[str]) -> list[str]:
    """Return the model of a task, then its sequence length, whatever is unusual, and what other tasks do not tell."""
    names = []
    for name in TASK:
        is_usual = key[name] == _USUAL.get(name) and name not in unknown
        described = ""
        if key[name] != UNKNOWN and not is_usual:
            described = labels.axis(name).describe(key[name])
        names.append(described)
    if not key[_HAS_GPUS]:
        names.append(labels.place({}))
    return names
