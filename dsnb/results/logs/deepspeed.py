"""Readers of output of DeepSpeed's engine and DeepSpeed-Chat: configuration, throughput, memory, skipped steps."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dsnb.results.logs.launchers import stage, stages
from dsnb.results.logs.reading import DERIVED, LoggedRun, not_finite, reads, used
from dsnb.results.logs.text import NUMBER, count, number, number_from_0, positive

_OFFLOAD = re.compile(r"offload_(param|optimizer)=\w+\(device=(?:<\w+\.)?'?(\w+)")
_STAGE = re.compile(r"\bstage=(?:<\w+\.\w+: )?([0-3])\b")
_STAGES = re.compile(r"'stages': (\d{1,6})\b")  # usually 'auto'
CONFIG: dict[str, tuple[str, Callable[[str], Any]]] = {
    "train_batch_size": ("global_batch_size", count),
    "train_micro_batch_size_per_gpu": ("micro_batch_size", count),
    "gradient_accumulation_steps": ("grad_accum", count),
    "zero_optimization_stage": ("zero_stage", stage),
    "gradient_clipping": ("gradient_clipping", number_from_0),
    "world_size": ("data_parallel", count),  # the data-parallel ranks, not all ranks of the job
    "pipe_parallel_size": ("pipeline_parallel", stages),
    "num_stages": ("pipeline_parallel", count),
    "model_parallel_size": ("tensor_parallel", count),
}
_AUTO_TP = re.compile(r"autotp_size=(\d{1,6})\b")
_STAMP = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-5]\d)(?:[,.](\d{1,6})\b)?")


def engine(run: LoggedRun) -> None:
    """Record that DeepSpeed has built an engine: a launcher's line after that belongs to the next run."""
    if run.program in {"", "DeepSpeed"}:
        run.program = "DeepSpeed-Chat" if run.scratch.get("chat") else "DeepSpeed"
    elif run.program == "Megatron-LM":  # not GPT-NeoX, which has its own name
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")
    run.settings.setdefault("strategy", "deepspeed")
    run.configured = True


@reads("config.py:", pattern=r"config\.py:\d{1,6}:print\]\s+(\w{1,60})(?: \.+|\s) *(.*\n)")
def config(run: LoggedRun, match: re.Match[str]) -> None:
    """`[config.py:1001:print]   train_batch_size ............. 192`."""
    engine(run)
    name, value = match[1], match[2].strip()
    run.scratch["offload_of"] = None
    if name in CONFIG:
        setting, parse = CONFIG[name]
        run.set_used(**{setting: parse(value)})
        run.scratch["engine_world"] = run.scratch.get("engine_world") or name == "world_size"
    elif name == "tensor_parallel_config" and (ranks := _AUTO_TP.search(value)):
        run.set_used(tensor_parallel=count(ranks[1]))  # 0 is none
    elif name in {"fp16_enabled", "bfloat16_enabled", "float16_config", "bfloat16_config"}:
        _precision(run, "bf16" if name.startswith("b") else "fp16", value)
    elif name == "pipeline" and (stages_ := _STAGES.search(value)):
        run.set_used(pipeline_parallel=count(stages_[1]))
    elif name == "zero_config":
        if zero_stage := _STAGE.search(value):
            run.set_used(zero_stage=int(zero_stage[1]))
        for part, place in _OFFLOAD.findall(value):
            _offload(run, part, place)


def _precision(run: LoggedRun, name: str, value: str) -> None:
    formats = run.scratch.setdefault("formats", {})
    if value == "True" or "enabled=True" in value:
        formats[name] = True
        run.set_used(precision=name)
    elif value == "False" or "enabled=False" in value:
        formats[name] = False
    if formats == {"fp16": False, "bf16": False}:
        run.set_used(precision="fp32")
        run.provenance["precision"] = DERIVED


def _offload(run: LoggedRun, part: str, place: str) -> None:
    places = run.scratch.setdefault("offload", {})
    places[part] = place
    used_places = {part: place for part, place in sorted(places.items()) if place != "none"}
    parts = {"optimizer": "optimizer", "param": "parameters", "optimizer param": "all"}.get(
        " ".join(used_places)
    )
    run.set_used(
        offload=f"{parts}-{'-'.join(sorted(set(used_places.values())))}" if parts else "none"
    )


