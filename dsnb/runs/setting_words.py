"""A setting in words, as an engineer would say it: "ZeRO 1, bf16 autocast, compiled, micro-batch 24"."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsnb.runs import labels

STRATEGIES = {"plain": "plain", "ddp": "DDP", "fsdp": "FSDP"}
COMPILED = {"default": "compiled", "reduce-overhead": "compiled with CUDA graphs"}
_SAID = {"strategy", "zero_stage", "tensor_parallel", "pipeline_parallel", "precision", "mixed_precision", "compile"}
_LAST = {"micro_batch_size", "grad_accum", "gpus", "nodes", "gpu_name"}
_NOT_SETTINGS = {"model", "seq_len", "data", "trained", "source", "sweep", "status"}


def strategy(run: Mapping[str, Any]) -> str:
    """Return how the training is shared among GPUs, as one phrase: "plain", "ZeRO 3", "TP 2 x PP 2 x ZeRO 1"."""
    name = _text(run, "strategy")
    named = "" if name in {"-", "deepspeed"} else name
    sharded = STRATEGIES.get(name, f"ZeRO {_text(run, 'zero_stage')}" if _is_known(run, "zero_stage") else named)
    sizes = [("TP", run.get("tensor_parallel")), ("PP", run.get("pipeline_parallel"))]
    shares = [f"{short} {size:g}" for short, size in sizes if isinstance(size, int | float) and size > 1]
    return " x ".join(filter(None, [*shares, sharded]))


def setting(run: Mapping[str, Any]) -> str:
    """Return the settings of a run in words, without its task, and without what is usual or unknown."""
    unusual = [unusual_choice(run, name) for name in labels.AXES if name not in {*_SAID, *_LAST, *_NOT_SETTINGS}]
    batch = [f"micro-batch {_text(run, 'micro_batch_size')}"] if _is_known(run, "micro_batch_size") else []
    accumulated = run.get("grad_accum")
    if isinstance(accumulated, int | float) and accumulated > 1:
        batch.append(f"{accumulated:g} accumulated")
    shared = strategy(run)
    shared = "the plain loop" if shared == STRATEGIES["plain"] else shared
    return ", ".join(filter(None, [shared, _arithmetic(run), _compiled(run), *unusual, *batch]))


def unit(run: Mapping[str, Any]) -> str:
    """Return what is counted of the hardware of a run: `GPU`, or `rank` where there is none."""
    return "rank" if run.get("device") == "cpu" and not _is_known(run, "gpu_name") else "GPU"


def common_unit(runs: pd.DataFrame) -> str:
    """Return what is counted of the hardware of several runs: `rank` if none of them used a GPU."""
    distinct = runs.reindex(columns=["device", "gpu_name"]).drop_duplicates()
    return "rank" if set(map(unit, distinct.to_dict("records"))) == {"rank"} else "GPU"


def choice(run: Mapping[str, Any], name: str) -> str:
    """Return one setting of a run in words: "ZeRO 3", "compiled", "4 GPUs", "2 ranks", "micro-batch 24"."""
    if name == "compile":
        return _compiled(run) or "not compiled"
    if name == "gpus" and _is_known(run, name):
        return labels.count(float(run[name]), unit(run))
    return labels.axis(name).describe(run[name])


def has_effect(run: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting of a run does something: the interval of recomputed blocks does only if some are."""
    needed = labels.axis(name).only_with
    return not needed or is_on(run.get(needed))


def is_on(value: object) -> bool:
    """Return whether a value of a setting turns it on; an unknown one counts as on."""
    return labels.text(value).lower() not in {"false", "0", "off", "none"}


def unusual_choice(run: Mapping[str, Any], name: str) -> str:
    """Return one setting of a run in words; empty if it is unknown, usual, off or without effect."""
    shown = _text(run, name)
    if shown.lower() in {"-", "false", "0"} or run[name] == labels.axis(name).usual or not has_effect(run, name):
        return ""
    return choice(run, name)


def place(run: Mapping[str, Any]) -> str:
    """Return where a run ran: "4 NVIDIA H200", "2 CPU ranks", "512 GPUs"."""
    if not _is_known(run, "gpus"):
        return "an unknown number of GPUs"
    count = float(run["gpus"])
    if _is_known(run, "gpu_name"):
        return f"{count:g} {_text(run, 'gpu_name')}"
    kind = "CPU rank" if run.get("device") == "cpu" else "GPU"
    return f"{count:g} {kind}{'' if count == 1 else 's'}"


def _arithmetic(run: Mapping[str, Any]) -> str:
    if not _is_known(run, "precision"):
        return ""
    return f"{_text(run, 'precision')}{' autocast' if run.get('mixed_precision') == 'autocast' else ''}"


def _compiled(run: Mapping[str, Any]) -> str:
    mode = _text(run, "compile")
    return "" if mode in {"-", "off", "false"} else COMPILED.get(mode, f"compiled ({mode})")


def _is_known(run: Mapping[str, Any], name: str) -> bool:
    return _text(run, name) != "-"


def _text(run: Mapping[str, Any], name: str) -> str:
    return labels.text(run.get(name))
