"""Titles, units and meanings of the columns of runs, for every table, figure and sentence.

One registry, so that tables, figures, the explorer and the answer use the same words for the same column.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from dsnb.settings import deepspeed_keys


@dataclass(frozen=True)
class Metric:
    """How a figure of a run is displayed: the column's value times `factor` is in `unit`."""

    title: str
    unit: str = ""
    factor: float = 1
    digits: int = 0
    better: Literal["higher", "lower", ""] = ""
    """Which direction is better; empty if neither is."""
    about: str = ""
    """What a reader must know to interpret the figure; empty if the title is enough."""

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


GENERAL = {"auto": "default", "none": "no", "": "no", "-": "unknown"}
"""Values that mean the same for all settings, and the word in front of a setting's title that says it."""


@dataclass(frozen=True)
class Axis:
    """How a setting is displayed; `phrase` describes one of its values, as in "ZeRO 3"."""

    title: str
    phrase: str = ""
    order: tuple[str, ...] = ()
    """Order of the values, if it is neither numeric nor alphabetic."""
    usual: object = None
    """The value that is omitted when an experiment is described by its settings."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Phrases for values that `phrase` does not fit, such as a 0 that turns something off, by their text."""
    only_with: str = ""
    """Another setting; while it is off, this one has no effect."""

    def describe(self, value: object) -> str:
        """Return a phrase for a value, which says what `none`, `auto` and a missing value mean."""
        said = text(value)
        if said in self.phrases:
            return self.phrases[said]
        if said in GENERAL:
            return f"{GENERAL[said]} {self.title}"
        phrase = self.phrase or f"{self.title} {{}}"
        return phrase.replace("{}", "on" if value is True else "off" if value is False else said)

    def describe_unusual(self, value: object) -> str:
        """Return a phrase for a value, empty for the usual one."""
        return "" if self.usual is not None and value == self.usual else self.describe(value)

    def sort_key(self, value: object) -> tuple[int, float, str]:
        """Return a sort key for values: `order` first, then numbers, then texts, missing values last."""
        if pd.isna(value):
            return 3, 0, ""
        if isinstance(value, int | float):
            return 1, float(value), ""
        return (0, self.order.index(str(value)), "") if value in self.order else (2, 0, str(value))


