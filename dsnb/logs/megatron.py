"""What Megatron-LM, Megatron-DeepSpeed and their forks print: arguments, iterations, memory."""

import re
from collections.abc import Callable
from typing import Any

from dsnb.logs.deepspeed import clock
from dsnb.logs.flags import count_from_0, number_from_0, precision, stage
from dsnb.logs.start import DERIVED, LOGGED, Start
from dsnb.logs.text import NUMBER, count, number, positive

_ARGUMENT = re.compile(r"(?:^|[\s:])([A-Za-z_]\w{1,60}) \.{3,} (.*\n)")
_WORLD = re.compile(r"using world size: (\d{1,7})\D")
_PARALLEL = re.compile(r"(?<!encoder-)(data|tensor-model|pipeline-model)-parallel[ -]size: (\d{1,6})(?!\d|\Z)")
_MODEL_PARALLEL = re.compile(r"and model-parallel size: (\d{1,6})\D")
_ITERATION = re.compile(
    r"(?:^|\s)iteration\s{0,9}[=\s]\s{0,20}(\d{1,12})\s{0,20}/\s{0,20}(\d{1,12}|infinity)\s{0,20}\|"
)
_ELAPSED = re.compile(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?(ms|s)\)?\s*[:=]\s*" + NUMBER)
_NEWEST = re.compile(r"\.\d{6}\] iteration .{0,200}elapsed time per iteration \(ms\): [\d.]+ ")
_RANK = re.compile(r"number of parameters on (?:\([\w, ]+\) )?model parallel rank \(?([\d, ]{1,30})\)?: (\d{1,15})\D")
_VOCABULARY = re.compile(r"padded vocab .{0,100}\(new size: (\d{1,9})\)")
_PEAK = re.compile(r"after (\d{1,9}) iterations\)? memory \(MB\)")
_ALLOCATED = re.compile(r"\| max allocated: " + NUMBER)
_RESERVED = re.compile(r"\| max (?:reserved|cached): " + NUMBER)
_DONE = re.compile(r"\[(?:after training is done|exiting program at iteration)")


def _field(name: str) -> re.Pattern[str]:
    """Match `name: 1.0`, `name=1.0` and the oldest form, `name 1.0`."""
    return re.compile(r"\|\s*" + name.replace(" ", "[ _-]") + r"\s*[:=]?\s*" + NUMBER)


_LOSS = _field("lm loss")
_BATCH, _LENGTH = _field("global batch size"), _field("actual seqlen")
_SKIPPED, _NAN = _field("number of skipped iterations"), _field("number of nan iterations")
_RATE = re.compile(r"samples(?:[ _]per[ _]second|/sec)\s?[:=]\s{0,9}" + NUMBER)
_MODEL_TFLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\): " + NUMBER)
_HARDWARE_TFLOPS = re.compile(r"\|\s*(?:\[LM\]-)?TFLOPs\s*[:=]\s*" + NUMBER)

ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "micro_batch_size": ("micro_batch_size", count),
    "batch_size": ("micro_batch_size", count),  # its name before there was a global one
    "global_batch_size": ("global_batch_size", count),
    "seq_length": ("seq_len", count),
    "tensor_model_parallel_size": ("tensor_parallel", count),
    "pipeline_model_parallel_size": ("pipeline_parallel", count),
    "model_parallel_size": ("tensor_parallel", count),
    "data_parallel_size": ("data_parallel", count),
    "world_size": ("gpus", count),
    "params_dtype": ("precision", precision),
    "zero_stage": ("zero_stage", stage),
    "lr": ("learning_rate", number_from_0),
    "clip_grad": ("gradient_clipping", number_from_0),
    "seed": ("seed", count_from_0),
    "hidden_dropout": ("dropout", number_from_0),
    "optimizer": ("optimizer", str),
}
SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "padded_vocab_size": "vocab"}
CHECKPOINTING = ("checkpoint_activations", "recompute_granularity", "recompute_activations")


