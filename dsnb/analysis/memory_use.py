"""Measured and theoretical GPU memory, one row per experiment, and what changing one setting saves by both.

The formulas are in `dsnb.formulas.memory`; this module fills in the settings of runs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.choices import choices, with_choices
from dsnb.formulas import memory, model_shapes
from dsnb.runs import labels
from dsnb.runs.table import named_runs
from dsnb.settings.derived import accumulates_in_fp32
from dsnb.settings.experiment import DEFAULTS
from dsnb.system.hardware import GIB

PARTS = ("weights", "gradients", "optimizer", "copies", "activations", "output")
"""Terms of the theoretical peak, which is in the backward pass of the loss or in the optimizer's step; `output` is the
output layer, or the recomputed block if that is larger."""
WHERE = {"peak_allocated_gib": "allocated", "peak_reserved_gib": "reserved", "device_memory_gib": "on device"}
"""Figures of GPU memory, the closest to theory first: reserved adds fragmentation, on device adds the CUDA context."""
IRRELEVANT = {
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
"""Settings that do not change GPU memory, or only limit it; differences in them are ignored here."""
COLUMNS = ["experiment", "n", "where", "measured_gib", "theory_gib", "rest_gib", *(f"{part}_gib" for part in PARTS)]
CHANGES = ["change", "base", "experiment", "measured_gib", "theory_gib", "where"]


def footprint(runs: pd.DataFrame) -> pd.DataFrame:
    """Return measured and theoretical memory per GPU.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; only ok runs with a figure of GPU memory count.

    Returns
    -------
    pandas.DataFrame
        One row per experiment, in order of appearance: `experiment`, `n`, `where` (what was measured: `allocated`,
        `reserved` or `on device`), `measured_gib` (the median), `theory_gib` and its parts (missing if the model's
        shape is unknown), `rest_gib` (measured less theory).
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
    """Return the ok runs with a figure of memory, with missing settings set to their defaults."""
    runs = named_runs(runs)
    missing = [name for name in (*DEFAULTS, *WHERE, "data_parallel", "parameters") if name not in runs]
    runs = runs.reindex(columns=[*runs.columns, *missing])
    ok = runs[(runs["status"] == "ok") & runs[list(WHERE)].notna().any(axis=1)]
    others = DEFAULTS | {"grad_accum_dtype": "bf16"}  # other programs accumulate in the weights' format
    filled = {name: ok[name].astype(object).where(ok[name].notna(), default) for name, default in others.items()}
    return ok.assign(**filled)


def theory(run: Mapping[str, Any]) -> dict[str, float]:
    """Return the theoretical parts of one GPU's memory in GiB; empty if the model's shape is unknown.

    Parameters
    ----------
    run
        The settings of a run; `data_parallel`, `parameters`, `trainable_parameters` and `attention_used` if known.
    """
    shape = _shape(str(run["model"]))
    if shape is None or not isinstance(run["micro_batch_size"], int | float):
        return {}
    states = _states(run, shape)
    peak = memory.peak(states, *_activations(run, shape), _accumulated(run, states))
    return {name: float(getattr(peak, name)) / GIB for name in PARTS}


def _accumulated(run: Mapping[str, Any], states: memory.Parts) -> float:
    """Return the bytes of gradients that are kept between the micro-batches of a step."""
    if accumulates_in_fp32(run):
        return states.gradients * 2  # a buffer in fp32 beside the gradients of a micro-batch in bf16
    if run["grad_accum"] == 1:
        return 0.0
    # FSDP reduces gradients after the last micro-batch and keeps them whole until then; ZeRO 2 and 3 reduce at once.
    ranks = _known(run, "data_parallel", run["gpus"]) if run["strategy"] == "fsdp" else 1
    return states.gradients * ranks


def _shape(model: str) -> model_shapes.Shape | None:
    hub = {shape.hub_id: shape for shape in model_shapes.PRESETS.values() if shape.hub_id}
    return model_shapes.PRESETS.get(model) or hub.get(model)


def _known(run: Mapping[str, Any], name: str, default: float) -> float:
    value = run.get(name)
    return default if value is None or pd.isna(value) else float(value)


def _states(run: Mapping[str, Any], shape: model_shapes.Shape) -> memory.Parts:
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
    """Compare an experiment with each one that differs from it in a single setting that affects memory.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    base
        The experiment, by its name in `footprint`; if unknown, the one with the most comparisons.

    Returns
    -------
    pandas.DataFrame
        One row per other experiment: `change` (in words), `base`, `experiment`, `measured_gib` and `theory_gib` (its
        memory less that of the base; negative if it saves memory), and `where` that was measured. Figures measured
        differently (`where`) are not compared.
    """
    table = footprint(runs).set_index("experiment")
    settings = _measured(runs).drop_duplicates("experiment").set_index("experiment")
    settings = with_choices(settings)
    names = [name for name in choices(settings) if name not in IRRELEVANT]
    same = settings.assign(grad_accum=_accumulations(settings)) if len(settings) else settings
    codes = np.column_stack([pd.factorize(same[name].map(labels.text))[0] for name in names])
    if table.empty:
        return pd.DataFrame(columns=CHANGES)
    known = list(table.index)
    chosen = known.index(base) if base in known else int(np.argmax([_differs_once(codes, own).sum() for own in codes]))
    own = table.iloc[chosen]
    rows = []
    for other in np.flatnonzero(_differs_once(codes, codes[chosen])):
        name = names[np.flatnonzero(codes[other] != codes[chosen])[0]]
        if (found := table.iloc[other])["where"] == own["where"]:
            before, after = (labels.axis(name).describe(settings[name].iloc[place]) for place in (chosen, other))
            more = {column: found[column] - own[column] for column in ("measured_gib", "theory_gib")}
            words = {"change": f"{before} → {after}", "base": own.name, "experiment": found.name}
            rows.append({**words, **more, "where": own["where"]})
    return pd.DataFrame(rows, columns=CHANGES)


def _accumulations(settings: pd.DataFrame) -> pd.Series:
    """Return micro-batches per step, capped where more do not change memory: 2, or enough to fill a pipeline."""
    most = settings["pipeline_parallel"].clip(lower=2)
    return settings["grad_accum"].where(settings["grad_accum"] < most, most)


def _differs_once(codes: Any, own: Any) -> Any:
    """Return for each row whether it differs from `own` in exactly one column."""
    return (codes != own).sum(axis=1) == 1