DURING_STEPS = "during the steps, not while the model was built"
METRIC_LABELS = {
    "tokens_per_s": Metric("tokens/s", better="higher", about="All tokens of the timed steps divided by their time."),
    "tokens_per_s_per_gpu": Metric("tokens/s/GPU", better="higher"),
    "of_plain": Metric(
        "of the plain loop",
        "%",
        100,
        1,
        "higher",
        "tokens/s/GPU divided by the median of the fastest plain loop (one process without an engine) that does the "
        "same work on the same GPU: model, data, batch, number format, optimizer, loss, attention and recomputation "
        "are equal. On a CPU tokens/s of all ranks, which share its cores.",
    ),
    "trained_tokens_per_s": Metric(
        "trained tokens/s", better="higher", about="Without the tokens of steps that the fp16 loss scaler skipped."
    ),
    "samples_per_s": Metric("samples/s", digits=1, better="higher"),
    "step_time_s": Metric("step time", "ms", 1000, 1, "lower"),
    "forward_s": Metric("forward", "ms", 1000, 1, "lower"),
    "backward_s": Metric("backward", "ms", 1000, 1, "lower"),
    "optimizer_s": Metric("optimizer step", "ms", 1000, 1, "lower"),
    "communication_s": Metric("communication", "ms", 1000, 1, "lower"),
    "step_skew": Metric("step skew", "%", 100, 1, "lower"),
    "forward_skew": Metric("forward skew", "%", 100, 1, "lower"),
    "peak_allocated_gib": Metric(
        "memory allocated",
        "GiB",
        digits=2,
        better="lower",
        about=f"Peak of the memory that torch allocated on any GPU {DURING_STEPS}.",
    ),
    "peak_reserved_gib": Metric(
        "memory reserved",
        "GiB",
        digits=2,
        better="lower",
        about=f"Peak of the memory that torch reserved on any GPU, its unused cache included, {DURING_STEPS}.",
    ),
    "device_memory_gib": Metric(
        "memory on device",
        "GiB",
        digits=2,
        better="lower",
        about=f"Peak of the memory in use on any GPU (NVML, all processes, no driver reserve) {DURING_STEPS}.",
    ),
    "host_memory_gib": Metric(
        "host memory",
        "GiB",
        digits=2,
        better="lower",
        about=f"Peak resident memory of the ranks of the fullest host, shared pages counted once, {DURING_STEPS}.",
    ),
    "gpu_util_pct": Metric(
        "utilization",
        "%",
        better="higher",
        about="Share of the timed steps in which any kernel ran. A GPU that waits for others in NCCL counts as busy, "
        "so a high value does not mean that the GPU is used well. Missing where the timed steps took less than 5 s: "
        "NVML reports the share of up to a second before each sample, so that the figure of a shorter time is noise.",
    ),
    "power_w": Metric("power", "W", better="lower", about="Mean per GPU over the timed steps: energy divided by time."),
    "energy_j": Metric("energy of the timed steps", "J", better="lower", about="Sum over all GPUs, without the hosts."),
    "tokens_per_joule": Metric(
        "tokens/joule", digits=1, better="higher", about="Tokens of the timed steps divided by the energy of the GPUs."
    ),
    "run_energy_kwh": Metric(
        "energy of the run",
        "Wh",
        1000,
        1,
        "lower",
        "Sum over all GPUs from launch to end, model building and warm-up included, without the hosts.",
    ),
    "gpu_hours": Metric("GPU-hours of the run", "h", digits=3, better="lower", about="From launch to end."),
    "cost": Metric("cost of the run", digits=2, better="lower", about="GPU-hours times price_per_gpu_hour."),
    "tflops_per_gpu": Metric(
        "TFLOP/s/GPU",
        digits=1,
        better="higher",
        about="Model FLOPs: 6 x active parameters + 12 x layers with attention x hidden x sequence per token; in a "
        "mixture of experts the chosen ones are active. With LoRA, 4 x active + 2 x trainable parameters instead of "
        "6 x active ones, because frozen weights have no gradient. By convention, the masked half of attention is "
        "counted.",
    ),
    "hardware_tflops_per_gpu": Metric(
        "hardware TFLOP/s/GPU",
        digits=1,
        better="higher",
        about="Including the blocks that activation checkpointing recomputes.",
    ),
    "mfu": Metric("MFU", "%", 100, 1, "higher", "TFLOP/s divided by the vendor's dense peak for the precision."),
    "mfu_of_matmul": Metric(
        "MFU of a measured matmul",
        "%",
        100,
        1,
        "higher",
        "TFLOP/s divided by those of a large matrix product measured on the same GPU model.",
    ),
    "loss_last": Metric("last loss", digits=3, better="lower"),
    "grad_norm_last": Metric("gradient norm", digits=3, about="Of the last step, before clipping."),
    "update_rms": Metric(
        "weight change",
        digits=6,
        about="Root mean square over the weights of their change in all steps, without weight decay.",
    ),
}
"""Measured figures, one value per run."""

MEMORY = ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib")
"""Figures of memory, the most informative first: views that need one use the first that was measured."""

