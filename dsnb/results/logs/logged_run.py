"""The row and the steps of a run from another program's log, with figures derived by formulas."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.formulas import metrics
from dsnb.results.logs import parallel, sizes
from dsnb.results.logs.reading import CONSOLE, DERIVED, LOGGED, PROVENANCES, LoggedRun
from dsnb.settings import programs

TFLOPS = ("tflops_per_gpu", "hardware_tflops_per_gpu")
RATES = ("tokens_per_s", "tokens_per_s_per_gpu")
FIELDS = (
    "step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped",
    *TFLOPS, *RATES,
)  # fmt: skip
PARTS = {"forward_s", "backward_s", "optimizer_s"}
SUM = "the step time is the sum of its parts by DeepSpeed's wall_clock_breakdown: without loading of data"
LIMIT = "seq_len is the most that a sample may have: tokens/s do not follow from samples/s"
PAIRS = "a sample of this log is a pair of sequences: samples/s and tokens/s count both"


def row(run: LoggedRun, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a run, without columns that were neither logged nor can be derived."""
    table = _table(run)
    parallel.derive(run)
    _throughput(run, table)
    losses = table["loss"].dropna()
    if len(losses) and "loss_last" not in run.figures:
        first = float(losses.iloc[0])
        run.record(loss_first=first, loss_last=float(losses.iloc[-1]))
    if run.skipped_by_engine > run.figures.get("skipped_steps", 0) and not _is_resumed(run):
        run.record(skipped_steps=run.skipped_by_engine)
    _flops(run)
    status, cause = _status_and_cause(run)
    provenance = []
    for kind in PROVENANCES:
        figures = [name for name, origin in run.provenance.items() if origin == kind]
        if figures:
            provenance.append(f"{kind}: {', '.join(figures)}")
    program = run.program or CONSOLE
    return {
        **names,
        "status": status,
        "cause": cause,
        "program": program,
        "source": programs.source_of_log(program),
        **run.settings,
        **run.figures,
        **run.environment,
        "host": next(iter(run.slots), None),
        "note": "; ".join(dict.fromkeys(run.notes)) or None,
        "provenance": "; ".join(provenance),
        "run_dir": str(path),
        **run.columns,
    }


def _is_resumed(run: LoggedRun) -> bool:
    """Return whether a training began at a later step, as far as two lines tell."""
    if len(run.steps) < 2:
        return True
    first = run.steps[0]["step"]
    return first not in {1, run.steps[1]["step"] - first}


def _table(run: LoggedRun) -> pd.DataFrame:
    """Return the steps as columns, with the number of steps that each line stands for."""
    table = pd.DataFrame.from_records(run.steps, columns=FIELDS).astype(float)
    if run.has_parts:  # the times of an engine are of a part of a step
        table["step_time_s"] = math.nan
    return table.assign(span=table["step"].diff().fillna(1.0))


def steps(run: LoggedRun) -> pd.DataFrame:
    """Return the steps of a run in the columns of `dsnb.load_steps`; tokens and memory only where they were logged."""
    table = _table(run)
    batch = run.settings["global_batch_size"]
    length = run.settings["seq_len"]
    if batch and length:
        table["tokens"] = table["tokens"].fillna(batch * length * _sequences(run))
    table["phase"] = "timed"
    table.loc[: _warmup_lines(run) - 1, "phase"] = "warmup"
    table["skipped"] = (table["skipped"] > 0).where(table["skipped"].notna(), None)
    return table


def _sequences(run: LoggedRun) -> int:
    """Return the number of sequences in what the log counts as one sample."""
    if run.has_pairs:
        return 2
    return 1


def _status_and_cause(run: LoggedRun) -> tuple[str, str | None]:
    """Return status and cause; a log that just stops is `ok` if it has steps, and its last step is the cause."""
    if run.health.has_diverged:
        return "nan", run.health.says
    if run.ended:
        return "ok", None
    if run.failure and run.has_failed:
        return run.failure
    if run.progress or run.reached or {"samples_per_s", "tokens_per_s"} & run.figures.keys():
        return "ok", _where_it_ends(run)
    return "interrupted", "the log ends before the first step"


def _where_it_ends(run: LoggedRun) -> str | None:
    """Return where a log that just stops ends; None if that was to be its end, or if it is unknown."""
    planned = run.settings["steps"] or run.planned_by_bar
    last = run.reached
    if run.steps:
        last = max(last, int(run.steps[-1]["step"]))
    if last < planned and last:
        return f"the log ends at step {last} of {planned}"
    if last or not run.unnumbered:
        return None
    return f"the log ends without final figures, after {run.unnumbered} logged losses"


def _warmup_lines(run: LoggedRun) -> int:
    """Return the number of warm-up lines: the first includes compilation and the setup of NCCL."""
    return int(run.first_is_slow and len(run.steps) > 1)


