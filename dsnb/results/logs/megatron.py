"""Readers of output of Megatron-LM, Megatron-DeepSpeed and their forks: arguments, sizes, iterations."""

import re
from functools import cache

from dsnb.results.logs import sizes
from dsnb.results.logs.launchers import SPLITS, read_split
from dsnb.results.logs.reading import LoggedRun, Match, reads
from dsnb.results.logs.values import NUMBER, count, names, positive, step_values

ARGUMENTS = names("arguments")
PARALLEL = ("tensor_parallel", "pipeline_parallel")
"""Settings that are read even outside the argument list."""
NEOX = "GPT-NeoX"
MEGATRON_DEEPSPEED = "Megatron-DeepSpeed"
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
"""The newest Megatron-LM, which prints microseconds, counts the first iteration in its first and
its second line."""
_FIELD = re.compile(
    r"\|\s*(lm[ _-]loss|global[ _-]batch[ _-]size|actual[ _-]seqlen|number[ _-]of[ _-](?:skipped|nan)[ _-]iterations"
    r"|elapsed[ _]time[ _]per[ _]iteration[ _](?:\(ms\)|\(s\)|ms|s)|throughput per GPU \(TFLOP/s/GPU\)"
    r"|TFLOPs|\[LM\]-TFLOPs|approx flops per GPU|grad[ _-]norm)\s*[:=]?\s*([-+\w.,]+)(?=[\s|])"
)
"""`| name: 1.0`, `| name=1.0` and, in the oldest format, `| name 1.0`; not at the very end, where
it may be cut off."""
_PEAKS = re.compile(r"\| max (allocated|reserved|cached): " + NUMBER)


@reads(" arguments -", "end of arguments")
def arguments(run: LoggedRun, match: Match) -> None:
    """`------------ arguments ------------`: starts Megatron's list of arguments; `end of arguments` ends it."""
    run.scratch["arguments"] = "end of" not in match.string
    if run.scratch["arguments"]:
        set_megatron(run)


@reads(" ...", " .. ", pattern=r"(?:^|[\s:])([A-Za-z_]\w{1,60}) \.{2,} (.*\n)")
def argument(run: LoggedRun, match: Match) -> None:
    """`  micro_batch_size ................................ 4`, in GPT-NeoX `... 4........updated`."""
    name = match[1]
    setting, parse = ARGUMENTS.get(name, ("", str))
    if not run.scratch["arguments"] and setting not in PARALLEL:
        return
    value = match[2].strip()
    suffix = _SUFFIX.search(value)
    if suffix:
        value = value[: suffix.start()]
        set_megatron(run, NEOX)
    if setting and value != "None":
        run.set_used(**{setting: parse(value[:60])})
    elif name == "num_experts":
        numbers = re.findall(r"\d+", value[:60])
        run.has_experts = any(int(experts) > 1 for experts in numbers)
    elif name in SPLITS:
        read_split(run, name, value)
    elif name in CHECKPOINTING:
        _checkpointing(run, value)
    elif name == "deepspeed" and value == "True" and run.program != NEOX:
        set_megatron(run, MEGATRON_DEEPSPEED)
    sizes.read_argument(run, name, value)


def _checkpointing(run: LoggedRun, value: str) -> None:
    """Activation checkpointing is on if any of its arguments turns it on, off if others turn it off."""
    if value in {"True", "full"}:
        run.set_used(activation_checkpointing=True)
    elif value in {"False", "None", "selective"}:
        run.set_used(activation_checkpointing=run.settings.get("activation_checkpointing", False))


def set_megatron(run: LoggedRun, program: str = "") -> None:
    """Record that a program of the Megatron family wrote the log, and which if it is known."""
    if not run.is_megatron:
        run.is_megatron = True
        run.first_is_slow = True
        usual = "Megatron-LM"
        if "deepspeed" in run.environment:
            usual = MEGATRON_DEEPSPEED
        program = program or usual
    if program:
        run.program = program
        strategy = "megatron-deepspeed"
        if program == "Megatron-LM":
            strategy = "megatron"
        run.set_used(strategy=strategy)


@reads("using world size: ", pattern=r"using world size: (\d{1,7})\D.*\n")
def world(run: LoggedRun, match: Match) -> None:
    """Read `using world size: 64, data-parallel-size: 1, ...`, if it ends: a missing size would count as 1."""
    set_megatron(run)
    run.set_used(gpus=count(match[1]))
    old = _MODEL_PARALLEL.search(match.string)  # before pipelines and micro-batches
    if old:
        run.set_used(tensor_parallel=count(old[1]), pipeline_parallel=1, grad_accum=1)
    for kind, size in _PARALLEL.findall(match.string):
        run.set_used(**{GROUPS[kind]: count(size)})
    context = _CONTEXT.search(match.string)
    if context:
        run.splits["context"] = int(context[1])


@reads("ProcessCoord(")
def coordinates(run: LoggedRun, match: Match) -> None:
    """Read the sizes from `Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ...}`, if it is complete."""
    run.has_stages = True
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
def iteration(run: LoggedRun, match: Match) -> None:
    """` iteration  1/  1000 | elapsed time per iteration (ms): 159778.9 | ...`, means and counts since the last one."""
    line = match.string
    set_megatron(run)
    run.configured = True
    # The first one of a name wins.
    fields = {_name(words): value for words, value in reversed(_FIELD.findall(line))}
    values = step_values(fields)
    nan = values.pop("nan", None)
    counts = {"skipped_steps": values.get("skipped"), "nan_steps": nan}
    length = count(fields.get("actual seqlen"))
    batch = values.get("samples")
    run.set_used(global_batch_size=batch, seq_len=length, steps=count(match[2]))
    step = int(match[1])
    is_new = run.is_new(step)
    if is_new and run.scratch.pop("first_is_repeated", False):
        run.forget("skipped_steps")
        run.forget("nan_steps")
        values["step_time_logged_s"] = values.pop("step_time_s", None)
    elif not run.steps and _NEWEST.search(line) and (step == 1 or "gpus" in run.settings):
        run.scratch["first_is_repeated"] = True
    run.add_step(step, t_s=run.clock(line), **values)
    if not is_new:
        return
    for name, more in counts.items():
        if more is not None:
            run.record(**{name: run.figures.get(name, 0) + more})
    skipped = bool(counts["skipped_steps"])
    norm = fields.get("grad norm", "")
    run.health.read(fields.get("lm loss", ""), norm, step, skipped)


@cache
def _name(words: str) -> str:
    """Return the name of a field in the spelling of most forks."""
    return re.sub(r"[()]", "", re.sub("[_-]", " ", words)).removeprefix("[LM] ")


@reads("memory (MB)")
def memory(run: LoggedRun, match: Match) -> None:
    """`[Rank 1] (after 1 iterations) memory (MB) | allocated: ... | max allocated: 19961.07 | ...`; MB is 2^20 here."""
    for kind, text in _PEAKS.findall(match.string):
        name = "peak_reserved_gib"
        if kind == "allocated":
            name = "peak_allocated_gib"
        mib = positive(text)
        if mib:
            run.record(**{name: mib / 1024})


@reads(
    "number of parameters on ",
    pattern=r"model parallel rank (\(\d{1,6}, \d{1,6}\)|\d{1,6}): (\d{1,15})\s*\n",
)
def parameters(run: LoggedRun, match: Match) -> None:
    """` > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 8030261248`, of every such rank."""
    run.parameters_by_rank[match[1]] = int(match[2])


reads("padded vocab", pattern=r"padded vocab .{0,100}\(new size: (\d{1,9})\)")(
    lambda run, match: run.shape.update(vocab=int(match[1]))
)
