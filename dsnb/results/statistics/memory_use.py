"""Measured and theoretical GPU memory, one row per experiment, and what changing one setting saves by both.

The formulas are in `dsnb.base.formulas.memory`; this module fills in the settings of runs.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.formulas import memory, model_shapes
from dsnb.base.system.hardware import GIB
from dsnb.results.runs import labels
from dsnb.results.runs.table import named_runs, numbers, with_parallelism
from dsnb.results.statistics.choices import choices, with_choices
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import SETTINGS
from dsnb.settings.training import accumulates_in_fp32

PARTS = ("weights", "gradients", "optimizer", "copies", "activations", "output")
"""Terms of the theoretical peak, which is in the backward pass of the loss or in the optimizer's step; `output` is the
output layer, or the recomputed block if that is larger."""
WHERE = {
    "peak_allocated_gib": "allocated",
    "peak_reserved_gib": "reserved",
    "device_memory_gib": "on device",
}
"""Figures of GPU memory, the closest to theory first: reserved adds fragmentation, on device adds the CUDA context."""
IRRELEVANT = {
    "source", "gpu_name", "seed", "steps", "warmup_steps", "learning_rate", "data", "tokenizer", "weights",
    "profile", "memory_limit_gib",
}  # fmt: skip
"""Settings that do not change GPU memory, or only limit it; differences in them are ignored here."""
NEEDED = (
    labels.PARALLELISM, "tensor_parallel", "pipeline_parallel", "gpus", "precision", "seq_len", "micro_batch_size",
    "grad_accum", "activation_checkpointing",
)  # fmt: skip
"""Settings that theory must know. The others are what few programs offer or change, so their defaults are assumed."""
ASSUMED = {name: DEFAULTS[name] for name in SETTINGS} | {"grad_accum_dtype": "bf16"}
"""Of a setting without a value; other programs accumulate in the format of the weights."""
COLUMNS = [
    "experiment",
    "n",
    "where",
    "measured_gib",
    "theory_gib",
    "rest_gib",
    *(f"{part}_gib" for part in PARTS),
]
CHANGES = ["change", "base", "experiment", "measured_gib", "theory_gib", "where"]


def footprint(runs: pd.DataFrame) -> pd.DataFrame:
    """Return measured and theoretical memory per GPU of the ok runs with a figure of GPU memory.

    Returns `COLUMNS`, one row per experiment in order of appearance: `where` is what was measured (`allocated`,
    `reserved` or `on device`), `measured_gib` its median, `theory_gib` and its parts are missing if the model's shape
    or one of the settings `NEEDED` is unknown, and `rest_gib` is measured less theory.
    """
    rows = []
    for name, part in _measured(runs).groupby("experiment", sort=False):
        column = next(column for column in WHERE if part[column].notna().any())
        parts = {
            f"{part_name}_gib": gib for part_name, gib in _theory(part.iloc[0].to_dict()).items()
        }
        measured_gib, theory_gib = part[column].median(), sum(parts.values()) if parts else math.nan
        figures = {
            "measured_gib": measured_gib,
            "theory_gib": theory_gib,
            "rest_gib": measured_gib - theory_gib,
        }
        rows.append(
            {"experiment": name, "n": len(part), "where": WHERE[column], **figures, **parts}
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ok runs with a figure of memory; a setting that is no column of the table has its default."""
    runs = named_runs(runs)
    missing = [name for name in (*WHERE, "data_parallel", "parameters") if name not in runs]
    runs = runs.reindex(columns=[*runs.columns, *missing])
    runs = runs.assign(**{name: value for name, value in ASSUMED.items() if name not in runs})
    return with_parallelism(runs[(runs["status"] == "ok") & runs[list(WHERE)].notna().any(axis=1)])


def _theory(run: Mapping[str, Any]) -> dict[str, float]:
    """Return `theory` of a run with the settings `ASSUMED`; empty if one of `NEEDED` is unknown."""
    if any(pd.isna(run[name]) for name in NEEDED):
        return {}
    return theory({**run, **{name: value for name, value in ASSUMED.items() if pd.isna(run[name])}})


def theory(run: Mapping[str, Any]) -> dict[str, float]:
    """Return the theoretical parts of one GPU's memory in GiB, by the settings of a run; empty for unknown models."""
    shapes = model_shapes.PRESETS | model_shapes.PUBLISHED
    shape = shapes.get(str(run["model"]))
    if shape is None or not shape.has_formula or not isinstance(run["micro_batch_size"], int | float):
        return {}
    width = 2 if run["precision"] in memory.HALF else 4
    states = _states(run, shape, width)
    if accumulates_in_fp32(run):
        accumulated = (
            states.gradients * 2
        )  # a buffer in fp32 beside the gradients of a micro-batch in bf16
    elif run["reduce_gradients"] == "step":
        accumulated = states.gradients * _known(run, "data_parallel", run["gpus"])
    else:
        accumulated = states.gradients * (run["grad_accum"] > 1)
    peak = memory.peak(states, *_activations(run, shape, width), accumulated)
    return {name: float(getattr(peak, name)) / GIB for name in PARTS}