def _throughput(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive samples/s, tokens/s and step time from each other: work over time, never a mean of rates."""
    have = run.figures
    batch = run.settings["global_batch_size"]
    length = run.settings["seq_len"]
    timed = table.iloc[_warmup_lines(run) :]
    if run.has_parts:
        run.forget("samples_per_s_running")
    if "samples_per_s" not in have and run.first_is_slow:
        _over_steps(run, timed)
    if "samples_per_s" not in have:
        run.record(samples_per_s=have["samples_per_s_running"])
    if not {"samples_per_s", "step_time_mean_s"} & have.keys():
        _over_steps(run, timed)
    _per_gpu(run)
    if "samples_per_s" not in have and run.first_is_slow and have["tokens_per_s"] and length:
        run.record(DERIVED, samples_per_s=have["tokens_per_s"] / length)
    if not {"samples_per_s", "step_time_mean_s", "train_runtime_s"} & have.keys():
        _over_stamps(run, table)
    if "samples_per_s" not in have and have["step_time_mean_s"] and batch and not length:
        run.record(DERIVED, samples_per_s=batch / have["step_time_mean_s"])
    if "samples_per_s" in have and run.has_pairs:
        run.record(DERIVED, samples_per_s=have["samples_per_s"] * _sequences(run))
        run.notes.append(PAIRS)
    if run.longest == length and run.longest:
        _note_limit(run)
    elif have["samples_per_s"] and length and "tokens_per_s" not in have:
        run.record(DERIVED, tokens_per_s=have["samples_per_s"] * length)
    _step_time(run)
    if run.first_is_slow and not {"step_time_mean_s", "train_runtime_s"} & have.keys():
        _over_stamps(run, table)
    if "step_time_mean_s" not in have and have.keys() >= PARTS:
        run.record(DERIVED, step_time_mean_s=sum(have[name] for name in PARTS))
        run.notes.append(SUM)
    _per_gpu(run)


def _note_limit(run: LoggedRun) -> None:
    """Say why tokens/s do not follow from samples/s."""
    if "tokens_per_s" not in run.figures:
        run.notes.append(LIMIT)


def _per_gpu(run: LoggedRun) -> None:
    """Derive tokens/s of all GPUs and of one from each other."""
    rate = run.figures["tokens_per_s"]
    of_one = run.figures["tokens_per_s_per_gpu"]
    gpus = run.settings["gpus"]
    if gpus and rate and not of_one:
        run.record(DERIVED, tokens_per_s_per_gpu=rate / gpus)
    if gpus and of_one and not rate:
        run.record(DERIVED, tokens_per_s=of_one * gpus)


def _step_time(run: LoggedRun) -> None:
    have = run.figures
    batch = run.settings["global_batch_size"]
    steps = run.settings["steps"]
    rate = have["samples_per_s"]
    runtime_s = have["train_runtime_s"]
    if runtime_s and steps and run.ended:
        # The last batch of an epoch may be smaller, so not from samples/s.
        if steps > run.resumed_from:
            run.record(DERIVED, step_time_mean_s=runtime_s / (steps - run.resumed_from))
    elif rate and batch and not runtime_s and "step_time_mean_s" not in have:
        run.record(DERIVED, step_time_mean_s=batch * _sequences(run) / rate)


def _over_steps(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive rates over the timed steps; a logged step time or TFLOP/s is the mean since the previous line."""
    timed = table.dropna(subset="step_time_s")
    spans = timed["span"]
    times_s = timed["step_time_s"] * spans
    total_s = float(sum(times_s))
    _record_steps(run, total_s, float(sum(spans)))
    samples = timed["samples"].fillna(run.settings["global_batch_size"] or 0.0)
    if len(timed) and (samples > 0).all():
        run.record(DERIVED, samples_per_s=float(sum(samples * spans)) / total_s)
    for name in (*TFLOPS, *RATES):
        rates = table[name].dropna()
        if len(timed):
            rates = rates[rates.index.isin(timed.index)]
        if rates.empty:
            continue
        weights = table["span"] / rates  # equal work
        if len(timed):
            weights = times_s
        weights = weights[rates.index]
        mean = float(sum(rates * weights) / sum(weights))
        origin = LOGGED
        if len(rates) > 1:
            origin = DERIVED
        run.record(origin, **{name: mean})


def _over_stamps(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive the step time from the time stamps of the first and the last line."""
    stamps = table[["step", "t_s"]].dropna()
    if stamps.empty:
        return
    count, time_s = stamps.iloc[-1] - stamps.iloc[0]
    _record_steps(run, float(time_s), float(count))
    batch = run.settings["global_batch_size"]
    if batch and "step_time_mean_s" in run.figures:
        run.record(DERIVED, samples_per_s=batch * count / time_s)
    later = table.loc[stamps.index[1:]]
    tokens = float((later["tokens"] * later["span"]).sum(skipna=False))
    if tokens > 0 and "tokens_per_s" not in run.figures:
        run.record(DERIVED, tokens_per_s=tokens / time_s)


def _record_steps(run: LoggedRun, time_s: float, count: float) -> None:
    if time_s > 0 and count > 0:
        run.record(DERIVED, step_time_mean_s=time_s / count, timed_steps=count, timed_s=time_s)


def _flops(run: LoggedRun) -> None:
    """Derive TFLOP/s by dsnb's convention if the model's shape is known; not for LoRA, which has fewer gradients."""
    sizes.count(run)
    shape = sizes.shape(run)
    if not shape:
        return
    if "parameters" not in run.figures:
        run.record(DERIVED, parameters=shape.parameters)
    rate = run.figures["tokens_per_s_per_gpu"]
    length = run.settings["seq_len"]
    if not rate or not length or run.settings["lora_rank"]:
        return
    per_token = metrics.model_flops_per_token(shape.parameters, shape.layers, shape.hidden, length)
    if "tflops_per_gpu" not in run.figures:
        run.record(DERIVED, tflops_per_gpu=metrics.tflops(per_token, rate))
    every = run.settings["activation_checkpointing"]
    if "hardware_tflops_per_gpu" not in run.figures and every is not None:
        blocks = shape.layers, shape.hidden, length, int(every)
        again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks)
        run.record(DERIVED, hardware_tflops_per_gpu=metrics.tflops(per_token + again, rate))
