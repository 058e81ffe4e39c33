"""Readers of output of Megatron-LM, Megatron-DeepSpeed and their forks: arguments, sizes, iterations."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from dsnb.results.logs import sizes
from dsnb.results.logs.deepspeed import clock
from dsnb.results.logs.launchers import FLAGS, SPLITS, precision
from dsnb.results.logs.reading import LOGGED, LoggedRun, reads, used
from dsnb.results.logs.text import NUMBER, count, number, number_from_0, positive


def optimizer(text: str) -> str:
    """Parse an optimizer: Megatron prints its name, GPT-NeoX its type and parameters."""
    match = re.search(r"'type': '(\w{1,40})'", text)
    return match[1] if match else text


ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **{
        name: FLAGS[name]
        for name in (
            "micro_batch_size", "global_batch_size", "seq_length", "tensor_model_parallel_size", "model_parallel_size",
            "pipeline_model_parallel_size", "pipe_parallel_size", "train_iters", "zero_stage", "lr", "seed",
        )
    },
    "batch_size": ("micro_batch_size", count),  # the old name, before global_batch_size existed
    "gas": ("grad_accum", count),  # likewise
    "data_parallel_size": ("data_parallel", count),
    "world_size": ("gpus", count),
    "params_dtype": ("precision", precision),
    "clip_grad": ("gradient_clipping", number_from_0),
    "hidden_dropout": ("dropout", number_from_0),
    "optimizer": ("optimizer", optimizer),
    # GPT-NeoX's names, which are DeepSpeed's.
    "train_batch_size": ("global_batch_size", count),
    "train_micro_batch_size_per_gpu": ("micro_batch_size", count),
    "gradient_accumulation_steps": ("grad_accum", count),
    "gradient_clipping": ("gradient_clipping", number_from_0),
    "precision": ("precision", precision),
    "global_num_gpus": ("gpus", count),
}  # fmt: skip
PARALLEL = {
    name
    for name, (setting, _) in ARGUMENTS.items()
    if setting in {"tensor_parallel", "pipeline_parallel"}
}
"""Arguments that are read even outside the argument list."""
NEOX = "GPT-NeoX"
CHECKPOINTING = ("checkpoint_activations", "recompute_granularity", "recompute_activations")
_SUFFIX = re.compile(r"\.{3,}(updated|default)$")
"""GPT-NeoX says behind every argument whether it is its default."""
_PARALLEL = re.compile(
    r"(?<!encoder-)(data|tensor-model|pipeline-model)-parallel[ -]size: (\d{1,6})(?!\d|\Z)"
)
_CONTEXT = re.compile(r"(?<!hierarchical )context-parallel size: ([1-9]\d{0,5})\b")
_MODEL_PARALLEL = re.compile(r"and model-parallel size: (\d{1,6})\D")
_COORDINATE = re.compile(r"\b(pipe|data|model)=(\d{1,6})")
GROUPS = {
    **dict.fromkeys(("pipe", "pipeline-model"), "pipeline_parallel"),
    **dict.fromkeys(("model", "tensor-model"), "tensor_parallel"),
    "data": "data_parallel",
}
_NEWEST = re.compile(r"\.\d{6}\] iteration .{0,200}elapsed time per iteration \(ms\): [\d.]+ ")
"""The newest Megatron-LM, which prints microseconds, counts the first iteration in its first and its second line."""
_FIELD = re.compile(
    r"\|\s*(lm[ _-]loss|global[ _-]batch[ _-]size|actual[ _-]seqlen|number[ _-]of[ _-](?:skipped|nan)[ _-]iterations"
    r"|elapsed[ _]time[ _]per[ _]iteration[ _](?:\(ms\)|\(s\)|ms|s)|throughput per GPU \(TFLOP/s/GPU\)"
    r"|TFLOPs|\[LM\]-TFLOPs|approx flops per GPU|grad[ _-]norm)\s*[:=]?\s*([-+\w.,]+)(?=[\s|])"
)
"""`| name: 1.0`, `| name=1.0` and, in the oldest format, `| name 1.0`; not at the very end, where it may be cut off."""
TFLOPS = {
    "throughput per GPU TFLOP/s/GPU": "tflops_per_gpu",
    "TFLOPs": "hardware_tflops_per_gpu",
    "approx flops per GPU": "hardware_tflops_per_gpu",  # GPT-NeoX's formula counts recomputation
}
_PEAKS = {
    "allocated": re.compile(r"\| max allocated: " + NUMBER),
    "reserved": re.compile(r"\| max (?:reserved|cached): " + NUMBER),
}


@reads(" arguments -", "end of arguments")
def arguments(run: LoggedRun, match: re.Match[str]) -> None:
    """`------------ arguments ------------`: starts Megatron's list of arguments; `end of arguments` ends it."""
    run.scratch["arguments"] = "end of" not in match.string
    if run.scratch["arguments"]:
        set_megatron(run)


