"""Measured and theoretical GPU memory, one row per experiment, and what changing one setting saves by both.

The formulas are in `dsnb.base.formulas.memory`; this module fills in the settings of runs.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.formulas import memory, model_shapes
from dsnb.base.formulas.model_shapes import Shape
from dsnb.base.system.hardware import GIB
from dsnb.results.runs import labels
from dsnb.results.runs.table import named_runs, numbers, with_parallelism
from dsnb.results.statistics.setting_axes import setting_axes, with_setting_axes
from dsnb.settings import known, programs
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records.columns import SETTINGS

PARTS = ("weights", "gradients", "optimizer", "copies", "activations", "output")
"""Terms of the theoretical peak, which is in the backward pass of the loss or in the optimizer's step; `output` is the
output layer, or the recomputed block if that is larger."""
_PARTS_GIB = [f"{part}_gib" for part in PARTS]
WHERE = {
    "peak_allocated_gib": "allocated",
    "peak_reserved_gib": "reserved",
    "device_memory_gib": "on device",
}
"""Figures of GPU memory, the closest to theory first: reserved adds fragmentation, on device adds
the CUDA context."""
IRRELEVANT = {
    "source", "gpu_name", "seed", "steps", "warmup_steps", "learning_rate", "data", "tokenizer", "weights",
    "profile", "memory_limit_gib",
}  # fmt: skip
"""Settings that do not change GPU memory, or only limit it; differences in them are ignored
here."""
REQUIRED_COLUMNS = [
    labels.PARALLELISM, "tensor_parallel", "pipeline_parallel", "gpus", "precision", "seq_len", "micro_batch_size",
    "grad_accum", "activation_checkpointing",
]  # fmt: skip
"""Settings that theory must know, also of published runs. The others are what few programs offer or
change, so their defaults are assumed; recorded runs must say more (`dsnb.settings.known`)."""
ASSUMED = {**DEFAULTS, "grad_accum_dtype": "bf16"}
"""Of a setting without a value; other programs accumulate in the format of the weights."""
COLUMNS = [
    "experiment", "n", "where", "measured_gib", "theory_gib", "rest_gib", *_PARTS_GIB,
]  # fmt: skip
CHANGES = ["change", "base", "experiment", "measured_gib", "theory_gib", "where"]


def footprint(runs: pd.DataFrame) -> pd.DataFrame:
    """Return measured and theoretical memory per GPU of the ok runs with a figure of GPU memory.

    Returns `COLUMNS`, one row per experiment in order of appearance: `where` is what was measured
    (`allocated`, `reserved` or `on device`), `measured_gib` its median, `theory_gib` and its parts
    are missing if the model's shape or one of the settings `REQUIRED_COLUMNS` is unknown, and
    `rest_gib` is measured less theory.

    >>> runs = pd.DataFrame({"sweep": "s", "experiment": "a", "status": "ok", "model": "gpt2", "gpus": 1,
    ...                      "precision": "fp32", "micro_batch_size": 8, "peak_allocated_gib": [5.0, 7.0]})
    >>> print(footprint(runs)[["experiment", "n", "where", "measured_gib"]])
      experiment  n      where  measured_gib
    0          a  2  allocated           6.0
    """
    rows = []
    for name, part in _measured(runs).groupby("experiment", sort=False):
        column = next(column for column in WHERE if part[column].notna().any())
        row = {"experiment": name, "n": len(part), "where": WHERE[column]}
        row["measured_gib"] = part[column].median()
        run = part.iloc[0]
        if _is_known(run):
            assumed = {name: ASSUMED[name] for name in SETTINGS}
            parts = theory(run.fillna(assumed).to_dict())
            row |= {f"{part}_gib": gib for part, gib in parts.items()}
        rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["theory_gib"] = table[_PARTS_GIB].sum(axis=1, min_count=1)
    table["rest_gib"] = table["measured_gib"] - table["theory_gib"]
    return table


def _is_known(run: "pd.Series[Any]") -> bool:
    """Return whether theory knows the settings of a run that it must."""
    if not run[REQUIRED_COLUMNS].notna().all():
        return False
    settings = run.to_dict()
    return programs.has_defaults(settings) or not known.unknown(Experiment.of_row(settings))


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ok runs with a figure of memory; a setting that is no column of the table has its default."""
    runs = named_runs(runs)
    missing = [name for name in (*WHERE, "data_parallel", "parameters") if name not in runs]
    runs = runs.reindex(columns=[*runs.columns, *missing])
    runs = runs.assign(**{name: ASSUMED[name] for name in SETTINGS if name not in runs})
    is_measured = runs[list(WHERE)].notna().any(axis=1)
    return with_parallelism(runs[(runs["status"] == "ok") & is_measured])


