"""Tables measured with dsnb: runs in the columns of `dsnb.load_runs`, and of some tables the steps of each run."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.formulas import metrics, model_shapes
from dsnb.run_folder import paths
from dsnb.run_folder.columns import KEYS, RUN_COLUMNS, RUN_NUMBERS, STEP_COLUMNS
from dsnb.settings import aliases
from dsnb.settings.experiment import DEFAULTS
from dsnb.system import hardware
from dsnb.system.nvml import POWER_AVERAGE

OLDER = ("h200_gpt2_zero_precision", "h200_memory")
"""Tables of runs that recorded less than runs do now."""
OLDER_CODE = "measured with older code than the runs of 'h200'"
"""What the note of each of their runs begins with."""
WITH_STEPS = ("h200", "h100")
"""Tables with the steps of their runs."""
OWN = (*OLDER, *WITH_STEPS)
"""Names of all tables measured with dsnb, one CSV file each."""
SOURCE = "published: "
"""What `source` begins with, in front of the name of the table."""


def is_own(source: str) -> bool:
    """Return whether the column `source` of a run names a table measured with dsnb."""
    return source.startswith(SOURCE) and source.removeprefix(SOURCE) in OWN


def table(name: str) -> pd.DataFrame:
    """Load a table measured with dsnb, one row per run."""
    raw = pd.read_csv(paths.literature(name), low_memory=False).assign(source=SOURCE + name)
    return _older(raw) if name in OLDER else _whole(raw)


def steps(source: str) -> pd.DataFrame:
    """Load the steps of a table's runs, as `dsnb.load_steps` returns them; no rows if they are not published.

    Parameters
    ----------
    source
        The column `source` of its runs.
    """
    name = source.removeprefix(SOURCE)
    if name == source or name not in WITH_STEPS:
        return pd.DataFrame(columns=[*KEYS, *STEP_COLUMNS])
    return _steps(name)


@lru_cache
def _steps(name: str) -> pd.DataFrame:
    return pd.read_parquet(steps_file(name)).reindex(columns=[*KEYS, *STEP_COLUMNS])


def steps_file(name: str) -> Path:
    """Return the path of the steps of a table's runs."""
    return paths.literature(name).with_name(f"{name}_steps.parquet")


def _whole(raw: pd.DataFrame) -> pd.DataFrame:
    """Return runs as they were loaded; keys of DeepSpeed's configuration are further columns."""
    further = [name for name in raw if name not in RUN_COLUMNS]
    known = pd.DataFrame([aliases.with_former_defaults(row) for row in raw.to_dict("records")])
    runs = known.reindex(columns=[*RUN_COLUMNS, *further]).astype(dict.fromkeys(further, object))
    for column in further:  # a column with gaps was read as floats
        runs[column] = [int(one) if isinstance(one, float) and one.is_integer() else one for one in runs[column]]
    for column in RUN_NUMBERS:
        runs[column] = pd.to_numeric(runs[column])
    texts = [name for name in RUN_COLUMNS if name not in RUN_NUMBERS and runs[name].isna().all()]
    texts += ["cause", "note"]
    return runs.astype(dict.fromkeys(texts, object))


def _older(raw: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the figures that they lack and that follow from others."""
    runs = pd.DataFrame([aliases.with_former_defaults(row) for row in raw.to_dict("records")], columns=RUN_COLUMNS)
    runs = runs.assign(**{name: DEFAULTS[name] for name in DEFAULTS if name in runs and runs[name].isna().all()})
    runs["grad_accum_dtype"] = runs["grad_accum_dtype"].fillna(DEFAULTS["grad_accum_dtype"])
    runs = runs.assign(nodes=1)
    runs["data_parallel"] = runs["gpus"] // (runs["tensor_parallel"] * runs["pipeline_parallel"])
    runs["global_batch_size"] = runs["micro_batch_size"] * runs["grad_accum"] * runs["data_parallel"]
    runs["samples_per_s"] = runs["tokens_per_s"] / runs["seq_len"]
    peaks = [hardware.matmul_tflops(*one) for one in zip(runs["gpu_name"], runs["precision"], strict=True)]
    runs["mfu_of_matmul"] = runs["tflops_per_gpu"] / peaks
    runs["tokens_per_joule"] = runs["tokens_per_s_per_gpu"] / runs["power_w"]
    runs["hardware_tflops_per_gpu"] = [_hardware_tflops(row) for row in runs.to_dict("records")]
    runs["power_source"] = runs["power_source"].astype(object).where(runs["power_w"].isna(), POWER_AVERAGE)
    runs["note"] = ["; ".join([OLDER_CODE, *([one] if isinstance(one, str) else [])]) for one in runs["note"]]
    texts = ("cause", "provenance", "run_dir")
    return runs.astype({name: object for name in texts if runs[name].isna().all()})


def _hardware_tflops(row: dict[str, Any]) -> float:
    """Return the hardware TFLOP/s of a run: older runs counted embeddings and output layer as recomputed, too."""
    shape = model_shapes.PRESETS[row["model"]]
    blocks = shape.layers, shape.hidden, int(row["seq_len"])
    every = int(row["checkpoint_every"]) if row["activation_checkpointing"] else 0
    trained = row["parameters"] if pd.isna(row["trainable_parameters"]) else row["trainable_parameters"]
    once = metrics.model_flops_per_token(row["parameters"], *blocks, trained)
    again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks, every)
    return float(row["tflops_per_gpu"] * (once + again) / once)