STRATEGIES = ("plain", "DDP", "FSDP", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3")
COMPILE_MODES = ("off", "default", "reduce-overhead", "max-autotune", "deepcompile")
AXES = {
    "model": Axis("model", "{}"),
    "strategy": Axis("strategy", "{}", STRATEGIES),
    "zero_stage": Axis("ZeRO stage", "ZeRO {}"),
    "offload": Axis("offload", "offload {}", usual="none"),
    "optimizer": Axis("optimizer", "{}", usual="adamw"),
    "gradient_compression": Axis("gradient compression", "compression {}", usual="none"),
    "lora_rank": Axis("LoRA rank", "LoRA {}", usual=0, phrases={"0": "no LoRA"}),
    "tensor_parallel": Axis("tensor parallel", "TP {}", usual=1),
    "pipeline_parallel": Axis("pipeline parallel", "PP {}", usual=1),
    "precision": Axis("precision", "{}", ("fp32", "tf32", "fp16", "bf16")),
    "mixed_precision": Axis("mixed precision", "{} mixed precision", usual="native"),
    "attention": Axis("attention", "{} attention", usual="auto", phrases={"auto": "default attention"}),
    "compile": Axis("compilation", "compilation {}", COMPILE_MODES, "off"),
    "compile_unit": Axis("compiled unit", "compiled by {}", usual="auto", only_with="compile"),
    "loss": Axis("loss", "{} loss", usual="whole"),
    "grad_accum": Axis("gradient accumulation", "accumulation {}", phrases={"1": "no accumulation"}),
    "grad_accum_dtype": Axis(
        "gradients accumulated in",
        "gradients accumulated in {}",
        usual="auto",
        phrases={"auto": "default format of accumulated gradients"},
    ),
    "overlap_comm": Axis("overlapped communication", "overlapped communication {}", usual="auto"),
    "bucket_elements": Axis(
        "bucket size",
        "buckets of {} elements",
        usual=0,
        phrases={"0": "default bucket size", "1": "buckets of 1 element"},
    ),
    "gradient_checks": Axis("gradient checks", "gradient checks {}", usual="on"),
    "leaf_modules": Axis("leaf modules", "{} as leaf modules", usual="auto"),
    "zeropp": Axis("ZeRO++", "ZeRO++ {}", usual="none"),
    "activation_checkpointing": Axis("activation checkpointing", "checkpointing {}"),
    "checkpoint_every": Axis(
        "one block recomputed of",
        "one block of {} recomputed",
        usual=1,
        phrases={"1": "every block recomputed"},
        only_with="activation_checkpointing",
    ),
    "checkpoint_offload": Axis(
        "checkpoints in host memory",
        usual=False,
        phrases={"true": "checkpoints in host memory", "false": "checkpoints on the GPU"},
        only_with="activation_checkpointing",
    ),
    "gpus": Axis("GPUs", "GPUs {}"),
    "nodes": Axis("nodes", "nodes {}"),
    "micro_batch_size": Axis("micro-batch", phrases={"auto": "the largest micro-batch that fits"}),
    "seq_len": Axis("sequence length", "sequence {}"),
    "data": Axis("data", "{} data"),
    "trained": Axis("trained", "{}"),
    "gpu_name": Axis("GPU", "{}"),
    "source": Axis("source", "{}"),
    "sweep": Axis("sweep", "{}"),
    "status": Axis("status", "{}", ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")),
}
"""The most important settings, in display order; the others follow."""
OTHER_AXES = {
    "weights": Axis("weights", "{} weights"),
    "memory_limit_gib": Axis("memory limit (GiB)", "memory limit {} GiB", phrases={"0": "no memory limit"}),
    "allocator": Axis(
        "allocator", phrases={"expandable": "expandable segments", "default": "torch's default allocator"}
    ),
    "dropout": Axis("dropout", phrases={"0": "no dropout"}),
    "tokenizer": Axis("tokenizer", phrases={"bytes": "bytes as tokens"}),
    "gradient_clipping": Axis("gradient clipping", phrases={"0": "no gradient clipping"}),
    "powersgd_rank": Axis("PowerSGD rank", only_with="gradient_compression"),
    "warmup_steps": Axis("warm-up steps", "{} warm-up steps", phrases={"0": "no warm-up steps", "1": "1 warm-up step"}),
    "steps": Axis("timed steps", "{} timed steps", phrases={"1": "1 timed step"}),
}
"""Settings whose names alone would not do as titles, or whose values need words; in no order."""


def axis(name: str) -> Axis:
    """Return the axis of a column; one in neither list is titled by its name."""
    if name.startswith(deepspeed_keys.PREFIX):
        return Axis(name.rpartition(".")[2])
    return AXES.get(name) or OTHER_AXES.get(name) or Axis(name.replace("_", " "))


def span(low: float, high: float) -> str:
    """Return a range with as many digits as it supports, as in "30 to 60" for 31.2 to 56.4.

    Both ends are rounded to the first digit of half the range, or of `low` if that is finer: down and up, so that the
    range stays within what is printed.
    """
    if not 0 < low < high < math.inf:
        return "" if math.isnan(high) else f"{high:,.0f}" if high >= 100 else f"{high:.3g}"
    place = math.floor(math.log10(min((high - low) / 2, low)))
    ends = math.floor(low / 10**place), math.ceil(high / 10**place)
    return " to ".join(f"{end * 10**place:,.{max(-place, 0)}f}" for end in ends)


def count(number: float, noun: str) -> str:
    """Return a number with its noun: "1 setting", "2 settings"."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def text(value: object) -> str:
    """Return a value of an axis as text: `true` and `false` in lower case, a dash for a missing value."""
    if value is None or str(value) in {"nan", "<NA>", "NaT"}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