def arguments(start: Start, line: str) -> None:
    """`------------ arguments ------------`: what follows is Megatron's, until it ends."""
    if "end of" in line:
        start.scratch["arguments"] = False
        if not start.scratch.get("checkpoints"):
            start.print(activation_checkpointing=False)
    else:
        start.scratch["arguments"] = True
        _megatron(start)


def argument(start: Start, line: str) -> None:
    """`  micro_batch_size ................................ 4`."""
    if not start.scratch.get("arguments") or not (found := _ARGUMENT.search(line)):
        return
    name, value = found[1], found[2].strip()
    if name in ARGUMENTS and value != "None":
        setting, read = ARGUMENTS[name]
        start.print(**{setting: read(value[:60])})
    elif name in SHAPE and (size := count(value)):
        start.shape[SHAPE[name]] = size
    elif name in CHECKPOINTING and value in {"True", "full", "selective"}:
        start.scratch["checkpoints"] = True
        start.print(activation_checkpointing=value != "selective")
    elif name == "deepspeed" and value == "True":
        start.program = "Megatron-DeepSpeed"
        start.print(strategy="megatron-deepspeed")


def _megatron(start: Start) -> None:
    if "Megatron" not in start.program:
        deepspeed = "deepspeed" in start.environment
        start.program = "Megatron-DeepSpeed" if deepspeed else "Megatron-LM"
        start.print(strategy=start.program.lower() if deepspeed else "megatron")


def world(start: Start, line: str) -> None:
    """Take `using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, ...`."""
    if not line.endswith("\n"):
        return  # a size that is not in a whole line is 1
    if found := _WORLD.search(line):
        _megatron(start)
        start.print(gpus=count(found[1]))
    if found := _MODEL_PARALLEL.search(line):  # before there were pipelines and micro-batches
        start.print(tensor_parallel=count(found[1]), pipeline_parallel=1, grad_accum=1)
    names = {"data": "data_parallel", "tensor-model": "tensor_parallel", "pipeline-model": "pipeline_parallel"}
    for kind, size in _PARALLEL.findall(line):
        start.print(**{names[kind]: count(size)})


def iteration(start: Start, line: str) -> None:
    """` iteration  1/  1000 | consumed samples: 1024 | elapsed time per iteration (ms): 159778.9 | ...`.

    The time is the mean since the line before, counts of skipped and NaN iterations are sums since then.
    """
    found = _ITERATION.search(line)
    if not found:
        return
    _megatron(start)
    start.configured = True
    step, elapsed = int(found[1]), _ELAPSED.search(line)
    factor = 0.001 if elapsed and elapsed[1] == "ms" else 1.0
    step_time_s = positive(elapsed[2]) if elapsed else None
    if (batch := count(_value(_BATCH, line))) is not None:
        start.print(global_batch_size=batch)
    if (length := count(_value(_LENGTH, line))) is not None:
        start.print(seq_len=length)
    if found[2] != "infinity":
        start.print(steps=count(found[2]))
    rate = positive(_value(_RATE, line))
    samples = float(batch) if batch else None
    if samples is None and rate and step_time_s and "global_batch_size" not in start.settings:
        samples = rate * step_time_s * factor  # GPT-NeoX has no batch size in its lines
    fresh = not len(start.steps) or step > start.steps.last
    said = {"step": step, "step_time_s": step_time_s * factor if step_time_s else None}
    said |= {"skipped": number(_value(_SKIPPED, line)), "nan": number(_value(_NAN, line))}
    own = _without_first(start, line, said) if fresh else said
    start.steps.add(
        step,
        t_s=clock(start, line),
        step_time_s=own["step_time_s"],
        step_time_logged_s=said["step_time_s"] if own is not said else None,
        loss=number(_value(_LOSS, line)),
        samples=samples,
        skipped=own["skipped"],
    )
    if fresh:
        _count(start, skipped_steps=own["skipped"], nan_steps=own["nan"])
        start.scratch["loss_is_nan"] = bool(re.search(r"lm[ _-]loss:?\s*=?\s*nan", line, re.I))
        _tflops(start, line, own["step_time_s"])