@reads(" ...", " .. ", pattern=r"(?:^|[\s:])([A-Za-z_]\w{1,60}) \.{2,} (.*\n)")
def argument(run: LoggedRun, match: re.Match[str]) -> None:
    """`  micro_batch_size ................................ 4`, in GPT-NeoX `... 4........updated`."""
    if not run.scratch.get("arguments") and match[1] not in PARALLEL:
        return
    name, value = match[1], match[2].strip()
    if suffix := _SUFFIX.search(value):
        value = value[: suffix.start()]
        _set_neox(run)
    if name in ARGUMENTS and value != "None":
        setting, parse = ARGUMENTS[name]
        run.set_used(**{setting: parse(value[:60])})
    elif name == "num_experts" and (numbers := re.findall(r"\d+", value[:60])):
        run.scratch["experts"] = max(map(int, numbers)) > 1
    elif name in SPLITS and (ranks := count(value)):
        run.splits[SPLITS[name]] = ranks
    elif name in CHECKPOINTING:
        _checkpointing(run, value)
    elif name == "deepspeed" and value == "True" and run.program != NEOX:
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")
    sizes.read_argument(run, name, value)


def _checkpointing(run: LoggedRun, value: str) -> None:
    """Activation checkpointing is on if any of its arguments turns it on, off if others turn it off."""
    is_on = value in {"True", "full"}
    if is_on or value in {"False", "None", "selective"}:
        run.set_used(
            activation_checkpointing=is_on or run.settings.get("activation_checkpointing", False)
        )


def _set_neox(run: LoggedRun) -> None:
    set_megatron(run)
    run.program = NEOX
    run.set_used(strategy="megatron-deepspeed")


def set_megatron(run: LoggedRun) -> None:
    """Record that a program of the Megatron family wrote the log."""
    if not run.is_megatron:
        deepspeed = "deepspeed" in run.environment
        run.scratch.update(megatron=True, first_is_slow=True)
        run.program = "Megatron-DeepSpeed" if deepspeed else "Megatron-LM"
        run.set_used(strategy="megatron-deepspeed" if deepspeed else "megatron")


