"""What can be chosen about a training, in the columns that a reader thinks in.

How a training is shared among GPUs is one choice with the values plain, DDP, FSDP, ZeRO 0 to 3 and TP x PP: "FSDP to
ZeRO 3" changes one thing. What belongs to the measurement, such as the number of steps, is no choice.
"""

from collections.abc import Collection

import pandas as pd

from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, with_parallelism
from dsnb.results.statistics.tasks import TRAINED, with_trained
from dsnb.settings.records.columns import SETTINGS, key_columns

MEASUREMENT = {"steps", "warmup_steps", "seed", "profile", "nvme_path"}
"""Settings of how a run was measured, not of how a training is done."""
GROUPS = {
    "parallelism": (
        labels.PARALLELISM,
        "zeropp",
        "overlap_comm",
        "reduce_gradients",
        "bucket_elements",
        "leaf_modules",
    ),
    "precision": ("precision", "mixed_precision", "matmul", "grad_accum_dtype", "gradient_checks"),
    "batch and accumulation": ("micro_batch_size", "grad_accum"),
    "checkpointing": ("activation_checkpointing", "checkpoint_every", "checkpoint_offload"),
    "compilation": ("compile", "compile_unit", "attention", "loss", "pad_vocab"),
    "offload": ("offload",),
    "GPUs": ("gpus", "nodes", "gpu_name"),
    "other settings": (),
}
"""The choices that the effects of one change are grouped by, in their order; others are in the last group."""
MAX_VARIANTS = 4
"""Parts of a report that figures are drawn for."""


def choices(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `with_choices(runs)` that distinguish settings, in display order."""
    others = {*labels.SHARING, *MEASUREMENT, TRAINED, "sweep", "status"}
    return [
        name
        for name in dict.fromkeys([*labels.AXES, *SETTINGS, *key_columns(runs)])
        if name in {*runs} - others
    ]


def with_choices(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with `parallelism` and `trained`, which are choices of their own."""
    return with_trained(with_parallelism(runs))


def group(name: str) -> int:
    """Return the place of a choice's group in `GROUPS`."""
    return next(
        (place for place, names in enumerate(GROUPS.values()) if name in names), len(GROUPS) - 1
    )


def varying(runs: pd.DataFrame) -> list[str]:
    """Return the choices that have more than one value in the runs of `with_choices`; nodes only if GPUs have not."""
    names = [name for name in choices(runs) if runs[name].map(labels.text).nunique() > 1]
    return [name for name in names if name != "nodes" or "gpus" not in names]


def variants(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split runs into parts whose runs differ only in parallelism and precision, which the figures compare.

    Of the `MAX_VARIANTS` parts with the most runs: their title (the choices that differ between parts) and runs.
    """
    parts = split(as_runs(runs), {labels.PARALLELISM, "precision", "source"})
    largest = sorted(range(len(parts)), key=lambda number: -len(parts[number][1]))[:MAX_VARIANTS]
    return dict(parts[number] for number in sorted(largest))


def split(runs: pd.DataFrame, within: Collection[str]) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into parts that differ in choices other than `within`, in order of appearance.

    Each part has a title: the choices that differ between the parts, in words, as far as they are unusual.
    """
    table = with_choices(runs)
    names = [name for name in choices(table) if name not in within]
    keys = table[names].astype(object).map(labels.text)  # a missing value is equal to another
    names = [name for name in names if keys[name].nunique() > 1]
    if not names:
        return [("", runs)]
    places = sorted(keys.groupby(names, sort=False).indices.values(), key=min)
    first = [table.iloc[place[0]].to_dict() for place in places]
    short = [
        ", ".join(filter(None, (labels.unusual_choice(run, name) for name in names)))
        for run in first
    ]
    whole = [
        ", ".join(labels.choice(run, name) for name in names if labels.has_effect(run, name))
        for run in first
    ]
    titles = [
        title if title and short.count(title) == 1 else words
        for title, words in zip(short, whole, strict=True)
    ]
    return [(title, runs.iloc[place]) for title, place in zip(titles, places, strict=True)]
