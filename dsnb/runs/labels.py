"""What the columns of a table of runs are called, measured in, and which way is better: the words of every view.

One registry, so that a table, a figure, the explorer and the findings say the same of the same column.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A figure of a run as a person reads it: the column's value times `factor` is in `unit`."""

    title: str
    unit: str = ""
    factor: float = 1
    digits: int = 0
    better: Literal["higher", "lower", ""] = ""
    """Which way is better; empty where neither is."""
    about: str = ""
    """What a reader must know to take the figure for what it is; empty where the title says it."""

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Axis:
    """A setting as a person reads it; `phrase` names one value of it, as in "ZeRO 3"."""

    title: str
    phrase: str = ""
    order: tuple[str, ...] = ()
    """The order of its values where it is not that of numbers or the alphabet."""
    usual: object = None
    """The value that goes without saying when an experiment is named by its settings."""

    def say(self, value: object) -> str:
        """Name one value."""
        phrase = self.phrase or f"{self.title} {{}}"
        return phrase.replace("{}", "on" if value is True else "off" if value is False else text(value))

    def mention(self, value: object) -> str:
        """Name one value if it is worth a mention."""
        return "" if self.usual is not None and value == self.usual else self.say(value)

    def rank(self, value: object) -> tuple[int, float, str]:
        """Give what orders its values: their own order, numbers before texts, what is missing last."""
        if value is None or value != value:
            return 3, 0, ""
        if isinstance(value, int | float):
            return 1, float(value), ""
        return (0, self.order.index(str(value)), "") if value in self.order else (2, 0, str(value))


ON_STEPS = "while steps were trained, not while the model was built"
METRIC_LABELS = {
    "tokens_per_s": Metric("tokens/s", better="higher", about="All tokens of the timed steps over their time."),
    "tokens_per_s_per_gpu": Metric("tokens/s/GPU", better="higher"),
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
        about=f"The most that torch had handed out on any GPU {ON_STEPS}.",
    ),
    "peak_reserved_gib": Metric(
        "memory reserved",
        "GiB",
        digits=2,
        better="lower",
        about=f"The most that torch held on any GPU {ON_STEPS}, its unused cache included.",
    ),
    "device_memory_gib": Metric(
        "memory on device",
        "GiB",
        digits=2,
        better="lower",
        about=f"The most in use on any GPU, by all processes, {ON_STEPS}; the driver's own reserve is left out (NVML).",
    ),
    "host_memory_gib": Metric(
        "host memory",
        "GiB",
        digits=2,
        better="lower",
        about=f"Resident memory of all ranks of the fullest host, shared pages counted once, {ON_STEPS}.",
    ),
    "gpu_util_pct": Metric(
        "utilization",
        "%",
        better="higher",
        about="Share of the time in which some kernel ran, over the timed steps. A GPU that waits for others in NCCL "
        "counts as busy, so it says nothing about how well the GPU is used.",
    ),
    "power_w": Metric("power", "W", better="lower", about="Mean of a GPU over the timed steps: energy over time."),
    "energy_j": Metric("energy of the timed steps", "J", better="lower", about="Of all GPUs together, without hosts."),
    "tokens_per_joule": Metric(
        "tokens/joule", digits=1, better="higher", about="Tokens of the timed steps over the energy of the GPUs."
    ),
    "run_energy_kwh": Metric(
        "energy of the run",
        "Wh",
        1000,
        1,
        "lower",
        "Of all GPUs from launch to end, building and warm-up included, without hosts.",
    ),
    "gpu_hours": Metric("GPU-hours of the run", "h", digits=3, better="lower", about="From launch to end."),
    "cost": Metric("cost of the run", digits=2, better="lower", about="GPU-hours times price_per_gpu_hour."),
    "tflops_per_gpu": Metric(
        "TFLOP/s/GPU",
        digits=1,
        better="higher",
        about="The model's own work, (6 x parameters + 12 x layers x hidden x sequence) FLOPs a token; with LoRA 4 x "
        "parameters + 2 x trained ones, for frozen weights have no weight gradient. By convention attention's masked "
        "half is counted.",
    ),
    "hardware_tflops_per_gpu": Metric(
        "hardware TFLOP/s/GPU",
        digits=1,
        better="higher",
        about="With the second forward pass through the blocks that activation checkpointing recomputes.",
    ),
    "mfu": Metric("MFU", "%", 100, 1, "higher", "TFLOP/s over the vendor's dense peak for the precision."),
    "mfu_of_matmul": Metric(
        "MFU of a measured matmul",
        "%",
        100,
        1,
        "higher",
        "TFLOP/s over those of a large matrix product measured on such a GPU.",
    ),
    "loss_last": Metric("last loss", digits=3, better="lower"),
    "grad_norm_last": Metric("gradient norm", digits=3, about="Of the last step, before clipping."),
    "update_rms": Metric(
        "weight change",
        digits=6,
        about="Root mean square over the weights of their change in all steps, beyond weight decay.",
    ),
}
"""Measured, one value a run."""

MEMORY = ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib")
"""The figures of memory, the most telling first: views that need one take the first that was measured."""

AXES = {
    "model": Axis("model", "{}"),
    "strategy": Axis("strategy", "{}"),
    "zero_stage": Axis("ZeRO stage", "ZeRO {}"),
    "offload": Axis("offload", "offload {}", usual="none"),
    "optimizer": Axis("optimizer", "{}", usual="adamw"),
    "gradient_compression": Axis("gradient compression", "compression {}", usual="none"),
    "lora_rank": Axis("LoRA rank", "LoRA {}", usual=0),
    "tensor_parallel": Axis("tensor parallel", "TP {}", usual=1),
    "pipeline_parallel": Axis("pipeline parallel", "PP {}", usual=1),
    "precision": Axis("precision", "{}", ("fp32", "tf32", "fp16", "bf16")),
    "mixed_precision": Axis("mixed precision", "{} mixed precision", usual="native"),
    "attention": Axis("attention", "attention {}", usual="auto"),
    "compile": Axis("compilation", "compilation {}", usual=False),
    "grad_accum": Axis("gradient accumulation", "accumulation {}"),
    "activation_checkpointing": Axis("activation checkpointing", "checkpointing {}"),
    "checkpoint_every": Axis("one block recomputed of", "one block of {}", usual=1),
    "checkpoint_offload": Axis("checkpoints in host memory", "checkpoints in host memory {}", usual=False),
    "gpus": Axis("GPUs", "GPUs {}"),
    "nodes": Axis("nodes", "nodes {}"),
    "micro_batch_size": Axis("micro-batch", "micro-batch {}"),
    "seq_len": Axis("sequence length", "sequence {}"),
    "gpu_name": Axis("GPU", "{}"),
    "source": Axis("source", "{}"),
    "sweep": Axis("sweep", "{}"),
    "status": Axis("status", "{}", ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")),
}
"""The settings that are asked for most, in the order in which they are shown; the others follow under their names."""


def axis(name: str) -> Axis:
    """Give a column's axis; one that has no words of its own goes by its name."""
    return AXES.get(name, Axis(name.replace("_", " ")))


def text(value: object) -> str:
    """Give one value of an axis as text: `true` and `false` in lower case, a dash where there is none."""
    if value is None or str(value) in {"nan", "<NA>", "NaT"}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