@reads('"offload_')
def offload(run: LoggedRun, match: re.Match[str]) -> None:
    """`"offload_optimizer": {`, in the printed configuration."""
    part = run.scratch["offload_of"] = "param" if '"offload_param"' in match.string else "optimizer"
    if "null" in match.string:
        _offload(run, part, "none")


@reads('"device": ', pattern=r'"device": "(\w{1,20})"')
def device(run: LoggedRun, match: re.Match[str]) -> None:
    """`"device": "cpu"` below it."""
    if part := run.scratch.get("offload_of"):
        _offload(run, part, match[1])
        run.scratch["offload_of"] = None


def clock(run: LoggedRun, line: str) -> float | None:
    """Return the seconds since the first time stamp of this run."""
    match = _STAMP.search(line)
    if not match:
        return None
    try:
        now = datetime.fromisoformat(match[1]).timestamp() + float(f"0.{match[2] or 0}")
    except ValueError:
        return None
    since = now - run.scratch.setdefault("began_s", now)
    return since if since >= 0 else None


@reads("DeepSpeed info: version=", pattern=r"DeepSpeed info: version=([\w.+-]{1,60}),")
def version(run: LoggedRun, match: re.Match[str]) -> None:
    """`DeepSpeed info: version=0.14.4, git-hash=...`, printed when the engine is about to be built."""
    clock(run, match.string)
    run.environment["deepspeed"] = match[1]
    engine(run)


# The peak at the end of the line of `timer`; it is printed as GB, divided by 1024^3.
reads("MemAllocated=", pattern=rf"MaxMemAllocated={NUMBER}GB")(
    lambda run, match: run.record_max(peak_allocated_gib=number(match[1]))
)


@reads(
    "SamplesPerSec=",
    pattern=r"(?:global_step=(\d{1,12}), RunningAvg|\] \d{1,9}/(\d{1,12}), (?:RunningAvg)?)"
    rf"SamplesPerSec={NUMBER}(?:, CurrSamplesPerSec={NUMBER})?",
)
def timer(run: LoggedRun, match: re.Match[str]) -> None:
    """`global_step=10, RunningAvgSamplesPerSec=950.7, ...`; the oldest format is `epoch/micro-batch`."""
    engine(run)
    run.record(samples_per_s_running=positive(match[3]))
    if not run.is_megatron:
        step = int(match[1]) if match[1] else int(match[2]) // run.settings.get("grad_accum", 1)
        batch, rate = run.settings.get("global_batch_size"), positive(match[4])
        step_time_s = batch / rate if batch and rate else None
        memory = re.search(rf"\bMemAllocated={NUMBER}GB", match.string)
        allocated_gib = number(memory[1]) if memory else None
        run.add_step(
            step, t_s=clock(run, match.string), step_time_s=step_time_s, allocated_gib=allocated_gib
        )


