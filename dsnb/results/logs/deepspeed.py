"""Readers of output of DeepSpeed's engine and DeepSpeed-Chat: configuration, throughput, memory, skipped steps."""

import re

from dsnb.results.logs.reading import DERIVED, LoggedRun, Match, not_finite, reads
from dsnb.results.logs.values import (
    NUMBER,
    first_group,
    in_units_of,
    names,
    number,
    positive,
    value_of,
)

CONFIG = names("config")
OFFLOADED = {
    frozenset({"optimizer"}): "optimizer",
    frozenset({"param"}): "parameters",
    frozenset({"optimizer", "param"}): "all",
}
_OFFLOAD = re.compile(r"offload_(param|optimizer)=\w+\(device=(?:<\w+\.)?'?(\w+)")
_IN_TEXT = {
    "tensor_parallel_config": ("tensor_parallel", re.compile(r"autotp_size=([1-9]\d{0,5})\b")),
    "pipeline": ("pipeline_parallel", re.compile(r"'stages': ([1-9]\d{0,5})\b")),  # usually 'auto'
    "zero_config": ("zero_stage", re.compile(r"\bstage=(?:<\w+\.\w+: )?([0-3])\b")),
}
"""Settings within the value of another name."""
_MEMORY = re.compile(rf"\bMemAllocated={NUMBER}GB")


def engine(run: LoggedRun) -> None:
    """Record that DeepSpeed has built an engine: a launcher's line after that belongs to the next run."""
    if run.program in {"", "DeepSpeed"}:
        if run.scratch["chat"]:
            run.program = "DeepSpeed-Chat"
        else:
            run.program = "DeepSpeed"
    elif run.program == "Megatron-LM":  # not GPT-NeoX, which has its own name
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")
    run.settings.setdefault("strategy", "deepspeed")
    run.configured = True


@reads("config.py:", pattern=r"config\.py:\d{1,6}:print\]\s+(\w{1,60})(?: \.+|\s) *(.*\n)")
def config(run: LoggedRun, match: Match) -> None:
    """`[config.py:1001:print]   train_batch_size ............. 192`."""
    engine(run)
    name = match[1]
    value = match[2].strip()
    run.scratch["offload_of"] = None
    run.has_engine_world |= name == "world_size"
    if name in CONFIG:
        run.set_used(**value_of(CONFIG, name, value))
    elif name in _IN_TEXT:
        setting, pattern = _IN_TEXT[name]
        found = pattern.search(value)
        if found:
            run.set_used(**{setting: int(found[1])})
        for part, place in _OFFLOAD.findall(value):
            _offload(run, part, place)
    elif name in {"fp16_enabled", "bfloat16_enabled", "float16_config", "bfloat16_config"}:
        half = "fp16"
        if name.startswith("b"):
            half = "bf16"
        _precision(run, half, value)


def _precision(run: LoggedRun, name: str, value: str) -> None:
    """Record one of the two half precisions as on or off."""
    off = run.scratch.setdefault("off", set())
    if value == "True" or "enabled=True" in value:
        off.discard(name)
        run.set_used(precision=name)
    elif value == "False" or "enabled=False" in value:
        off.add(name)
    if off == {"fp16", "bf16"}:
        run.set_used(precision="fp32")
        run.provenance["precision"] = DERIVED


def _offload(run: LoggedRun, part: str, place: str) -> None:
    places = run.scratch.setdefault("offload", {})
    places[part] = place
    used = {part: place for part, place in places.items() if place != "none"}
    parts = OFFLOADED.get(frozenset(used))
    offload = "none"
    if parts:
        offload = "-".join([parts, *sorted({*used.values()})])
    run.set_used(offload=offload)


@reads('"offload_')
def offload(run: LoggedRun, match: Match) -> None:
    """`"offload_optimizer": {`, in the printed configuration."""
    part = "optimizer"
    if '"offload_param"' in match.string:
        part = "param"
    run.scratch["offload_of"] = part
    if "null" in match.string:
        _offload(run, part, "none")