def _known(run: Mapping[str, Any], name: str, default: float) -> float:
    return default if pd.isna(run.get(name)) else float(run[name])


def _states(run: Mapping[str, Any], shape: model_shapes.Shape, width: int) -> memory.MemoryParts:
    trained, frozen, moments = _known(run, "parameters", shape.parameters), 0.0, None
    if rank := int(run["lora_rank"]):
        adapters = memory.lora_parameters(shape.layers, shape.hidden, rank, shape.family != "opt")
        trained = _known(run, "trainable_parameters", adapters)
        frozen = shape.parameters * width
    if run["optimizer"] == "adafactor":
        moments = memory.adafactor_moments(shape.layers, shape.hidden, shape.vocab, shape.positions)
    model_parallel = int(run["tensor_parallel"] * run["pipeline_parallel"])
    data_parallel = int(_known(run, "data_parallel", run["gpus"] // model_parallel))
    zero_stage = 3 if run["strategy"] == "fsdp" else int(run["zero_stage"])
    per_parameter = memory.per_parameter(run["precision"], run["mixed_precision"], run["strategy"])
    return memory.model_states(
        trained,
        per_parameter,
        zero_stage,
        data_parallel,
        model_parallel,
        run["offload"],
        frozen,
        moments,
    )


def _activations(
    run: Mapping[str, Any], shape: model_shapes.Shape, width: int
) -> tuple[float, float]:
    seq_len, split = int(run["seq_len"]), int(run["tensor_parallel"])
    tokens = run["seq_len"] * run["micro_batch_size"]
    used = run.get("attention_used")
    is_fused = (used if isinstance(used, str) else run["attention"]) != "eager"
    has_dropout, is_relu = run["dropout"] > 0, shape.family == "opt"
    block = memory.block_activations(
        tokens, shape.hidden, shape.heads, seq_len, split, width, has_dropout, is_fused, is_relu
    )
    every = int(run["checkpoint_every"]) if run["activation_checkpointing"] else 0
    block_input = tokens * shape.hidden * width
    kept, again = memory.kept_activations(
        shape.layers, block, block_input, every, bool(run["checkpoint_offload"])
    )
    output = memory.output_activations(tokens, shape.hidden, shape.vocab, split, width)
    return memory.activations(
        kept, again, output, int(run["pipeline_parallel"]), int(run["grad_accum"])
    )


def savings(runs: pd.DataFrame, base: str = "") -> pd.DataFrame:
    """Compare an experiment with those that differ from it in a single setting that affects memory.

    The default `base` is the one with the most comparisons. Figures measured differently (`where`) are not compared.
    Returns `CHANGES`, one row per other experiment: `change` in words, and its measured and theoretical memory less the
    base's, negative if it saves memory.
    """
    table = footprint(runs).set_index("experiment")
    if table.empty:
        return pd.DataFrame(columns=CHANGES)
    settings = with_choices(_measured(runs).drop_duplicates("experiment").set_index("experiment"))
    names = [name for name in choices(settings) if name not in IRRELEVANT]
    # More micro-batches than 2, or than fill a pipeline, do not change memory.
    accumulated = np.fmin(
        numbers(settings, "grad_accum"), numbers(settings, "pipeline_parallel").clip(lower=2)
    )
    compared = settings.assign(grad_accum=accumulated)
    codes = np.column_stack([pd.factorize(compared[name].map(labels.text))[0] for name in names])
    experiments = list(table.index)
    differ_once = [(codes != code).sum(axis=1) == 1 for code in codes]
    chosen = (
        experiments.index(base)
        if base in table.index
        else int(np.argmax(np.sum(differ_once, axis=1)))
    )
    rows = []
    for other in np.flatnonzero(differ_once[chosen]):
        name = names[int(np.argmax(codes[other] != codes[chosen]))]
        before, after = table.iloc[chosen], table.iloc[other]
        if before["where"] == after["where"]:
            values = settings[name].astype(object)
            words = [labels.axis(name).describe(values.iloc[place]) for place in (chosen, other)]
            more_gib = [after[column] - before[column] for column in ("measured_gib", "theory_gib")]
            rows.append((" → ".join(words), before.name, after.name, *more_gib, before["where"]))
    return pd.DataFrame(rows, columns=CHANGES)
