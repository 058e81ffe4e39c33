"""The row and the steps of a run from another program's log, with figures derived by formulas."""

from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.formulas import metrics
from dsnb.results.logs import parallel, sizes
from dsnb.results.logs.reading import CONSOLE, DERIVED, LOGGED, PROVENANCES, LoggedRun

TFLOPS = ("tflops_per_gpu", "hardware_tflops_per_gpu")
RATES = ("tokens_per_s", "tokens_per_s_per_gpu")
FIELDS = (
    "step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped",
    *TFLOPS, *RATES,
)  # fmt: skip
PAIRS = "a sample of this log is a pair of sequences: samples/s and tokens/s count both"


def row(run: LoggedRun, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a run, without columns that were neither logged nor can be derived."""
    table = _table(run)
    parallel.derive(run)
    _throughput(run, table)
    losses = table["loss"].dropna()
    if len(losses) and "loss_last" not in run.figures:
        run.record(loss_first=float(losses.iloc[0]), loss_last=float(losses.iloc[-1]))
    first, second = ([step["step"] for step in run.steps[:2]] + [0, 0])[:2]
    skipped = run.scratch.get(
        "skipped_by_engine", 0
    )  # also in a pipeline, where Megatron's own lines miss them
    if (
        second and first in {1, second - first} and skipped > run.figures.get("skipped_steps", 0)
    ):  # not resumed
        run.record(skipped_steps=skipped)
    _flops(run)
    status, cause = _status_and_cause(run)
    by_kind = {
        kind: [name for name, origin in run.provenance.items() if origin == kind]
        for kind in PROVENANCES
    }
    program = run.program or CONSOLE
    return {
        **names,
        "status": status,
        "cause": cause,
        "source": program if program.endswith("CSV") else f"{program} log",
        **run.settings,
        **run.figures,
        **run.environment,
        "host": next(iter(run.slots), None),
        "note": "; ".join(dict.fromkeys(run.notes)) or None,
        "provenance": "; ".join(
            f"{kind}: {', '.join(names)}" for kind, names in by_kind.items() if names
        ),
        "run_dir": str(path),
    }


def _table(run: LoggedRun) -> pd.DataFrame:
    """Return the steps as columns, with the number of steps that each line stands for."""
    logged = {name for step in run.steps for name in step}
    missing = float("nan")
    columns = {
        name: [step.get(name, missing) for step in run.steps] if name in logged else missing
        for name in FIELDS
    }
    table = pd.DataFrame(columns, index=range(len(run.steps)), dtype=float)
    if run.scratch.get("parts"):  # of one engine of several, which is a part of a step
        table["step_time_s"] = missing
    return table.assign(span=table["step"].diff().fillna(1.0))


def steps(run: LoggedRun) -> pd.DataFrame:
    """Return the steps of a run in the columns of `dsnb.load_steps`; tokens and memory only where they were logged."""
    table = _table(run)
    batch, length = run.settings.get("global_batch_size"), run.settings.get("seq_len")
    if batch and length:
        table["tokens"] = table["tokens"].fillna(batch * length * _sequences(run))
    table["phase"] = "timed"
    table.loc[: _warmup_lines(run) - 1, "phase"] = "warmup"
    table["skipped"] = (table["skipped"] > 0).where(table["skipped"].notna(), None)
    return table


def _sequences(run: LoggedRun) -> int:
    """Return the number of sequences in what the log counts as one sample."""
    return 2 if run.scratch.get("pairs") else 1


def _status_and_cause(run: LoggedRun) -> tuple[str, str | None]:
    """Return status and cause; a log that just stops is `ok` if it has steps, and its last step is the cause."""
    if run.health.has_diverged:
        return "nan", run.health.says
    if run.ended:
        return "ok", None
    if run.failure and run.has_failed:
        return run.failure
    if (
        run.progress
        or run.scratch.get("reached")
        or {"samples_per_s", "tokens_per_s"} & set(run.figures)
    ):
        return "ok", _where_it_ends(run)
    return "interrupted", "the log ends before the first step"


def _where_it_ends(run: LoggedRun) -> str | None:
    """Return where a log that just stops ends; None if that was to be its end, or if it is unknown."""
    planned = run.settings.get("steps") or run.scratch.get("bar_of")
    last = max(int(run.steps[-1]["step"]) if run.steps else 0, run.scratch.get("reached", 0))
    if last:
        return f"the log ends at step {last} of {planned}" if planned and last < planned else None
    return (
        f"the log ends without final figures, after {run.unnumbered} logged losses"
        if run.unnumbered
        else None
    )


def _warmup_lines(run: LoggedRun) -> int:
    """Return the number of warm-up lines: the first includes compilation and the setup of NCCL."""
    return int(bool(run.scratch.get("first_is_slow")) and len(run.steps) > 1)


def _throughput(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive samples/s, tokens/s and step time from each other: work over time, never a mean of rates."""
    have, settings = run.figures, run.settings
    batch, length = settings.get("global_batch_size"), settings.get("seq_len")
    timed = table.iloc[_warmup_lines(run) :]
    if "samples_per_s" not in have and run.scratch.get("first_is_slow"):
        _over_steps(run, timed)
    if run.scratch.get("parts"):
        run.forget("samples_per_s_running")
    if "samples_per_s" not in have:
        run.record(samples_per_s=have.get("samples_per_s_running"))
    if not {"samples_per_s", "step_time_mean_s"} & set(have):
        _over_steps(run, timed)
    _per_gpu(run)
    if (
        "samples_per_s" not in have
        and run.scratch.get("first_is_slow")
        and have.get("tokens_per_s")
        and length
    ):
        run.record(DERIVED, samples_per_s=have["tokens_per_s"] / length)
    if not {"samples_per_s", "step_time_mean_s", "train_runtime_s"} & set(have):
        _over_stamps(run, table)
    if "samples_per_s" not in have and have.get("step_time_mean_s") and batch and not length:
        run.record(DERIVED, samples_per_s=batch / have["step_time_mean_s"])
    if "samples_per_s" in have and _sequences(run) > 1:
        run.record(DERIVED, samples_per_s=have["samples_per_s"] * _sequences(run))
        run.notes.append(PAIRS)
    if have.get("samples_per_s") and length and "tokens_per_s" not in have:
        run.record(DERIVED, tokens_per_s=have["samples_per_s"] * length)
    _step_time(run)
    _per_gpu(run)


def _per_gpu(run: LoggedRun) -> None:
    """Derive tokens/s of all GPUs and of one from each other."""
    rate, of_one, gpus = *map(run.figures.get, RATES), run.settings.get("gpus")
    if gpus and rate and not of_one:
        run.record(DERIVED, tokens_per_s_per_gpu=rate / gpus)
    if gpus and of_one and not rate:
        run.record(DERIVED, tokens_per_s=of_one * gpus)


def _step_time(run: LoggedRun) -> None:
    have, batch = run.figures, run.settings.get("global_batch_size")
    runtime_s, steps, rate = (
        have.get("train_runtime_s"),
        run.settings.get("steps"),
        have.get("samples_per_s"),
    )
    if (
        runtime_s and steps and run.ended
    ):  # the last batch of an epoch may be smaller, so not from samples/s
        if (executed := steps - run.scratch.get("resumed", 0)) > 0:
            run.record(DERIVED, step_time_mean_s=runtime_s / executed)
    elif rate and batch and not runtime_s and "step_time_mean_s" not in have:
        run.record(DERIVED, step_time_mean_s=batch * _sequences(run) / rate)


def _over_steps(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive rates over the timed steps; a logged step time or TFLOP/s is the mean since the previous line."""
    timed = table["step_time_s"].dropna()
    spans = table["span"][timed.index]
    time_s, count = float(sum(timed * spans)), float(sum(spans))
    if time_s > 0:
        run.record(DERIVED, step_time_mean_s=time_s / count, timed_steps=count, timed_s=time_s)
        samples = table["samples"][timed.index].fillna(run.settings.get("global_batch_size") or 0.0)
        run.record(
            DERIVED,
            samples_per_s=float(sum(samples * spans)) / time_s if (samples > 0).all() else None,
        )
    for name in (*TFLOPS, *RATES):
        rates = table[name].dropna()
        if len(rates) and len(timed):
            rates = rates[rates.index.isin(timed.index)]
        if len(rates) and len(timed):
            times_s = (timed * spans)[rates.index]
            mean = float(sum(rates * times_s) / sum(times_s))
        elif len(rates):  # equal work in every step
            worked = table["span"][rates.index]
            mean = float(sum(worked) / sum(worked / rates))
        else:
            continue
        run.record(DERIVED if len(rates) > 1 else LOGGED, **{name: mean})


def _over_stamps(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive the step time from the time stamps of the first and the last line."""
    stamps = table[["step", "t_s"]].dropna()
    count, time_s = (
        float(stamps[name].iloc[-1] - stamps[name].iloc[0]) if len(stamps) else 0.0
        for name in stamps
    )
    if count > 0 and time_s > 0:
        run.record(DERIVED, step_time_mean_s=time_s / count, timed_steps=count, timed_s=time_s)
        if batch := run.settings.get("global_batch_size"):
            run.record(DERIVED, samples_per_s=batch * count / time_s)


def _flops(run: LoggedRun) -> None:
    """Derive TFLOP/s by dsnb's convention if the model's shape is known; not for LoRA, which has fewer gradients."""
    sizes.count(run)
    shape = sizes.shape(run)
    if shape and "parameters" not in run.figures:
        run.record(DERIVED, parameters=shape.parameters)
    rate, length = run.figures.get("tokens_per_s_per_gpu"), run.settings.get("seq_len")
    if not shape or not rate or not length or run.settings.get("lora_rank"):
        return
    per_token = metrics.model_flops_per_token(shape.parameters, shape.layers, shape.hidden, length)
    if "tflops_per_gpu" not in run.figures:
        run.record(DERIVED, tflops_per_gpu=metrics.tflops(per_token, rate))
    if "hardware_tflops_per_gpu" not in run.figures and "activation_checkpointing" in run.settings:
        every = int(run.settings["activation_checkpointing"])
        blocks = shape.layers, shape.hidden, length, every
        again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks)
        run.record(DERIVED, hardware_tflops_per_gpu=metrics.tflops(per_token + again, rate))
