"""Measured memory beside theory, one row per experiment, and what one change of a setting saves by both.

The formulas are in `dsnb.formulas.memory`; here a run's settings become their numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.summary import axes, qualify_experiments
from dsnb.formulas import memory, model_shapes
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.settings.experiment import Experiment
from dsnb.system.hardware import GIB

PARTS = ("weights", "gradients", "optimizer", "copies", "activations", "output")
"""What theory adds up at the fuller of two moments, the backward pass of the loss and the optimizer's step; `output` is
the output layer, or the block that is recomputed where that is larger."""
WHERE = {"peak_allocated_gib": "allocated", "peak_reserved_gib": "reserved", "device_memory_gib": "on device"}
"""Figures of a GPU's memory, the nearest to theory first: reserved adds fragments, the device adds CUDA itself."""
NO_MATTER = {
    "source",
    "gpu_name",
    "seed",
    "steps",
    "warmup_steps",
    "learning_rate",
    "data",
    "tokenizer",
    "weights",
    "launcher",
    "profile",
    "memory_limit_gib",
}
"""What leaves a GPU's memory as it is, or only limits it: experiments that differ in these differ in nothing here."""
DEFAULTS = {name: field.default for name, field in Experiment.model_fields.items()}
COLUMNS = ["experiment", "n", "where", "measured_gib", "theory_gib", "rest_gib", *(f"{part}_gib" for part in PARTS)]
CHANGES = ["change", "base", "experiment", "measured_gib", "theory_gib", "where"]


