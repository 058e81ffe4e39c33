"""Readers of the configuration that DeepSpeed prints when it builds an engine: the settings that were used."""

import re
from collections.abc import Callable
from typing import Any

from dsnb.runs.logs.flags import number_from_0, stage, stages
from dsnb.runs.logs.logged_run import DERIVED, LoggedRun
from dsnb.runs.logs.text import count

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


READERS = {"config.py:": config, '"offload_': offload, '"device": ': device}
