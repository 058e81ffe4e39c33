"""Readers of what Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their forks print: arguments, sizes, iterations."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from dsnb.runs.logs.deepspeed import clock
from dsnb.runs.logs.flags import count_from_0, number_from_0, precision, stage, stages
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, LoggedRun, requested, used
from dsnb.runs.logs.text import NUMBER, count, number, positive

_ARGUMENT = re.compile(r"(?:^|[\s:])([A-Za-z_]\w{1,60}) \.{3,} (.*\n)")
_NEOX = re.compile(r"\.*(?:updated|default)$")
"""GPT-NeoX appends to each value whether it is the default: `4...........updated`."""
_WORLD = re.compile(r"using world size: (\d{1,7})\D")
_PARALLEL = re.compile(r"(?<!encoder-)(data|tensor-model|pipeline-model)-parallel[ -]size: (\d{1,6})(?!\d|\Z)")
_MODEL_PARALLEL = re.compile(r"and model-parallel size: (\d{1,6})\D")
_RANK = re.compile(r"number of parameters on (?:\([\w, ]+\) )?model parallel rank \(?([\d, ]{1,30})\)?: (\d{1,15})\D")

ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "micro_batch_size": ("micro_batch_size", count),
    "batch_size": ("micro_batch_size", count),  # the old name, before global_batch_size existed
    "global_batch_size": ("global_batch_size", count),
    "seq_length": ("seq_len", count),
    "tensor_model_parallel_size": ("tensor_parallel", count),
    "pipeline_model_parallel_size": ("pipeline_parallel", count),
    "model_parallel_size": ("tensor_parallel", count),
    "pipe_parallel_size": ("pipeline_parallel", stages),
    "data_parallel_size": ("data_parallel", count),
    "world_size": ("gpus", count),
    "global_num_gpus": ("gpus", count),
    "gas": ("grad_accum", count),  # the old name, before global_batch_size existed
    "train_iters": ("steps", count),
    "precision": ("precision", precision),
    "params_dtype": ("precision", precision),
    "zero_stage": ("zero_stage", stage),
    "lr": ("learning_rate", number_from_0),
    "clip_grad": ("gradient_clipping", number_from_0),
    "seed": ("seed", count_from_0),
    "hidden_dropout": ("dropout", number_from_0),
    "optimizer": ("optimizer", str),
}
SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "padded_vocab_size": "vocab"}
PARALLEL = {name for name, (setting, _) in ARGUMENTS.items() if setting in {"tensor_parallel", "pipeline_parallel"}}
"""Arguments that are read even outside the argument list."""
CHECKPOINTING = ("checkpoint_activations", "recompute_granularity", "recompute_activations")
_COORDINATE = re.compile(r"ProcessCoord\(((?:\w{1,20}=\d{1,6}(?:, )?){1,4})\)")
_AXIS = re.compile(r"(\w{1,20})=(\d{1,6})")
_STAGE = re.compile(r"RANK=\d{1,7} STAGE=(\d{1,6}) LAYERS=\d|^stage=(\d{1,6}) layers=\d")
_GROUP = re.compile(r"MPU (DP|PP|MP): \[(\d[\d, ]{0,60000})\]")
AXES = {"pipe": "pipeline_parallel", "data": "data_parallel", "model": "tensor_parallel"}
GROUPS = {"PP": "pipeline_parallel", "DP": "data_parallel", "MP": "tensor_parallel"}
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


def arguments(run: LoggedRun, line: str) -> None:
    """`------------ arguments ------------`: starts Megatron's list of arguments; `end of arguments` ends it."""
    if "end of" in line:
        run.scratch["arguments"] = False
        if not run.scratch.get("checkpoints"):
            run.set_used(activation_checkpointing=False)
    else:
        run.scratch["arguments"] = True
        set_megatron(run)


def argument(run: LoggedRun, line: str) -> None:
    """`  micro_batch_size ................................ 4`."""
    found = _ARGUMENT.search(line)
    if not found or not (run.scratch.get("arguments") or found[1] in PARALLEL):
        return
    name, value = found[1], _NEOX.sub("", found[2].strip())
    if name in ARGUMENTS and value != "None":
        setting, read = ARGUMENTS[name]
        run.set_used(**{setting: read(value[:60])})
    elif name == "num_experts" and (numbers := re.findall(r"\d+", value[:60])):
        run.scratch["experts"] = max(map(int, numbers)) > 1
    elif name in SHAPE and (size := count(value)):
        run.shape[SHAPE[name]] = size
    elif name in CHECKPOINTING and value in {"True", "full", "selective"}:
        run.scratch["checkpoints"] = True
        run.set_used(activation_checkpointing=value != "selective")
    elif name == "deepspeed" and value == "True":
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")