def _tflops(start: Start, line: str, step_time_s: float | None) -> None:
    """Take the logged TFLOP/s as their mean over time, without those of the first line where there are others."""
    for name, pattern in (("tflops_per_gpu", _MODEL_TFLOPS), ("hardware_tflops_per_gpu", _HARDWARE_TFLOPS)):
        value = positive(_value(pattern, line))
        if value is None or not step_time_s:
            continue
        if name not in start.figures:
            start.measure(LOGGED, **{name: value})
            continue
        work, time_s = start.scratch.get(name, (0.0, 0.0))
        steps = start.steps.columns["step"]
        span_s = step_time_s * (steps[-1] - steps[-2] if len(steps) > 1 else 1)
        work, time_s = start.scratch[name] = (work + value * span_s, time_s + span_s)
        start.measure(DERIVED, **{name: work / time_s})


def _without_first(start: Start, line: str, said: dict[str, Any]) -> dict[str, Any]:
    """Take the first iteration out of the second line of the newest Megatron-LM, which counts it in both lines.

    Since it prints the first iteration whatever the interval, its sums go on after that line. Its time stamps have
    microseconds. A log that does not have its beginning may begin with any other line.
    """
    first = start.scratch.pop("first_line", None)
    if not len(start.steps) and _NEWEST.search(line) and (said["step"] == 1 or "gpus" in start.settings):
        start.scratch["first_line"] = said
    if not first:
        return said
    steps = said["step"] - first["step"]
    own = {name: max(0, said[name] - first[name]) if said[name] and first[name] else said[name] for name in said}
    if said["step_time_s"] and first["step_time_s"]:
        rest_s = (said["step_time_s"] * (steps + 1) - first["step_time_s"]) / steps
        own["step_time_s"] = rest_s if rest_s > 0 else None
    return own


def _value(pattern: re.Pattern[str], line: str) -> str | None:
    found = pattern.search(line)
    return found[1] if found else None


def _count(start: Start, **counts: float | None) -> None:
    for name, value in counts.items():
        if value is not None and value >= 0:
            start.measure(LOGGED, **{name: start.figures.get(name, 0) + value})


def parameters(start: Start, line: str) -> None:
    """Take the parameters of one model-parallel rank; the model's number is their sum."""
    if found := _RANK.search(line):
        ranks = start.scratch.setdefault("parameters", {})
        if len(ranks) < 100_000:
            ranks[found[1].replace(" ", "")] = int(found[2])


def vocabulary(start: Start, line: str) -> None:
    """`> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)`."""
    if found := _VOCABULARY.search(line):
        start.shape["vocab"] = int(found[1])


def memory(start: Start, line: str) -> None:
    """`[Rank 1] (after 1 iterations) memory (MB) | allocated: ... | max allocated: 19961.07 | ...`; MB is 2^20 here."""
    if not _PEAK.search(line):
        return
    for name, pattern in (("peak_allocated_gib", _ALLOCATED), ("peak_reserved_gib", _RESERVED)):
        for found in pattern.findall(line):
            value = positive(found)
            start.peak(**{name: value / 1024 if value else None})


def done(start: Start, line: str) -> None:
    """`[after training is done] datetime: ...`."""
    if _DONE.search(line):
        start.ended = True


READERS = {
    " arguments -": arguments,
    "end of arguments": arguments,
    " ...": argument,
    "using world size: ": world,
    "iteration": iteration,
    "number of parameters on": parameters,
    "padded vocab": vocabulary,
    "iterations": memory,
    "done] datetime": done,
    "exiting program at iteration": done,
}
