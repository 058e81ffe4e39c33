"""A start of a foreign log -> the columns of `dsnb.load_runs`, with what follows from them by a formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.formulas import metrics, model_shapes
from dsnb.runs.logs.logged_run import DERIVED, FIELDS, ORIGINS, Start
from dsnb.system import hardware

ENDS_WELL = "ok"


def run(start: Start, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Give the row of a start; a column that it lacks was not logged and does not follow."""
    _parallel(start)
    _throughput(start)
    _losses(start)
    _skipped(start)
    _flops(start)
    status, cause = ending(start)
    return {
        **names,
        "status": status,
        "cause": cause,
        "source": f"{start.program} log" if not start.program.endswith("CSV") else start.program,
        **start.settings,
        **start.figures,
        **start.environment,
        "host": next(iter(start.slots), None),
        "note": "; ".join(dict.fromkeys(start.notes)) or None,
        "provenance": provenance(start),
        "run_dir": str(path),
    }


def provenance(start: Start) -> str:
    """Say of each figure whether it is as logged or derived: `as logged: a, b; derived: c`."""
    kinds = {kind: [name for name, origin in start.provenance.items() if origin == kind] for kind in ORIGINS}
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)


def steps(start: Start) -> pd.DataFrame:
    """Give the steps of a start in the columns of `dsnb.load_steps`; tokens and memory only where they were logged."""
    table = pd.DataFrame({name: np.frombuffer(start.steps.column(name)) for name in FIELDS})
    tokens = _tokens_per_step(start)
    if tokens and len(table):
        table["tokens"] = table["tokens"].fillna(tokens)
    table["phase"] = "timed"
    if _first_is_warmup(start):
        table.loc[0, "phase"] = "warmup"
    table["skipped"] = (table["skipped"] > 0).where(table["skipped"].notna(), None)
    return table.drop(columns="samples")


def ending(start: Start) -> tuple[str, str | None]:
    """Say how it ended; a log that just stops is a measurement if it has steps, and its cause says where it stops."""
    if start.scratch.get("loss_is_nan"):
        return "nan", "the last logged loss is NaN"
    if start.ended:
        return ENDS_WELL, None
    if start.trouble and start.is_in_trouble:
        return start.trouble
    if not len(start.steps) and not {"samples_per_s", "tokens_per_s"} & set(start.figures):
        return "interrupted", "the log ends before the first step"
    last, planned = int(start.steps.last) if len(start.steps) else None, start.settings.get("steps")
    if last and isinstance(planned, int) and last < planned:
        return ENDS_WELL, f"the log ends at step {last} of {planned}"
    return ENDS_WELL, None