def set_megatron(run: LoggedRun) -> None:
    """Record that a program of the Megatron family wrote the log."""
    if "Megatron" not in run.program:
        deepspeed = "deepspeed" in run.environment
        run.program = "Megatron-DeepSpeed" if deepspeed else "Megatron-LM"
        run.set_used(strategy=run.program.lower() if deepspeed else "megatron")


def world(run: LoggedRun, line: str) -> None:
    """Read `using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, ...`."""
    if not line.endswith("\n"):
        return  # in a line that is cut off, a missing size would count as 1
    if found := _WORLD.search(line):
        set_megatron(run)
        run.set_used(gpus=count(found[1]))
    if found := _MODEL_PARALLEL.search(line):  # old format, before pipelines and micro-batches
        run.set_used(tensor_parallel=count(found[1]), pipeline_parallel=1, grad_accum=1)
    names = {"data": "data_parallel", "tensor-model": "tensor_parallel", "pipeline-model": "pipeline_parallel"}
    for kind, size in _PARALLEL.findall(line):
        run.set_used(**{names[kind]: count(size)})


def parameters(run: LoggedRun, line: str) -> None:
    """Read the parameters of one model-parallel rank; the model has the sum over these ranks."""
    if found := _RANK.search(line):
        ranks = run.scratch.setdefault("parameters", {})
        if len(ranks) < 100_000:
            ranks[found[1].replace(" ", "")] = int(found[2])


def coordinates(run: LoggedRun, line: str) -> None:
    """Read the sizes from `Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ...}`: each axis counts from 0.

    With many ranks the line is longer than what is read of it, and the last ranks are missing: then it is ignored.
    """
    if not line.rstrip().endswith("}"):
        return
    sizes: dict[str, int] = {}
    for coordinate in _COORDINATE.findall(line):
        for axis, place in _AXIS.findall(coordinate):
            sizes[axis] = max(sizes.get(axis, 0), int(place) + 1)
    if sizes.keys() <= AXES.keys() and sizes:
        run.set_used(**{setting: sizes.get(axis, 1) for axis, setting in AXES.items()})


def pipeline_stage(run: LoggedRun, line: str) -> None:
    """Read `RANK=4 STAGE=1 LAYERS=15 [14, 29) ...` and `stage=1 layers=15`: a lower bound for the number of stages."""
    if found := _STAGE.search(line):
        at_least = int(found[1] or found[2]) + 1
        if at_least > run.settings.get("pipeline_parallel", 0):
            run.set_used(pipeline_parallel=at_least)


def group(run: LoggedRun, line: str) -> None:
    """`MPU PP: [0, 4, 8, 12]`: the ranks of one group."""
    if found := _GROUP.search(line):
        run.set_used(**{GROUPS[found[1]]: found[2].count(",") + 1})


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


def vocabulary(run: LoggedRun, line: str) -> None:
    """`> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)`."""
    if found := re.search(r"padded vocab .{0,100}\(new size: (\d{1,9})\)", line):
        run.shape["vocab"] = int(found[1])


READERS = {
    " arguments -": arguments,
    "end of arguments": arguments,
    " ...": argument,
    "using world size: ": world,
    "number of parameters on": parameters,
    "padded vocab": vocabulary,
    "ProcessCoord(": coordinates,
    "STAGE=": pipeline_stage,
    "stage=": pipeline_stage,
    "num_stages": requested(r"\bnum_stages['\"]?\s?[=:]\s?(\d{1,6})\b", pipeline_parallel=count),
    "CONFIG: micro_batches=": used(
        r"CONFIG: micro_batches=(\d{1,9}) micro_batch_size=(\d{1,9})\s", grad_accum=count, micro_batch_size=count
    ),
    "MPU ": group,
    "> initializing pipeline ": used(r"line model parallel with size (\d{1,6})\s", pipeline_parallel=count),
    "> initializing tensor ": used(r"tensor model parallel with size (\d{1,6})\s", tensor_parallel=count),
    "> initializing model ": used(r"> initializing model parallel with size (\d{1,6})\s", tensor_parallel=count),
    "iteration": iteration,
    "memory (MB)": memory,
    "done] datetime": done,
    "exiting program at iteration": done,
}
