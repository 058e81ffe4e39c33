"""The axes of settings: what can be chosen about a training, in the columns that a reader thinks in.

How a training is shared among GPUs is one axis with the values plain, DDP, FSDP, ZeRO 0 to 3 and TP
x PP: "FSDP to ZeRO 3" changes one thing. What belongs to the measurement, such as the number of
steps, is no axis.
"""

from collections import Counter
from collections.abc import Collection

import pandas as pd

from dsnb.results.runs import labels
from dsnb.results.runs.names import short_names
from dsnb.results.runs.table import as_runs, with_parallelism
from dsnb.results.statistics.tasks import PROGRAM, TRAINED, with_trained
from dsnb.settings.records.columns import SETTINGS, key_columns

MEASUREMENT = {"steps", "warmup_steps", "seed", "profile", "nvme_path"}
"""Settings of how a run was measured, not of how a training is done."""
GROUPS = {
    "parallelism": (
        labels.PARALLELISM,
        "zeropp",
        "overlap_comm",
        "reduce_gradients",
        "gathered_weights",
        "bucket_elements",
        "leaf_modules",
    ),
    "precision": (
        "precision",
        "mixed_precision",
        "matmul",
        "frozen_weights",
        "grad_accum_dtype",
        "gradient_checks",
    ),
    "batch and accumulation": ("micro_batch_size", "grad_accum"),
    "checkpointing": (
        "activation_checkpointing",
        "checkpoint_every",
        "checkpoint_ops",
        "checkpoint_offload",
    ),
    "compilation": ("compile", "compile_unit", "attention", "loss", "pad_vocab"),
    "offload": ("offload",),
    "GPUs": ("gpus", "nodes", "gpu_name"),
    "other settings": (),
}
"""The axes that the effects of one change are grouped by, in their order; others are in the last
group."""
COMPARED = (labels.PARALLELISM, "precision", "source")
"""The axes within a figure of a report."""
MAX_VARIANTS = 4
"""Parts of a report that figures are drawn for."""


def setting_axes(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `with_setting_axes(runs)` that distinguish settings, in display order."""
    others = {*labels.SHARING, *MEASUREMENT, TRAINED, PROGRAM, "sweep", "status"}
    names = dict.fromkeys([*labels.AXES, *SETTINGS, *key_columns(runs)])
    return [name for name in names if name in runs and name not in others]


def with_setting_axes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with `parallelism` and `trained`, which are axes of their own."""
    return with_trained(with_parallelism(runs))


def group(name: str) -> int:
    """Return the place of an axis's group in `GROUPS`."""
    for place, names in enumerate(GROUPS.values()):
        if name in names:
            return place
    return len(GROUPS) - 1


def varying(runs: pd.DataFrame) -> list[str]:
    """Return the axes that have more than one value in the runs of `with_setting_axes`; nodes only if GPUs have not."""
    values = labels.texts(runs[setting_axes(runs)]).nunique()
    names = [str(name) for name in values.index[values > 1]]
    if "gpus" in names and "nodes" in names:
        names.remove("nodes")
    return names


def variants(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split runs into parts whose runs differ only in parallelism and precision, which the figures compare.

    Of the `MAX_VARIANTS` parts with the most runs: their title (the axes that differ between parts)
    and runs. Parts with one setting have nothing to compare: they are there only if all have one.
    """
    parts = split(as_runs(runs), COMPARED)
    comparing = [part for part in parts if _compares(part[1])]
    by_size = sorted(comparing or parts, key=lambda part: -len(part[1]))
    largest = dict(by_size[:MAX_VARIANTS])
    return {title: part for title, part in parts if title in largest}


def _compares(runs: pd.DataFrame) -> bool:
    """Return whether runs have several settings that a figure compares."""
    table = with_setting_axes(runs)
    compared = labels.texts(table[[name for name in COMPARED if name in table]])
    return len(compared.drop_duplicates()) > 1


def named_by_setting(runs: pd.DataFrame, within: Collection[str] = ()) -> pd.DataFrame:
    """Return runs whose experiments are named by their settings in words, without what all share.

    Runs that differ in axes `within` alone have one name.
    """
    runs = as_runs(runs).reset_index(drop=True)
    if runs.empty:
        return runs
    parts = split(runs, within)
    firsts = [part.iloc[0].to_dict() for _, part in parts]
    words = [f"{labels.setting(run)}, {labels.choice(run, 'gpus')}" for run in firsts]
    _, names = short_names(words)
    table = pd.DataFrame({"name": names, "title": [title for title, _ in parts]})
    for name, alike in table.groupby("name"):
        if len(alike) > 1:  # they differ in axes that the words leave out
            _, titles = short_names(list(alike["title"]))
            table.loc[alike.index, "name"] = [f"{name}, {title}" for title in titles]
    named = [
        pd.Series(name, part.index) for name, (_, part) in zip(table["name"], parts, strict=True)
    ]
    return runs.assign(experiment=pd.concat(named), sweep="")


def split(runs: pd.DataFrame, within: Collection[str]) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into parts that differ in axes other than `within`, in order of appearance.

    Each part has a title: the axes that differ between the parts, in words, as far as they are
    unusual.
    """
    table = with_setting_axes(runs)
    names = [name for name in setting_axes(table) if name not in within]
    keys = labels.texts(table[names])
    names = [name for name in names if keys[name].nunique() > 1]
    if not names:
        return [("", runs)]
    parts = []
    for _, part in keys.reset_index(drop=True).groupby(names, sort=False):
        run = table.iloc[part.index[0]].to_dict()
        unusual = [labels.unusual_choice(run, name) for name in names]
        every = [labels.choice(run, name) for name in names if labels.has_effect(run, name)]
        short = ", ".join(filter(None, unusual))
        parts.append((short, ", ".join(every), runs.iloc[part.index]))
    count = Counter(short for short, *_ in parts)
    titled = []
    for short, whole, part in parts:
        title = whole
        if short and count[short] == 1:
            title = short
        titled.append((title, part))
    return titled