def _parallel(start: Start) -> None:
    """Derive GPUs, nodes, the sizes of the parallel groups and of the batch from each other."""
    have = start.settings
    if start.slots:
        _derive(start, nodes=len(start.slots), gpus=sum(start.slots.values()) or None)
    _derive(start, nodes=start.scratch.get("launchers"))
    model_parallel = _model_parallel(start)
    if model_parallel is None:
        return
    micro, accum, batch = (have.get(name) for name in ("micro_batch_size", "grad_accum", "global_batch_size"))
    if micro and accum and batch and batch % (micro * accum) == 0:
        _derive(start, gpus=batch // (micro * accum) * model_parallel)
    if have.get("data_parallel"):
        _derive(start, gpus=have["data_parallel"] * model_parallel)
    gpus = have.get("gpus")
    if gpus and gpus % model_parallel == 0:
        _derive(start, data_parallel=gpus // model_parallel)
    ways = have.get("data_parallel")
    if micro and ways and batch and batch % (micro * ways) == 0:
        _derive(start, grad_accum=batch // (micro * ways))
    if micro and ways and have.get("grad_accum"):
        _derive(start, global_batch_size=micro * ways * have["grad_accum"])


def _model_parallel(start: Start) -> int | None:
    """Give the GPUs of one replica of the model; None where a log with parallel groups lacks their sizes."""
    have = start.settings
    if "Megatron" not in start.program and not start.scratch.get("stages"):
        have.setdefault("tensor_parallel", 1)
    if "tensor_parallel" in have and not start.scratch.get("stages"):
        have.setdefault("pipeline_parallel", 1)
    sizes = have.get("tensor_parallel"), have.get("pipeline_parallel")
    return sizes[0] * sizes[1] if sizes[0] and sizes[1] else None


def _derive(start: Start, **settings: int | None) -> None:
    for name, value in settings.items():
        if value and name not in start.settings:
            start.settings[name] = value
            start.provenance[name] = DERIVED


def _first_is_warmup(start: Start) -> bool:
    """Megatron's first line holds what is done once: compilation, memory, communicators."""
    return "Megatron" in start.program and len(start.steps) > 1


def _tokens_per_step(start: Start) -> float | None:
    batch, length = start.settings.get("global_batch_size"), start.settings.get("seq_len")
    return batch * length if batch and length else None


def _throughput(start: Start) -> None:
    """Derive samples/s, tokens/s and step time from what of them was logged: work over time, never a mean of rates."""
    have, gpus = start.figures, start.settings.get("gpus")
    batch, length = start.settings.get("global_batch_size"), start.settings.get("seq_len")
    if "samples_per_s" not in have and (speed := start.scratch.get("chat_speed")) and gpus:
        start.measure(DERIVED, samples_per_s=speed[0] / speed[1] * gpus)
    if "samples_per_s" not in have and "Megatron" in start.program:
        _over_steps(start, int(_first_is_warmup(start)))
    if "samples_per_s" not in have and "samples_per_s_running" in have:
        start.measure(samples_per_s=have["samples_per_s_running"])
    if "samples_per_s" not in have and len(start.steps) and "tokens_per_s" not in have:
        _over_steps(start, 0)
    if "samples_per_s" not in have and have.get("step_time_s") and batch and not length:
        start.measure(DERIVED, samples_per_s=batch / have["step_time_s"])
    rate = _rate(start)
    if rate and length and "tokens_per_s" not in have:
        start.measure(DERIVED, tokens_per_s=metrics.tokens_per_s_of_samples(rate, length))
    runtime_s, steps = have.get("train_runtime_s"), start.settings.get("steps")
    if runtime_s and steps and start.ended:  # the last batch of an epoch may be smaller, so not from samples/s
        if steps > start.scratch.get("resumed", 0):
            start.measure(DERIVED, step_time_s=runtime_s / (steps - start.scratch.get("resumed", 0)))
    elif rate and batch and not runtime_s and "step_time_s" not in have:
        start.measure(DERIVED, step_time_s=batch / rate)
    if have.get("tokens_per_s") and gpus:
        start.measure(DERIVED, tokens_per_s_per_gpu=have["tokens_per_s"] / gpus)


def _rate(start: Start) -> float | None:
    """Give the samples/s of the steps that were made: a resumed Trainer divides all steps by the time of the last."""
    rate, steps = start.figures.get("samples_per_s"), start.settings.get("steps")
    resumed = start.scratch.get("resumed")
    if not resumed or not rate:
        return rate
    return rate * (steps - resumed) / steps if steps and steps > resumed else None


def _over_steps(start: Start, after: int) -> None:
    """Divide the samples of the timed steps by their time; each logged time stands for the steps since the last."""
    batch = start.settings.get("global_batch_size") or 0.0
    total, time_s, count, sized = 0.0, 0.0, 0.0, True
    before = None
    for step, step_time_s, samples in zip(*map(start.steps.column, ("step", "step_time_s", "samples")), strict=True):
        weight, before = step - before if before is not None else 1.0, step
        if after > 0:
            after -= 1
        elif step_time_s == step_time_s:
            work = samples if samples == samples else batch
            total, time_s, count = total + work * weight, time_s + step_time_s * weight, count + weight
            sized = sized and work > 0
    if time_s > 0:
        start.measure(DERIVED, step_time_s=time_s / count, timed_steps=count, timed_s=time_s)
        start.measure(DERIVED, samples_per_s=total / time_s if sized else None)


def _losses(start: Start) -> None:
    losses = np.frombuffer(start.steps.column("loss"))
    known = np.flatnonzero(losses == losses)
    if len(known) and "loss_last" not in start.figures:
        start.measure(loss_first=float(losses[known[0]]), loss_last=float(losses[known[-1]]))


def _skipped(start: Start) -> None:
    """Take the engine's count of skipped steps where Megatron's own lines miss some: they do not know a pipeline's.

    The engine counts from the first step on, so a run that was resumed tells nothing.
    """
    steps, skipped = start.steps.column("step")[:2], start.scratch.get("skipped_by_engine", 0)
    is_whole = len(steps) > 1 and (steps[0] == 1 or steps[0] == steps[1] - steps[0])
    if is_whole and skipped > start.figures.get("skipped_steps", 0):
        start.measure(skipped_steps=skipped)


def _flops(start: Start) -> None:
    """Derive TFLOP/s by dsnb's convention where the model's shape is known; not for adapters, which train less."""
    shape, parameters = _shape(start), start.scratch.get("parameters")
    if parameters and len(parameters) == _model_parallel(start):
        start.measure(DERIVED, parameters=sum(parameters.values()))
    if shape:
        start.measure(DERIVED, parameters=shape.parameters)
    rate, length = start.figures.get("tokens_per_s_per_gpu"), start.settings.get("seq_len")
    if not shape or not rate or not length or start.settings.get("lora_rank"):
        return
    per_token = metrics.model_flops_per_token(shape.parameters, shape.layers, shape.hidden, length)
    if "tflops_per_gpu" not in start.figures:
        start.measure(DERIVED, tflops_per_gpu=metrics.tflops(per_token, rate))
    if "hardware_tflops_per_gpu" not in start.figures and "activation_checkpointing" in start.settings:
        every = int(start.settings["activation_checkpointing"])
        blocks = shape.layers, shape.hidden, length, every
        again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks)
        start.measure(DERIVED, hardware_tflops_per_gpu=metrics.tflops(per_token + again, rate))
    precision = start.settings.get("precision")
    peak = hardware.peak_tflops(start.environment.get("gpu_name"), precision) if precision else None
    if peak:
        start.measure(DERIVED, mfu=metrics.mfu(start.figures["tflops_per_gpu"], peak))
    matmul = hardware.matmul_tflops(start.environment.get("gpu_name"), precision) if precision else None
    if matmul:
        start.measure(DERIVED, mfu_of_matmul=metrics.mfu(start.figures["tflops_per_gpu"], matmul))


def _shape(start: Start) -> model_shapes.Shape | None:
    if start.settings.get("model") in model_shapes.PRESETS:
        return model_shapes.PRESETS[start.settings["model"]]
    if {"layers", "hidden", "vocab"} <= set(start.shape):
        layers, hidden, vocab = (start.shape[name] for name in ("layers", "hidden", "vocab"))
        start.settings.setdefault("model", f"gpt-{layers}x{hidden}")
        start.provenance["model"] = DERIVED
        return model_shapes.Shape("gpt2", layers, hidden, 1, vocab, start.settings.get("seq_len"))
    return None