@reads("using world size: ", pattern=r"using world size: (\d{1,7})\D.*\n")
def world(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `using world size: 64, data-parallel-size: 1, ...`, if it ends: a missing size would count as 1."""
    set_megatron(run)
    run.set_used(gpus=count(match[1]))
    if old := _MODEL_PARALLEL.search(
        match.string
    ):  # old format, before pipelines and micro-batches
        run.set_used(tensor_parallel=count(old[1]), pipeline_parallel=1, grad_accum=1)
    run.set_used(**{GROUPS[kind]: count(size) for kind, size in _PARALLEL.findall(match.string)})
    if context := _CONTEXT.search(match.string):
        run.splits["context"] = int(context[1])


@reads("ProcessCoord(")
def coordinates(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the sizes from `Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ...}`, if it is complete."""
    run.scratch["stages"] = True
    if not match.string.rstrip().endswith("}"):
        return
    ranks = {"pipeline_parallel": 1, "data_parallel": 1, "tensor_parallel": 1}
    for axis, place in _COORDINATE.findall(match.string):
        ranks[GROUPS[axis]] = max(ranks[GROUPS[axis]], int(place) + 1)
    run.set_used(**ranks)


@reads(
    "iteration",
    pattern=r"(?<!,)(?:^|\s)iteration\s{0,9}[=\s]\s{0,20}(\d{1,12})\s{0,20}/\s{0,20}(\d{1,12}|infinity)\s{0,20}\|",
)
def iteration(run: LoggedRun, match: re.Match[str]) -> None:
    """` iteration  1/  1000 | elapsed time per iteration (ms): 159778.9 | ...`, means and counts since the last one."""
    line = match.string
    set_megatron(run)
    run.configured = True
    fields = {
        _name(words): value for words, value in reversed(_FIELD.findall(line))
    }  # the first one of a name wins
    batch, loss = count(fields.get("global batch size")), number(fields.get("lm loss"))
    run.set_used(
        global_batch_size=batch, seq_len=count(fields.get("actual seqlen")), steps=count(match[2])
    )
    step, step_time_s = int(match[1]), positive(fields.get("elapsed time per iteration ms"))
    step_time_s = (
        step_time_s * 0.001 if step_time_s else positive(fields.get("elapsed time per iteration s"))
    )
    logged_s, is_new = step_time_s, not run.steps or step > run.steps[-1]["step"]
    counts = {
        f"{what}_steps": number_from_0(fields.get(f"number of {what} iterations"))
        for what in ("skipped", "nan")
    }
    if is_new and run.scratch.pop("first_is_repeated", False):
        step_time_s = None
        for name in counts:
            run.figures.pop(name, None)
    elif not run.steps and _NEWEST.search(line) and (step == 1 or "gpus" in run.settings):
        run.scratch["first_is_repeated"] = True
    tflops = {
        TFLOPS[name]: positive(text.removesuffix("TFLOPS"))
        for name, text in fields.items()
        if name in TFLOPS
    }
    run.add_step(
        step,
        t_s=clock(run, line),
        step_time_s=step_time_s,
        step_time_logged_s=logged_s if step_time_s != logged_s else None,
        loss=loss,
        samples=batch,
        skipped=counts["skipped_steps"],
        **tflops,
    )
    if is_new:
        run.record(
            LOGGED,
            **{
                name: run.figures.get(name, 0) + more
                for name, more in counts.items()
                if more is not None
            },
        )
        texts = fields.get("lm loss", ""), fields.get("grad norm", "")
        run.health.read(*texts, step, skipped=bool(counts["skipped_steps"]))


@cache
def _name(words: str) -> str:
    """Return the name of a field in the spelling of most forks."""
    return re.sub(r"[()]", "", re.sub("[_-]", " ", words)).removeprefix("[LM] ")


@reads("memory (MB)")
def memory(run: LoggedRun, match: re.Match[str]) -> None:
    """`[Rank 1] (after 1 iterations) memory (MB) | allocated: ... | max allocated: 19961.07 | ...`; MB is 2^20 here."""
    for kind, pattern in _PEAKS.items():
        for mib in map(positive, pattern.findall(match.string)):
            run.record_max(**{f"peak_{kind}_gib": mib / 1024 if mib else None})


@reads(
    "done] datetime",
    "exiting program at iteration",
    pattern=r"\[(?:after training is done|exiting program at iteration)",
)
def done(run: LoggedRun, _match: re.Match[str]) -> None:
    """`[after training is done] datetime: ...`."""
    run.ended = True


@reads(
    "number of parameters on ",
    pattern=r"model parallel rank (\(\d{1,6}, \d{1,6}\)|\d{1,6}): (\d{1,15})\s*\n",
)
def parameters(run: LoggedRun, match: re.Match[str]) -> None:
    """` > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 8030261248`, of every such rank."""
    run.scratch.setdefault("parameters_by_rank", {})[match[1]] = int(match[2])


reads("padded vocab", pattern=r"padded vocab .{0,100}\(new size: (\d{1,9})\)")(
    lambda run, match: run.shape.update(vocab=int(match[1]))
)
reads(
    "CONFIG: micro_batches=",
    pattern=r"CONFIG: micro_batches=(\d{1,9}) micro_batch_size=(\d{1,9})\s",
)(used(grad_accum=count, micro_batch_size=count))
