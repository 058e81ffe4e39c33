"""Readers of what DeepSpeed's engine prints: its configuration, throughput, memory, skipped steps, versions."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dsnb.runs.logs.flags import number_from_0, stage, stages
from dsnb.runs.logs.logged_run import DERIVED, LoggedRun
from dsnb.runs.logs.text import NUMBER, count, number, positive

_CONFIG = re.compile(r"config\.py:\d{1,6}:print\]\s+(\w{1,60})(?: \.+|\s) *(.*\n)")
_OFFLOAD = re.compile(r"offload_(param|optimizer)=\w+\(device=(?:<\w+\.)?'?(\w+)")
_DEVICE = re.compile(r'"device": "(\w{1,20})"')
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
_STAMP = re.compile(r"\[(20\d\d-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-5]\d)(?:[,.](\d{1,6}))?\]")
_VERSION = re.compile(r"DeepSpeed info: version=([\w.+-]{1,60}),")
_REPORT = re.compile(r"(?:^|[\]:]\s?)(torch|deepspeed|nvcc|torch cuda)\s+(?:version|info) \.{3,} ([\w.+-]{1,60})[,\s]")
_TORCH = re.compile(r"but detected (\d{1,2}\.\d{1,3})\s")
_TIMER = re.compile(
    r"global_step=(\d{1,12}), RunningAvgSamplesPerSec=" + NUMBER + r"(?:, CurrSamplesPerSec=" + NUMBER + ")?"
)
_OLD_TIMER = re.compile(
    r"\] \d{1,9}/(\d{1,12}), (?:RunningAvg)?SamplesPerSec=" + NUMBER + r"(?:, CurrSamplesPerSec=" + NUMBER + ")?"
)
_MEMORY = re.compile(r"\bMemAllocated=" + NUMBER + r"GB(?:, MaxMemAllocated=" + NUMBER + "GB)?")
_STEP = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=")
_PIPELINE = re.compile(
    r"steps: (\d{1,12}) loss: "
    + NUMBER
    + r" .{0,200}?iter time \(s\): "
    + NUMBER
    + r"(?: samples/sec: "
    + NUMBER
    + ")?"
)
_PEAK = re.compile(r"\bMax_MA " + NUMBER + " GB")


def config(run: LoggedRun, line: str) -> None:
    """`[config.py:1001:print]   train_batch_size ............. 192`."""
    found = _CONFIG.search(line)
    if not found:
        return
    engine(run)
    name, value = found[1], found[2].strip()
    run.scratch["offload_of"] = None
    if name in CONFIG:
        setting, read = CONFIG[name]
        run.set_used(**{setting: read(value)})
    elif name in {"fp16_enabled", "bfloat16_enabled", "float16_config", "bfloat16_config"}:
        _precision(run, "bf16" if name.startswith("b") else "fp16", value)
    elif name == "pipeline" and (number := _STAGES.search(value)):
        run.set_used(pipeline_parallel=count(number[1]))
    elif name == "zero_config":
        if within := _STAGE.search(value):
            run.set_used(zero_stage=int(within[1]))
        for part, device in _OFFLOAD.findall(value):
            _offload(run, part, device)


def engine(run: LoggedRun) -> None:
    """Record that DeepSpeed has built an engine: a launcher's line after that belongs to the next run."""
    run.program = run.program or "DeepSpeed"
    if run.program == "Megatron-LM":
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")
    run.settings.setdefault("strategy", "deepspeed")
    run.configured = True


def _precision(run: LoggedRun, name: str, value: str) -> None:
    on = value == "True" or "enabled=True" in value
    off = value == "False" or "enabled=False" in value
    seen = run.scratch.setdefault("formats", {})
    if on or off:
        seen[name] = on
    if on:
        run.set_used(precision=name)
    elif seen == {"fp16": False, "bf16": False}:
        run.set_used(precision="fp32")
        run.provenance["precision"] = DERIVED


def _offload(run: LoggedRun, part: str, device: str) -> None:
    parts = run.scratch.setdefault("offload", {})
    parts[part] = device
    named = {name: place for name, place in parts.items() if place != "none"}
    whole = {"optimizer": "optimizer", "param": "parameters", "optimizer param": "all"}
    what = whole.get(" ".join(sorted(named)), "none")
    run.set_used(offload=f"{what}-{'-'.join(sorted(set(named.values())))}" if named else "none")


def offload(run: LoggedRun, line: str) -> None:
    """`"offload_optimizer": {`, in the printed configuration."""
    part = "param" if '"offload_param"' in line else "optimizer"
    run.scratch["offload_of"] = part
    if "null" in line:
        _offload(run, part, "none")


def device(run: LoggedRun, line: str) -> None:
    """`"device": "cpu"` below it."""
    part, found = run.scratch.get("offload_of"), _DEVICE.search(line)
    if part and found:
        _offload(run, part, found[1])
        run.scratch["offload_of"] = None