def footprint(runs: pd.DataFrame) -> pd.DataFrame:
    """Give measured and theoretical memory of a GPU.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it; ok runs with a figure of a GPU's memory count.

    Returns
    -------
    pandas.DataFrame
        One row per experiment, in order of appearance: `experiment`, `n`, `where` (what was measured: `allocated`,
        `reserved` or `on device`), `measured_gib` (the median), `theory_gib` and its parts (missing where the model's
        shape is not known), `rest_gib` (measured less theory).
    """
    rows = []
    for name, part in _measured(runs).groupby("experiment", sort=False):
        measured = next(column for column in WHERE if part[column].notna().any())
        parts = theory(part.iloc[0].to_dict())
        total = sum(parts.values()) if parts else float("nan")
        middle = part[measured].median()
        figures = {"measured_gib": middle, "theory_gib": total, "rest_gib": middle - total}
        found = {f"{key}_gib": value for key, value in parts.items()}
        rows.append({"experiment": name, "n": len(part), "where": WHERE[measured], **figures, **found})
    return pd.DataFrame(rows, columns=COLUMNS)


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Give the ok runs that have a figure, every setting filled in."""
    runs = rename_old_columns(runs)
    missing = [name for name in (*DEFAULTS, *WHERE, "data_parallel", "parameters") if name not in runs]
    runs = qualify_experiments(runs.reindex(columns=[*runs.columns, *missing]))
    ok = runs[(runs["status"] == "ok") & runs[list(WHERE)].notna().any(axis=1)]
    filled = {name: ok[name].astype(object).where(ok[name].notna(), default) for name, default in DEFAULTS.items()}
    return ok.assign(**filled)


def theory(run: Mapping[str, Any]) -> dict[str, float]:
    """Give the parts of one GPU's memory in GiB by theory; empty where the model's shape is not known.

    Parameters
    ----------
    run
        The settings of a run; `data_parallel`, `parameters`, `trainable_parameters` and `attention_used` where known.
    """
    shape = _shape(str(run["model"]))
    if shape is None or not isinstance(run["micro_batch_size"], int | float):
        return {}
    states = _states(run, shape)
    peak = memory.peak(states, *_activations(run, shape), _accumulated(run, states))
    return {name: float(getattr(peak, name)) / GIB for name in PARTS}


def _accumulated(run: Mapping[str, Any], states: memory.States) -> float:
    """Return the bytes of gradients that earlier micro-batches of a step left."""
    if run["grad_accum"] == 1:
        return 0.0
    # Without sending gradients until the last micro-batch, FSDP keeps them whole; ZeRO 2 and 3 reduce each one at once.
    ranks = _known(run, "data_parallel", run["gpus"]) if run["strategy"] == "fsdp" else 1
    return states.gradients * ranks


def _shape(model: str) -> model_shapes.Shape | None:
    hub = {shape.hub_id: shape for shape in model_shapes.PRESETS.values() if shape.hub_id}
    return model_shapes.PRESETS.get(model) or hub.get(model)


def _known(run: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = run.get(name)
    return otherwise if value is None or value != value else float(value)


def _states(run: Mapping[str, Any], shape: model_shapes.Shape) -> memory.States:
    whole = _known(run, "parameters", shape.parameters)
    trained, frozen = whole, 0.0
    if rank := int(run["lora_rank"]):
        adapters = memory.lora_parameters(shape.layers, shape.hidden, rank, shape.family != "opt")
        trained = _known(run, "trainable_parameters", adapters)
        frozen = shape.parameters * _width(run)
    factored = run["optimizer"] == "adafactor"
    model_parallel = int(run["tensor_parallel"] * run["pipeline_parallel"])
    return memory.model_states(
        trained,
        memory.per_parameter(run["precision"], run["mixed_precision"], run["strategy"]),
        zero_stage=3 if run["strategy"] == "fsdp" else int(run["zero_stage"]),
        data_parallel=int(_known(run, "data_parallel", run["gpus"] // model_parallel)),
        model_parallel=model_parallel,
        offload=run["offload"],
        frozen=frozen,
        moments=memory.adafactor_moments(shape.layers, shape.hidden, shape.vocab, shape.positions)
        if factored
        else None,
    )


def _width(run: Mapping[str, Any]) -> int:
    return 2 if run["precision"] in memory.HALF else 4


def _activations(run: Mapping[str, Any], shape: model_shapes.Shape) -> tuple[float, float]:
    tokens, width, split = run["seq_len"] * run["micro_batch_size"], _width(run), int(run["tensor_parallel"])
    used = run.get("attention_used")
    attention = used if isinstance(used, str) else run["attention"]
    block = memory.block_activations(
        tokens,
        shape.hidden,
        shape.heads,
        int(run["seq_len"]),
        split,
        width,
        dropout=run["dropout"] > 0,
        fused=attention != "eager",
        relu=shape.family == "opt",
    )
    every = int(run["checkpoint_every"]) if run["activation_checkpointing"] else 0
    block_input = tokens * shape.hidden * width
    kept, again = memory.kept_activations(shape.layers, block, block_input, every, bool(run["checkpoint_offload"]))
    output = memory.output_activations(tokens, shape.hidden, shape.vocab, split, width)
    return memory.activations(kept, again, output, int(run["pipeline_parallel"]), int(run["grad_accum"]))


def savings(runs: pd.DataFrame, base: str = "") -> pd.DataFrame:
    """Compare an experiment with every one that differs from it in a single setting that memory depends on.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    base
        The experiment, as `footprint` names it; where it is not among them, the one that has most to be compared with.

    Returns
    -------
    pandas.DataFrame
        One row per other experiment: `change` (in words), `base`, `experiment`, `measured_gib` and `theory_gib` (what
        the other one takes more; negative where it saves), and `where` that was measured. Figures that were measured
        in two places are not compared.
    """
    table = footprint(runs).set_index("experiment")
    settings = _measured(runs).drop_duplicates("experiment").set_index("experiment")
    settings = settings[[name for name in axes(settings) if name not in NO_MATTER]]
    same = settings.assign(grad_accum=_accumulations(settings)) if len(settings) else settings
    codes = np.column_stack([pd.factorize(same[name].map(labels.text))[0] for name in settings])
    if table.empty:
        return pd.DataFrame(columns=CHANGES)
    known = list(table.index)
    chosen = known.index(base) if base in known else int(np.argmax([_single(codes, own).sum() for own in codes]))
    own = table.iloc[chosen]
    rows = []
    for other in np.flatnonzero(_single(codes, codes[chosen])):
        name = settings.columns[np.flatnonzero(codes[other] != codes[chosen])[0]]
        if (found := table.iloc[other])["where"] == own["where"]:
            before, after = (labels.axis(name).say(settings[name].iloc[place]) for place in (chosen, other))
            more = {column: found[column] - own[column] for column in ("measured_gib", "theory_gib")}
            words = {"change": f"{before} → {after}", "base": own.name, "experiment": found.name}
            rows.append({**words, **more, "where": own["where"]})
    return pd.DataFrame(rows, columns=CHANGES)


def _accumulations(settings: pd.DataFrame) -> pd.Series:
    """Return micro-batches per step as far as memory tells them apart: one, several, or too few to fill a pipeline."""
    most = settings["pipeline_parallel"].clip(lower=2)
    return settings["grad_accum"].where(settings["grad_accum"] < most, most)


def _single(codes: Any, own: Any) -> Any:
    """Say of each row whether it differs from `own` in one column."""
    return (codes != own).sum(axis=1) == 1