def theory(run: Mapping[str, Any]) -> dict[str, float]:
    """Return the theoretical parts of one GPU's memory in GiB, `PARTS`, by the settings of a run.

    Empty for a model of an unknown shape, and for a micro-batch that is not known.
    """
    shapes = model_shapes.PRESETS | model_shapes.PUBLISHED
    shape = shapes.get(str(run["model"]))
    if (
        shape is None
        or not shape.has_formula
        or not isinstance(run["micro_batch_size"], int | float)
    ):
        return {}
    experiment = Experiment.of_row(run)
    states = _states(experiment, shape, run)
    accumulated = 0.0
    in_fp32 = experiment.numbers.accumulates_in_fp32
    if experiment.reduce_gradients == "step":
        accumulated = states.gradients * experiment.shard_ranks
        if in_fp32:
            accumulated *= 2
    elif in_fp32 and experiment.parallel_strategy.is_deepspeed:
        # A buffer in fp32 beside the gradients of a micro-batch in bf16.
        accumulated = states.gradients * 2
    elif experiment.grad_accum > 1:
        accumulated = states.gradients
    attention = run.get("attention_used")
    if not isinstance(attention, str):
        attention = experiment.attention
    activations = _activations(experiment, shape, is_fused=attention != "eager")
    peak = memory.peak(states, *activations, accumulated)
    return {name: float(getattr(peak, name)) / GIB for name in PARTS}


def _states(experiment: Experiment, shape: Shape, run: Mapping[str, Any]) -> memory.MemoryParts:
    """Return the model states; the parameters are those that the run counted, if it did."""
    counted = run.get("parameters")
    trained = shape.parameters
    frozen = 0.0
    moments = None
    if experiment.lora_rank:
        counted = run.get("trainable_parameters")
        is_fused = shape.family != "opt"
        rank = experiment.lora_rank
        trained = memory.lora_parameters(shape.layers, shape.hidden, rank, is_fused)
        half = experiment.numbers.computed_bytes
        frozen = shape.parameters * half
        if experiment.frozen_weights == "nf4":
            frozen -= 12 * shape.hidden**2 * shape.layers * (half - memory.NF4)
    if experiment.optimizer == "adafactor":
        moments = memory.adafactor_moments(shape.layers, shape.hidden, shape.vocab, shape.positions)
    if counted is not None and not math.isnan(counted):
        trained = counted
    if experiment.optimizer == "adamw-8bit":
        moments = memory.MOMENTS_8_BIT * trained
    return memory.model_states(
        trained,
        experiment.states.each,
        experiment.states.stage,
        experiment.shard_ranks,
        experiment.tensor_parallel * experiment.pipeline_parallel,
        experiment.offload,
        frozen,
        moments,
    )


def _activations(experiment: Experiment, shape: Shape, is_fused: bool) -> tuple[float, float]:
    width = experiment.numbers.computed_bytes
    split = experiment.tensor_parallel
    tokens = experiment.seq_len * experiment.micro_batch_size
    block = memory.block_activations(
        tokens,
        shape.hidden,
        shape.heads,
        experiment.seq_len,
        split,
        width,
        dropout=experiment.dropout > 0,
        fused=is_fused,
        relu=shape.family == "opt",
    )
    every = 0
    if experiment.activation_checkpointing:
        every = experiment.checkpoint_every
    block_input = tokens * shape.hidden * width
    is_offloaded = experiment.checkpoint_offload
    kept, again = memory.kept_activations(shape.layers, block, block_input, every, is_offloaded)
    output = memory.output_activations(tokens, shape.hidden, shape.vocab, split, width)
    stages = experiment.pipeline_parallel
    return memory.activations(kept, again, output, stages, experiment.grad_accum)


def savings(runs: pd.DataFrame, base: str = "") -> pd.DataFrame:
    """Compare an experiment with those that differ from it in a single setting that affects memory.

    The default `base` is the one with the most comparisons. Figures measured differently (`where`)
    are not compared. Returns `CHANGES`, one row per other experiment: `change` in words, and its
    measured and theoretical memory less the base's, negative if it saves memory.
    """
    table = footprint(runs).set_index("experiment")
    if table.empty:
        return pd.DataFrame(columns=CHANGES)
    settings = with_setting_axes(
        _measured(runs).drop_duplicates("experiment").set_index("experiment")
    )
    names = [name for name in setting_axes(settings) if name not in IRRELEVANT]
    # More micro-batches than 2, or than fill a pipeline, do not change memory.
    most = numbers(settings, "pipeline_parallel").clip(lower=2)
    settings_of_memory = settings.assign(grad_accum=np.fmin(numbers(settings, "grad_accum"), most))
    compared = labels.texts(settings_of_memory[names])
    differ = {name: (compared != compared.loc[name]).sum(axis=1) == 1 for name in compared.index}
    chosen = base
    if base not in table.index:
        chosen = max(differ, key=lambda name: differ[name].sum())
    rows = []
    for other in compared.index[differ[chosen]]:
        before = table.loc[chosen]
        after = table.loc[other]
        if before["where"] != after["where"]:
            continue
        changed = str((compared.loc[other] != compared.loc[chosen]).idxmax())
        axis = labels.axis(changed)
        values = settings[changed].astype(object)
        change = f"{axis.describe(values[chosen])} → {axis.describe(values[other])}"
        measured_gib = after["measured_gib"] - before["measured_gib"]
        theory_gib = after["theory_gib"] - before["theory_gib"]
        rows.append((change, chosen, other, measured_gib, theory_gib, before["where"]))
    return pd.DataFrame(rows, columns=CHANGES)
