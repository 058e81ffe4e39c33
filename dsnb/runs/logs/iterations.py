"""Readers of the iteration and memory lines of Megatron-LM, Megatron-DeepSpeed and their forks."""

import math
import re
from functools import cache
from typing import Any

from dsnb.runs.logs.deepspeed import clock
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, LoggedRun
from dsnb.runs.logs.megatron import set_megatron
from dsnb.runs.logs.text import NUMBER, count, number, positive

_ITERATION = re.compile(
    r"(?:^|\s)iteration\s{0,9}[=\s]\s{0,20}(\d{1,12})\s{0,20}/\s{0,20}(\d{1,12}|infinity)\s{0,20}\|"
)
_NEWEST = re.compile(r"\.\d{6}\] iteration .{0,200}elapsed time per iteration \(ms\): [\d.]+ ")
_PEAK = re.compile(r"after (\d{1,9}) iterations\)? memory \(MB\)")
_ALLOCATED = re.compile(r"\| max allocated: " + NUMBER)
_RESERVED = re.compile(r"\| max (?:reserved|cached): " + NUMBER)
_DONE = re.compile(r"\[(?:after training is done|exiting program at iteration)")
_FIELD = re.compile(
    r"\|\s*(lm[ _-]loss|global[ _-]batch[ _-]size|actual[ _-]seqlen|number[ _-]of[ _-](?:skipped|nan)[ _-]iterations"
    r"|elapsed[ _]time[ _]per[ _]iteration[ _](?:\(ms\)|\(s\)|ms|s)|throughput per GPU \(TFLOP/s/GPU\)"
    r"|TFLOPs|\[LM\]-TFLOPs)\s*[:=]?\s*([-+\w.,]+)(?=[\s|])"
)
"""`| name: 1.0`, `| name=1.0` and, in the oldest format, `| name 1.0`; not at the very end, where it may be cut off."""
TFLOPS = {"throughput per GPU TFLOP/s/GPU": "tflops_per_gpu", "TFLOPs": "hardware_tflops_per_gpu"}
_NAN_LOSS = re.compile(r"lm[ _-]loss:?\s*=?\s*nan", re.I)
_RATE = re.compile(r"samples(?:[ _]per[ _]second|/sec)\s?[:=]\s{0,9}" + NUMBER)


def iteration(run: LoggedRun, line: str) -> None:
    """` iteration  1/  1000 | consumed samples: 1024 | elapsed time per iteration (ms): 159778.9 | ...`.

    The time is the mean since the previous line; skipped and NaN iterations are counted since then.
    """
    found = _ITERATION.search(line)
    if not found:
        return
    if "Megatron" not in run.program:
        set_megatron(run)
    run.configured = True
    fields = {_name(words): value for words, value in reversed(_FIELD.findall(line))}  # the first one of a name wins
    _sizes(run, fields.get("global batch size"), fields.get("actual seqlen"), found[2])
    step, step_time_s = int(found[1]), positive(fields.get("elapsed time per iteration ms"))
    step_time_s = step_time_s * 0.001 if step_time_s else positive(fields.get("elapsed time per iteration s"))
    batch, loss = count(fields.get("global batch size")), number(fields.get("lm loss"))
    own = logged = {
        "step_time_s": step_time_s,
        "skipped": number(fields.get("number of skipped iterations")),
        "nan": number(fields.get("number of nan iterations")),
    }
    is_new = math.isnan(run.steps.last) or step > run.steps.last
    if is_new and ("first_line" in run.scratch or not len(run.steps)):
        own = _without_first(run, line, {"step": step} | logged)
    run.steps.add(
        step,
        t_s=clock(run, line),
        step_time_s=own["step_time_s"],
        step_time_logged_s=step_time_s if own["step_time_s"] != step_time_s else None,
        loss=loss,
        samples=float(batch) if batch else _samples(run, line, step_time_s),
        skipped=own["skipped"],
    )
    if is_new:
        _count(run, "skipped_steps", own["skipped"])
        _count(run, "nan_steps", own["nan"])
        run.scratch["loss_is_nan"] = loss is None and _NAN_LOSS.search(line) is not None
        for field, figure in TFLOPS.items():
            if field in fields:
                _tflops(run, figure, positive(fields[field]), own["step_time_s"])