@reads('"device": ', pattern=r'"device": "(\w{1,20})"')
def device(run: LoggedRun, match: Match) -> None:
    """`"device": "cpu"` below it."""
    part = run.scratch.pop("offload_of", None)
    if part:
        _offload(run, part, match[1])


@reads("DeepSpeed info: version=", pattern=r"DeepSpeed info: version=([\w.+-]{1,60}),")
def version(run: LoggedRun, match: Match) -> None:
    """`DeepSpeed info: version=0.14.4, git-hash=...`, printed when the engine is about to be built."""
    run.clock(match.string)
    run.environment["deepspeed"] = match[1]
    engine(run)


@reads(
    "SamplesPerSec=",
    pattern=r"(?:global_step=(\d{1,12}), RunningAvg|\] \d{1,9}/(\d{1,12}), (?:RunningAvg)?)"
    rf"SamplesPerSec={NUMBER}(?:, CurrSamplesPerSec={NUMBER})?",
)
def timer(run: LoggedRun, match: Match) -> None:
    """`global_step=10, RunningAvgSamplesPerSec=950.7, ...`; the oldest format is `epoch/micro-batch`."""
    engine(run)
    run.record(samples_per_s_running=positive(match[3]))
    if run.is_megatron:
        return
    step = int(match[1] or match[2])
    if not match[1]:
        step //= run.settings.get("grad_accum", 1)
    batch = run.settings["global_batch_size"]
    rate = positive(match[4])
    step_time_s = None
    if batch and rate:
        step_time_s = batch / rate
    run.add_step(
        step,
        t_s=run.clock(match.string),
        step_time_s=step_time_s,
        allocated_gib=number(first_group(_MEMORY, match.string)),
    )


