"""What can be chosen about a training, in the columns that a reader thinks in.

How a training is shared among GPUs is one choice with the values plain, DDP, FSDP, ZeRO 0 to 3 and TP x PP: "FSDP to
ZeRO 3" changes one thing. What belongs to the measurement, such as the number of steps, is no choice.
"""

import pandas as pd

from dsnb.analysis.summary import axes
from dsnb.analysis.tasks import TRAINED, with_trained
from dsnb.runs import labels, setting_words

SHARING = ("strategy", "zero_stage", "tensor_parallel", "pipeline_parallel")
"""The columns that the one choice `strategy` stands for."""
MEASUREMENT = {"steps", "warmup_steps", "seed", "profile", "launcher", "nvme_path"}
"""Settings of how a run was measured, not of how a training is done."""


def choices(runs: pd.DataFrame) -> list[str]:
    """Return the columns of `with_choices(runs)` that distinguish settings, in display order."""
    return [name for name in axes(runs) if name not in {*SHARING[1:], *MEASUREMENT, TRAINED}]


def with_choices(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with `strategy` as one value for all of its columns, and with `trained`."""
    names = [name for name in SHARING if name in runs]
    if not names:
        return with_trained(runs)
    rows = runs[names].astype(object).to_numpy()
    keys = [tuple(map(labels.text, row)) for row in rows]
    distinct = dict(zip(keys, rows, strict=True))
    words = {key: setting_words.strategy(dict(zip(names, row, strict=True))) or None for key, row in distinct.items()}
    return with_trained(runs).assign(strategy=pd.Series([words[key] for key in keys], index=runs.index, dtype=object))


def varying(runs: pd.DataFrame) -> list[str]:
    """Return the choices that have more than one value in the runs of `with_choices`; nodes only if GPUs have not."""
    names = [name for name in choices(runs) if runs[name].map(labels.text).nunique() > 1]
    return [name for name in names if name != "nodes" or "gpus" not in names]