def _sizes(run: LoggedRun, *texts: str | None) -> None:
    """Read batch size, sequence length and planned steps, which are the same in most lines."""
    if texts != run.scratch.get("sizes"):
        run.scratch["sizes"] = texts
        batch, length, steps = map(count, texts)
        run.set_used(global_batch_size=batch, seq_len=length, steps=steps)


@cache
def _name(words: str) -> str:
    """Return the name of a field in the spelling of most forks."""
    return re.sub(r"[()]", "", re.sub("[_-]", " ", words)).removeprefix("[LM] ")


def _samples(run: LoggedRun, line: str, step_time_s: float | None) -> float | None:
    """Derive the samples of an iteration from its rate: GPT-NeoX does not print a batch size per line."""
    if not step_time_s or "global_batch_size" in run.settings:
        return None
    found = _RATE.search(line)
    rate = positive(found[1]) if found else None
    return rate * step_time_s if rate else None


def _tflops(run: LoggedRun, name: str, value: float | None, step_time_s: float | None) -> None:
    """Record logged TFLOP/s as their mean over time, without the first line if there are more."""
    if value is None or not step_time_s:
        return
    if name not in run.figures:
        run.record(LOGGED, **{name: value})
        return
    work, time_s = run.scratch.get(name, (0.0, 0.0))
    span_s = step_time_s * run.steps.last_span
    work, time_s = run.scratch[name] = (work + value * span_s, time_s + span_s)
    run.record(DERIVED, **{name: work / time_s})


def _without_first(run: LoggedRun, line: str, logged: dict[str, Any]) -> dict[str, Any]:
    """Subtract the first iteration from the second line of the newest Megatron-LM, which counts it in both lines.

    It prints the first iteration whatever the interval, and does not reset its sums after it. This version is detected
    by time stamps with microseconds. A log without its beginning may start at any other line.
    """
    first = run.scratch.pop("first_line", None)
    if not len(run.steps) and _NEWEST.search(line) and (logged["step"] == 1 or "gpus" in run.settings):
        run.scratch["first_line"] = logged
    if not first:
        return logged
    steps = logged["step"] - first["step"]
    own = {name: max(0, value - first[name]) if value and first[name] else value for name, value in logged.items()}
    if logged["step_time_s"] and first["step_time_s"]:
        rest_s = (logged["step_time_s"] * (steps + 1) - first["step_time_s"]) / steps
        own["step_time_s"] = rest_s if rest_s > 0 else None
    return own


def _count(run: LoggedRun, name: str, more: float | None) -> None:
    if more is not None and more >= 0 and (more or name not in run.figures):
        run.figures[name] = run.figures.get(name, 0) + more
        run.provenance[name] = LOGGED


def memory(run: LoggedRun, line: str) -> None:
    """`[Rank 1] (after 1 iterations) memory (MB) | allocated: ... | max allocated: 19961.07 | ...`; MB is 2^20 here."""
    if not _PEAK.search(line):
        return
    for name, pattern in (("peak_allocated_gib", _ALLOCATED), ("peak_reserved_gib", _RESERVED)):
        for found in pattern.findall(line):
            value = positive(found)
            run.record_max(**{name: value / 1024 if value else None})


def done(run: LoggedRun, line: str) -> None:
    """`[after training is done] datetime: ...`."""
    if _DONE.search(line):
        run.ended = True


READERS = {
    "iteration": iteration,
    "memory (MB)": memory,
    "done] datetime": done,
    "exiting program at iteration": done,
}