@reads(", skipped=", pattern=r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=")
def step(run: LoggedRun, match: re.Match[str]) -> None:
    """`step=110, skipped=9, lr=[...]`: `skipped` is a running total; step 0 is printed when the engine is built."""
    step, skipped, before = int(match[1]), int(match[2]), run.scratch.get("skipped", 0)
    if not step:
        return
    engine(run)
    if run.is_megatron:
        run.scratch["skipped_by_engine"] = skipped
        return
    run.add_step(step, skipped=max(0, skipped - before))
    if skipped >= before:
        run.scratch["skipped"] = skipped
        run.record(skipped_steps=skipped)


@reads("Skipping step", pattern=r"Rank 0[] ]")
def overflow(run: LoggedRun, _match: re.Match[str]) -> None:
    """`[Rank 0] Overflow detected. Skipping step.`: counted only if there is no other count."""
    overflows = run.scratch["overflows"] = run.scratch.get("overflows", 0) + 1
    if "skipped" not in run.scratch:
        run.record(DERIVED, skipped_steps=overflows)


@reads(
    " iter time (s): ",
    pattern=rf"steps: (\d{{1,12}}) loss: {NUMBER} .{{0,200}}?iter time \(s\): {NUMBER}(?: samples/sec: {NUMBER})?",
)
def pipeline(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `steps: 10 loss: 7.0 iter time (s): 1.2 samples/sec: 33.3` of the pipeline engine."""
    engine(run)
    run.scratch["stages"] = True
    if not run.is_megatron:
        loss, step_time_s, rate = number(match[2]), positive(match[3]), positive(match[4])
        samples = rate * step_time_s if rate and step_time_s else None
        run.health.read(match[2], step=int(match[1]))
        t_s = clock(run, match.string)
        run.add_step(int(match[1]), t_s=t_s, loss=loss, step_time_s=step_time_s, samples=samples)


reads("DeepSpeed Basic Optimizer = ", pattern=r"Optimizer = (\S{1,60})\s*\n")(used(optimizer=str))
reads("but detected", pattern=r"torch version.*but detected (\d{1,2}\.\d{1,3})\s")(
    lambda run, match: run.environment.setdefault("torch", match[1])
)
# At the end of a benchmark based on DeepSpeed-Chat.
reads("Execution time: ", pattern=rf"^\s*Execution time: {NUMBER} seconds for (\d{{1,9}}) steps")(
    lambda run, match: run.record(timed_s=positive(match[1]), timed_steps=count(match[2]))
)


@reads("Throughput: ", pattern=rf"^\s*Throughput: {NUMBER} samples/sec")
def throughput(run: LoggedRun, match: re.Match[str]) -> None:
    """`Throughput: 943.4550 samples/sec`, over the steps of `Execution time`."""
    run.record(samples_per_s=positive(match[1]))
    run.ended = True


@reads("E2E latency=", pattern=rf"E2E latency={NUMBER}s (?:.{{0,400}}\|AvgSamplesPerSec={NUMBER})?")
def hybrid(run: LoggedRun, match: re.Match[str]) -> None:
    """`|E2E latency=4.00s |... |AvgSamplesPerSec=16.00` of step 3 of DeepSpeed-Chat: generation and both engines."""
    _whole_step(run, positive(match[1]))
    run.record(samples_per_s=positive(match[2]))
    run.scratch["hybrid"] = True


@reads("End-to-End => Latency", pattern=rf"Latency: {NUMBER}s.{{0,200}}? Samples/sec: {NUMBER}")
def end_to_end(run: LoggedRun, match: re.Match[str]) -> None:
    """`End-to-End => Latency: 2.55s, TFLOPs: 3.29, Samples/sec: 1.57, ...`, as newer versions print it."""
    time_s, rate = positive(match[1]), positive(match[2])
    if run.scratch.get("hybrid") or not time_s or not rate:
        return
    _whole_step(run, time_s)
    samples = run.scratch["samples"] = run.scratch.get("samples", 0.0) + rate * time_s
    run.record(DERIVED, samples_per_s=samples / run.scratch["steps_s"])


@reads(
    "act_loss",
    "Actor Loss: ",
    pattern=r"(?:act_loss|Actor Loss): ?([-+\w.]{1,30}) ?\| ?(?:cri_loss|Critic Loss): ?([-+\w.]{1,30})",
)
def actor_and_critic(run: LoggedRun, match: re.Match[str]) -> None:
    """`...|ppo_ep: 1|act_loss: 0.2|cri_loss: 0.1|...`: two engines share the log, so their rates are of parts."""
    run.scratch["parts"] = True
    run.health.read(next(filter(not_finite, match.groups()), match[1]))


def _whole_step(run: LoggedRun, time_s: float | None) -> None:
    """Record the time of a step of several engines."""
    engine(run)
    run.scratch["parts"] = True
    if time_s:
        total_s = run.scratch["steps_s"] = run.scratch.get("steps_s", 0.0) + time_s
        number_of = run.scratch["whole_steps"] = run.scratch.get("whole_steps", 0) + 1
        run.record(DERIVED, step_time_mean_s=total_s / number_of)


@reads(", loss = ", pattern=rf"Epoch: \d{{1,9}}, Step: \d{{1,12}}, Rank: 0, loss = {NUMBER}")
def chat_loss(run: LoggedRun, match: re.Match[str]) -> None:
    """`Epoch: 0, Step: 12, Rank: 0, loss = 2.1` of DeepSpeed-Chat, which counts micro-batches."""
    run.health.read(match[1])
    run.add_loss(number(match[1]))


@reads("chosen_last_scores", "chosen_rewards")
def pairs(run: LoggedRun, _match: re.Match[str]) -> None:
    """`chosen_last_scores (higher is better) : 2.5, ...`: a sample is a chosen and a rejected sequence."""
    run.scratch["pairs"] = True