def clock(run: LoggedRun, line: str) -> float | None:
    """Return the seconds since the first time stamp of this run."""
    found = _STAMP.search(line) if "[20" in line else None
    if not found:
        return None
    try:
        now = datetime.fromisoformat(found[1]).timestamp() + float(f"0.{found[2] or 0}")
    except ValueError:
        return None
    if run.began_s is None:
        run.began_s = now
    return now - run.began_s if now >= run.began_s else None


def version(run: LoggedRun, line: str) -> None:
    """`DeepSpeed info: version=0.14.4, git-hash=...`, printed when the engine is about to be built."""
    clock(run, line)
    if found := _VERSION.search(line):
        run.environment["deepspeed"] = found[1]
        engine(run)


def report(run: LoggedRun, line: str) -> None:
    """`torch version .................... 2.2.0`, as `ds_report` prints it."""
    if found := _REPORT.search(line):
        name = {"torch cuda": "cuda", "nvcc": "cuda"}.get(found[1], found[1])
        run.environment.setdefault(name, found[2])


def torch_detected(run: LoggedRun, line: str) -> None:
    """Read torch's version from a version warning."""
    if "torch version" in line and (found := _TORCH.search(line)):
        run.environment.setdefault("torch", found[1])


def timer(run: LoggedRun, line: str) -> None:
    """`global_step=10, RunningAvgSamplesPerSec=950.7, CurrSamplesPerSec=944.9, MemAllocated=5.53GB, ...`."""
    memory = _MEMORY.search(line)
    found = _TIMER.search(line) or _OLD_TIMER.search(line)
    if memory:
        run.record_max(peak_allocated_gib=number(memory[2]))  # printed as GB, divided by 1024^3
    if not found:
        return
    engine(run)
    running = positive(found[2])
    now = positive(found[3])
    number_of_step = int(found[1]) if found.re is _TIMER else _whole_steps(run, found[1])
    batch = run.settings.get("global_batch_size")
    run.record(samples_per_s_running=running)
    if "Megatron" not in run.program:
        run.steps.add(
            number_of_step,
            t_s=clock(run, line),
            step_time_s=batch / now if batch and now else None,
            allocated_gib=number(memory[1]) if memory else None,
        )


def _whole_steps(run: LoggedRun, micro_steps: str) -> int:
    """Return the optimizer steps from the oldest timer format, `epoch/micro-batch`."""
    return int(micro_steps) // run.settings.get("grad_accum", 1)


def step(run: LoggedRun, line: str) -> None:
    """`step=110, skipped=9, lr=[...]`: `skipped` is a running total."""
    found = _STEP.search(line)
    if found and int(found[1]):  # step 0 is printed when the engine is built
        engine(run)
        before = run.scratch.get("skipped", 0)
        skipped = int(found[2])
        if "Megatron" in run.program:
            run.scratch["skipped_by_engine"] = skipped
            return
        run.steps.add(int(found[1]), skipped=max(0, skipped - before))
        if skipped >= before and not run.steps.restarted:
            run.scratch["skipped"] = skipped
            run.record(skipped_steps=skipped)


def overflow(run: LoggedRun, line: str) -> None:
    """`[Rank 0] Overflow detected. Skipping step.`: counted only if there is no other count."""
    if "Skipping step" in line and ("Rank 0]" in line or "Rank 0 " in line):
        run.scratch["overflows"] = run.scratch.get("overflows", 0) + 1
        if "skipped" not in run.scratch:
            run.record(DERIVED, skipped_steps=run.scratch["overflows"])


def pipeline(run: LoggedRun, line: str) -> None:
    """Read `steps: 10 loss: 7.0 iter time (s): 1.2 samples/sec: 33.3` of the pipeline engine."""
    if found := _PIPELINE.search(line):
        engine(run)
        run.scratch["stages"] = True
        if "Megatron" not in run.program:
            step_time_s, rate = positive(found[3]), positive(found[4])
            run.scratch["loss_is_nan"] = "nan" in found[2].lower()
            run.steps.add(
                int(found[1]),
                t_s=clock(run, line),
                loss=number(found[2]),
                step_time_s=step_time_s,
                samples=rate * step_time_s if rate and step_time_s else None,
            )


def memory_use(run: LoggedRun, line: str) -> None:
    """`MA 2.34 GB Max_MA 3.81 GB`: the peak of the training only if a step was printed before."""
    if len(run.steps) and (found := _PEAK.search(line)):
        run.record_max(peak_allocated_gib=positive(found[1]))


def optimizer(run: LoggedRun, line: str) -> None:
    """`DeepSpeed Basic Optimizer = FusedAdam`."""
    name = line.rsplit("=", 1)[-1].strip()[:60]
    if name and line.endswith("\n"):
        run.set_used(optimizer=name)


READERS = {
    "config.py:": config,
    '"offload_': offload,
    '"device": ': device,
    "DeepSpeed info: version=": version,
    " version ....": report,
    " info ....": report,
    "but detected": torch_detected,
    "SamplesPerSec=": timer,
    ", skipped=": step,
    "Skipping step": overflow,
    " iter time (s): ": pipeline,
    "Max_MA ": memory_use,
    "DeepSpeed Basic Optimizer = ": optimizer,
}