@reads(", skipped=", pattern=r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=")
def step(run: LoggedRun, match: Match) -> None:
    """`step=110, skipped=9, lr=[...]`: `skipped` is a running total; step 0 is printed when the engine is built."""
    step = int(match[1])
    skipped = int(match[2])
    if not step:
        return
    engine(run)
    if run.is_megatron:
        run.skipped_by_engine = skipped
        return
    before = run.scratch.get("skipped", 0)
    run.add_step(step, skipped=max(0, skipped - before))
    if skipped >= before:
        run.scratch["skipped"] = skipped
        run.record(skipped_steps=skipped)


@reads(
    "time (ms) | fwd: ",
    "time (ms) | forward: ",
    pattern=rf"\| (?:fwd|forward): {NUMBER} \| (?:bwd|backward): {NUMBER} .{{0,200}}\| step: {NUMBER}",
)
def parts(run: LoggedRun, match: Match) -> None:
    """`time (ms) | fwd: 12.5 | bwd: 30.1 | ... | step: 4.2` of `wall_clock_breakdown`, after every step.

    They are sums over the micro-batches. The first step is left out if there are more.
    """
    times_s = [in_units_of(1000)(text) for text in match.groups()]
    if None in times_s:  # a profiler without the breakdown prints zeros
        return
    engine(run)
    steps = run.scratch.setdefault("parts", [])
    steps.append(times_s)
    run.reached = max(run.reached, len(steps))
    later = steps[1:] or steps
    means = [sum(times) / len(later) for times in zip(*later, strict=True)]
    forward, backward, optimizer = means
    run.record(DERIVED, forward_s=forward, backward_s=backward, optimizer_s=optimizer)


@reads("Skipping step", pattern=r"Rank 0[] ]")
def overflow(run: LoggedRun, _match: Match) -> None:
    """`[Rank 0] Overflow detected. Skipping step.`: counted only if there is no other count."""
    run.scratch["overflows"] = run.scratch.get("overflows", 0) + 1
    if "skipped" not in run.scratch:
        run.record(DERIVED, skipped_steps=run.scratch["overflows"])


@reads(
    " iter time (s): ",
    pattern=rf"steps: (\d{{1,12}}) loss: {NUMBER} .{{0,200}}?iter time \(s\): {NUMBER}(?: samples/sec: {NUMBER})?",
)
def pipeline(run: LoggedRun, match: Match) -> None:
    """Read `steps: 10 loss: 7.0 iter time (s): 1.2 samples/sec: 33.3` of the pipeline engine."""
    engine(run)
    run.has_stages = True
    if run.is_megatron:
        return
    step = int(match[1])
    step_time_s = positive(match[3])
    rate = positive(match[4])
    run.health.read(match[2], step=step)
    samples = None
    if rate and step_time_s:
        samples = rate * step_time_s
    t_s = run.clock(match.string)
    run.add_step(step, t_s=t_s, loss=number(match[2]), step_time_s=step_time_s, samples=samples)


reads("but detected", pattern=r"torch version.*but detected (\d{1,2}\.\d{1,3})\s")(
    lambda run, match: run.environment.setdefault("torch", match[1])
)


@reads("E2E latency=", pattern=rf"E2E latency={NUMBER}s (?:.{{0,400}}\|AvgSamplesPerSec={NUMBER})?")
def hybrid(run: LoggedRun, match: Match) -> None:
    """`|E2E latency=4.00s |... |AvgSamplesPerSec=16.00` of step 3 of DeepSpeed-Chat: generation and both engines."""
    _whole_step(run, positive(match[1]))
    run.record(samples_per_s=positive(match[2]))
    run.scratch["hybrid"] = True


@reads("End-to-End => Latency", pattern=rf"Latency: {NUMBER}s.{{0,200}}? Samples/sec: {NUMBER}")
def end_to_end(run: LoggedRun, match: Match) -> None:
    """`End-to-End => Latency: 2.55s, TFLOPs: 3.29, Samples/sec: 1.57, ...`, as newer versions print it."""
    time_s = positive(match[1])
    rate = positive(match[2])
    if time_s and rate and not run.scratch["hybrid"]:
        _whole_step(run, time_s)
        run.scratch["samples"] = run.scratch.get("samples", 0.0) + rate * time_s
        run.record(DERIVED, samples_per_s=run.scratch["samples"] / sum(run.scratch["steps_s"]))


@reads(
    "act_loss",
    "Actor Loss: ",
    pattern=r"(?:act_loss|Actor Loss): ?([-+\w.]{1,30}) ?\| ?(?:cri_loss|Critic Loss): ?([-+\w.]{1,30})",
)
def actor_and_critic(run: LoggedRun, match: Match) -> None:
    """`...|ppo_ep: 1|act_loss: 0.2|cri_loss: 0.1|...`: two engines share the log, so their rates are of parts."""
    run.has_parts = True
    worse = match[2]
    if not_finite(match[1]):
        worse = match[1]
    run.health.read(worse)


def _whole_step(run: LoggedRun, time_s: float | None) -> None:
    """Record the time of a step of several engines."""
    engine(run)
    run.has_parts = True
    if time_s:
        times_s = run.scratch.setdefault("steps_s", [])
        times_s.append(time_s)
        run.record(DERIVED, step_time_mean_s=sum(times_s) / len(times_s))


@reads(", loss = ", pattern=rf"Epoch: \d{{1,9}}, Step: \d{{1,12}}, Rank: 0, loss = {NUMBER}")
def chat_loss(run: LoggedRun, match: Match) -> None:
    """`Epoch: 0, Step: 12, Rank: 0, loss = 2.1` of DeepSpeed-Chat, which counts micro-batches."""
    run.health.read(match[1])
    loss = number(match[1])
    if loss is not None:
        run.unnumbered += 1
        run.add_loss(loss)


@reads("allocator cache flushes", pattern=r"(\d{1,6}) pytorch allocator cache flushes since")
def cache_flushes(run: LoggedRun, match: Match) -> None:
    """`[stage3.py:1939:step] 2 pytorch allocator cache flushes since last step. ...`: memory was nearly full."""
    before = run.figures.get("alloc_retries") or 0
    run.record(alloc_retries=before + int(match[1]))
