"""The columns of the tables and the fields of records: meaning, kind of value and display.

A column is declared here once; a setting, which is a column too, in `dsnb.settings.training`. Tables, records, labels,
the explorer and the reference read them from here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DECLARED, DEFAULTS, SUPERVISION, Experiment

STATUSES = ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")
ENDED = tuple(status for status in STATUSES if status != "interrupted")
"""Statuses of runs that do not have to be executed again."""
MAX_FIGURE = 1e18
"""Largest figure; sums and ratios of such figures stay finite."""

# Kinds of values, as pydantic validates them. None, a missing measurement, is of every kind.
NUMBER = Annotated[float, Field(strict=True, ge=-MAX_FIGURE, le=MAX_FIGURE)]
AMOUNT = Annotated[float, Field(strict=True, ge=0, le=MAX_FIGURE)]
COUNT = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
TEXT = Annotated[str, Field(strict=True, max_length=100_000)]
FLAG = Annotated[bool, Field(strict=True)]
STATUS: Any = Literal[STATUSES]  # type: ignore[valid-type]
SETTING = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
SIZE = (
    Annotated[int, Field(strict=True, ge=1, lt=2**63)] | Literal["auto"]
)  # "auto" in earlier versions
KEYS_WITH_VALUES = dict[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")], Any]
NUMBERS = (NUMBER, AMOUNT, COUNT, SETTING, SIZE)
"""Kinds of columns that are numbers."""
_KIND_OF_DEFAULT = {bool: FLAG, int: COUNT, float: SETTING, str: TEXT, dict: KEYS_WITH_VALUES}


@dataclass(frozen=True)
class Metric:
    """How a figure of a run is displayed: the column's value times `factor` is in `unit`."""

    title: str
    unit: str = ""
    factor: float = 1
    digits: int = 0
    better: Literal["higher", "lower", ""] = ""
    """The better direction; empty if there is none."""
    about: str = ""
    """What the figure means."""

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a record."""

    name: str
    meaning: str
    label: Metric | None = None
    """Display of a figure that tables and pages compare."""
    kind: Any = AMOUNT
    """Type of its values: one of the kinds above, or a type made of them."""


def each(kind: Any, **meanings: str) -> list[Column]:
    """Return columns of one kind from their names and meanings."""
    return [Column(name, meaning, kind=kind) for name, meaning in meanings.items()]


SETTING_COLUMNS = {
    name: Column(
        name,
        " ".join((Experiment.model_fields[name].description or "").split()),
        kind=SIZE if name == "micro_batch_size" else _KIND_OF_DEFAULT[type(default)],
    )
    for name, default in DEFAULTS.items()
}
"""Every setting, as a field of `experiment.json`."""
SETTINGS = [name for name in DECLARED if name not in {"device", deepspeed_keys.NAME, *SUPERVISION}]
"""Settings that are columns; keys of DeepSpeed's configuration are added if any run sets them."""
_NAMES = [
    Column(
        "sweep",
        "Folder of the sweep; with its parent folders where several sweeps have the same one.",
        kind=TEXT,
    ),
    Column("experiment", "Name of the setting that was measured; repeats share it.", kind=TEXT),
    Column("repeat", "Number of the repeat, the k of `run<k>`.", kind=COUNT),
    Column("status", "How the run ended; only `ok` runs count in medians.", kind=STATUS),
    Column(
        "cause",
        "Why it is not `ok`, in one sentence; for a log that stops early, where it stops.",
        kind=TEXT,
    ),
    Column(
        "source",
        "Who measured: `dsnb`, a program whose log was read, or a published table.",
        kind=TEXT,
    ),
]
_SHARING = [
    Column(
        "parallelism",
        "How GPUs share the training, as one value of `strategy`, `zero_stage`, `tensor_parallel` and "
        "`pipeline_parallel`: `plain`, `DDP`, `FSDP`, `ZeRO 0` to `ZeRO 3`, `TP 2 x ZeRO 1`.",
        kind=TEXT,
    ),
    Column("device", "`cuda` or `cpu`.", kind=TEXT),
    *each(
        COUNT,
        data_parallel="gpus / (tensor_parallel x pipeline_parallel): ranks, or groups of ranks, with own sequences.",
        global_batch_size="micro_batch_size x grad_accum x data_parallel: sequences per optimizer step of all ranks.",
    ),
    *each(
        TEXT,
        launcher="How earlier versions started the ranks of one machine: `fork`, or `deepspeed` for its launcher.",
        inputs="Files that the run read (model, weights, tokenizer, text), each with the beginning of its digest.",
        hosts="Hosts of the run, as the hostfile names them; missing on one machine.",
    ),
]
_rate = partial(Metric, better="higher")
_ms = partial(Metric, unit="ms", factor=1000, digits=1, better="lower")
_gib = partial(Metric, unit="GiB", digits=2, better="lower")
_percent = partial(Metric, unit="%", factor=100, digits=1)
FIGURES = [
    Column(
        "tokens_per_s", "All tokens of the timed steps divided by their time.", _rate("tokens/s")
    ),
    Column(
        "tokens_per_s_per_gpu",
        "tokens_per_s / gpus: per GPU; on a CPU, per rank.",
        _rate("tokens/s/GPU"),
    ),
    Column(
        "of_plain",
        "tokens/s/GPU divided by the median of the fastest plain loop (one process without an engine) that does the "
        "same work on the same GPU: model, data, batch, number format, optimizer, loss, attention and recomputation "
        "are equal. On a CPU tokens/s of all ranks, which share its cores.",
        _percent("of the plain loop", better="higher"),
    ),
    Column(
        "trained_tokens_per_s",
        "tokens_per_s without the tokens of steps that the fp16 loss scaler skipped.",
        _rate("trained tokens/s"),
    ),
    Column(
        "samples_per_s",
        "tokens_per_s / seq_len: sequences of all ranks.",
        _rate("samples/s", digits=1),
    ),
    Column("step_time_mean_s", "Mean time of the timed optimizer steps.", _ms("step time")),
    Column("forward_s", "Forward pass of one step, with profile on.", _ms("forward")),
    Column("backward_s", "Backward pass of one step, with profile on.", _ms("backward")),
    Column(
        "optimizer_s", "Update of the weights in one step, with profile on.", _ms("optimizer step")
    ),
    Column(
        "communication_s",
        "Collectives of one step, with profile on; other parts overlap.",
        _ms("communication"),
    ),
    Column(
        "step_skew",
        "Slowest rank's step time over that of the median rank, less 1; median over the timed steps.",
        _percent("step skew", better="lower"),
        kind=NUMBER,
    ),
    Column(
        "forward_skew",
        "As `step_skew`, for the first forward pass of each step, which usually holds no collective.",
        _percent("forward skew", better="lower"),
        kind=NUMBER,
    ),
    Column(
        "cpu_bound",
        "Share of the timed steps in which the host set the pace: parts with less than a quarter of the GPU work left "
        "when the last kernel was launched, minus that rest. Roughly an upper bound of its idle time; worst rank.",
        _percent("CPU-bound", better="lower"),
    ),
    Column(
        "peak_allocated_gib",
        "Peak memory that torch allocated on any GPU during the steps, not while the model was built.",
        _gib("peak memory allocated"),
    ),
    Column(
        "peak_reserved_gib",
        "Peak memory that torch reserved on any GPU during the steps, its unused cache included.",
        _gib("peak memory reserved"),
    ),
    Column(
        "device_memory_gib",
        "Peak memory in use on any GPU during the steps, or since the launch of a run that was cut short (NVML: all "
        "processes, no driver reserve).",
        _gib("peak memory in use"),
    ),
    Column(
        "host_memory_gib",
        "Peak resident memory of the ranks of the fullest host during the steps, shared pages counted once.",
        _gib("peak host memory"),
    ),
    Column(
        "gpu_util_pct",
        "Share of the timed steps in which any kernel ran. A GPU that waits for others in NCCL counts as busy, so a "
        "high value does not mean that the GPU is used well. Missing where the timed steps took less than 5 s: NVML "
        "reports the share of up to a second before each sample, so that the figure of a shorter time is noise.",
        _rate("utilization", "%"),
    ),
    Column(
        "power_w",
        "Mean per GPU over the timed steps: energy / time.",
        Metric("power", "W", better="lower"),
    ),
    Column(
        "energy_j",
        "Sum over all GPUs, without hosts.",
        Metric("energy of the timed steps", "J", better="lower"),
    ),
    Column(
        "tokens_per_joule",
        "tokens_per_s_per_gpu / power_w, without hosts.",
        _rate("tokens/joule", digits=1),
    ),
    Column(
        "run_energy_kwh",
        "Sum over all GPUs from launch to end, model building and warm-up included, without the hosts.",
        Metric("energy of the run", "Wh", 1000, 1, "lower"),
    ),
    Column(
        "gpu_hours",
        "gpus x time from launch to end.",
        Metric("GPU-hours of the run", "h", 1, 3, "lower"),
    ),
    Column(
        "cost",
        "gpu_hours x price_per_gpu_hour.",
        Metric("cost of the run", digits=2, better="lower"),
    ),
    Column(
        "tflops_per_gpu",
        "Model FLOPs of a token x tokens_per_s_per_gpu / 1e12: 6 x active parameters + 12 x layers with attention x "
        "hidden x sequence; in a mixture of experts the chosen ones are active. With LoRA, 4 x active + 2 x trainable "
        "parameters instead of 6 x active ones, because frozen weights have no gradient. By convention, the masked "
        "half of attention is counted.",
        _rate("TFLOP/s/GPU", digits=1),
    ),
    Column(
        "hardware_tflops_per_gpu",
        "As `tflops_per_gpu`, with the FLOPs of the blocks that activation checkpointing recomputes.",
        _rate("hardware TFLOP/s/GPU", digits=1),
    ),
    Column(
        "mfu",
        "tflops_per_gpu / dense peak for the precision in the data sheet.",
        _percent("MFU", better="higher"),
    ),
    Column(
        "mfu_of_matmul",
        "tflops_per_gpu / TFLOP/s of a large matrix product measured on the same GPU model.",
        _percent("MFU of a measured matmul", better="higher"),
    ),
    Column(
        "loss_last",
        "Last step, mean over ranks; missing if several ranks did not end.",
        Metric("last loss", digits=3, better="lower"),
        kind=NUMBER,
    ),
    Column(
        "grad_norm_last", "Of the last step, before clipping.", Metric("gradient norm", digits=3)
    ),
    Column(
        "update_rms",
        "Root mean square over the weights of their change in all steps, without weight decay.",
        Metric("weight change", digits=6),
    ),
    # The others are compared in no table.
    *each(
        AMOUNT,
        masked_flops_pct="Share of `tflops_per_gpu` that a causal mask makes unnecessary: half of attention.",
        days_per_100b_tokens="1e11 / tokens_per_s / 86,400: days of 100 billion tokens, without restarts or pauses.",
        needed_gib="oom_allocated_gib + oom_requested_gib: what a run out of memory would have needed at least.",
        samples_per_s_running="Running average that DeepSpeed's timer prints; it leaves out data loading.",
        tokens_per_s_logged="Throughput as logged, where it is wrong and `tokens_per_s` is corrected.",
        step_time_median_s="Median of the timed step times.",
        rank_host_memory_gib="Largest resident host memory of a single rank, shared pages included.",
        oom_allocated_gib="Memory allocated at the moment when an allocation failed.",
        oom_requested_gib="Size of the allocation that failed.",
        oom_step="Optimizer step in which memory ran out, from 1; missing while the model was built.",
        sm_clock_mhz="Mean clock of the GPUs' multiprocessors over the timed steps.",
        skipped_steps="Timed steps whose update the fp16 loss scaler skipped.",
        skipped_warmup_steps="Warm-up steps whose update the fp16 loss scaler skipped.",
        slow_steps="Timed steps that took more than twice the median.",
        launch_us="Time that the host needed for a small operation, measured after the steps; missing on a CPU.",
        alloc_retries="How often torch's allocator returned memory to the GPU and asked again in the timed steps, on "
        "the worst rank: the GPU's memory was nearly full. Missing on a CPU.",
        recompilations="Graphs that torch.compile compiled during the timed steps.",
        graph_breaks="Different reasons for which torch.compile left its graph in the run; missing if not compiled.",
        nan_steps="Steps with a loss that is not a number, as Megatron logs them.",
        timed_steps="Optimizer steps that the speed is measured over.",
        train_runtime_s="Wall time of a whole training, as transformers' Trainer logs it.",
        steps_per_s="Optimizer steps per second, as transformers' Trainer logs it.",
        step_time_logged_s="Step time as logged, where it is wrong and `step_time_mean_s` is corrected.",
        parameters="Parameters of the model, tied embeddings counted once.",
        trainable_parameters="Parameters that are trained: fewer than `parameters` with LoRA, and with a padded "
        "vocabulary, whose bias is frozen.",
        active_parameters="Parameters that work on one token: fewer than `parameters` in a mixture of experts, where "
        "only the chosen experts count; more where blocks share weights, which count at each use.",
    ),
    *each(
        NUMBER,
        loss_first="Loss of the first step, warm-up included, mean over ranks; missing if several ranks did not end.",
        loss_mean="Mean loss of a whole training, as transformers' Trainer logs it.",
    ),
]
TEXTS = each(
    TEXT,
    attention_used="Attention implementation that the model really used.",
    attention_kernel="Kernel that computed attention in a warm-up step: cudnn, flash, efficient, flex, or math (not "
    "fused); missing without a warm-up step.",
    oom_phase="Part of the step in which memory ran out: build, forward, loss, backward, optimizer, communication.",
)
_PHASES = each(
    AMOUNT,
    start_s="Launch to the first line of the workers.",
    build_s="Building model, engine and data.",
    warmup_s="Warm-up steps.",
    timed_s="Timed steps.",
    stop_s="End of the last step to the end of the last process.",
    wall_s="Launch to the end of the last process.",
)
_PLACES = each(
    COUNT,
    order_seed="Seed of the random order in which the sweep planned its runs; missing for the listed order.",
    order_place="Place of the run in that order, from 1; in a sub-cluster, among its own runs.",
)
MACHINE = [
    Column("host", "Name of the machine, of the first one where there are several.", kind=TEXT),
    Column("gpu_name", "Model of the GPU.", kind=TEXT),
    Column("gpu_memory_gib", "Memory that a GPU has, or `memory_limit_gib` if that is less."),
    Column("cpu", "Model of the CPU.", kind=TEXT),
    Column("cores", "CPU cores that the run could use.", kind=COUNT),
    *each(
        TEXT,
        driver="Version of the NVIDIA driver.",
        python="Version of Python.",
        torch="Version of torch.",
        cuda="Version of CUDA that torch was built with.",
        nccl="Version of NCCL that torch uses.",
        deepspeed="Version of DeepSpeed.",
        transformers="Version of transformers.",
        power_source="What power and energy were measured with: the GPU's energy counter, or samples of its power.",
        dsnb="Version of dsnb.",
        git_commit="Commit of the dsnb checkout; `-dirty` where files differ from it.",
        date_utc="Date and time of the launch, UTC.",
        variables="Environment variables set for the ranks: those of `TORCH*`, `PYTORCH_*`, `CUDA_*`, `NVIDIA_*`, "
        "`NCCL_*`, `OMP_*`, `MKL_*`, `ATEN_*` and `DS_*`, with their values; empty if none was set.",
    ),
]
_NOTES = each(
    TEXT,
    note="What is unusual about this run, such as skipped or slow steps.",
    provenance="Which figures of a log or table are as logged (or published) and which are derived.",
    run_dir="Folder of the run, or path of the log.",
)
_STEPS = [
    Column("step", "Number of the optimizer step, from 1, warm-up included.", kind=COUNT),
    Column("phase", "`warmup` or `timed`.", kind=TEXT),
    Column("t_s", "End of the step, since the launch.", kind=NUMBER),
    Column(
        "step_time_s",
        "Time between boundaries in the GPU's queue (CPU: a monotonic clock).",
        _ms("step time"),
    ),
    Column(
        "loss",
        "Loss, mean over ranks and micro-batches; until a run ends, rank 0's.",
        Metric("loss", digits=3, better="lower"),
        kind=NUMBER,
    ),
    Column("tokens", "Tokens of the step over all ranks."),
    Column(
        "allocated_gib",
        "Peak that torch had allocated on rank 0's GPU since the first step.",
        _gib("peak memory allocated so far"),
    ),
    Column("reserved_gib", "Peak that torch had reserved on rank 0's GPU since the first step."),
    Column("skipped", "True if the fp16 loss scaler skipped the update.", kind=FLAG),
    Column(
        "grad_norm", "Norm of the gradients before clipping, where the engine computes it anyway."
    ),
    Column("step_time_logged_s", "Step time as logged, where it is known to be wrong."),
]
_SAMPLES = [
    Column("t_s", "Time of the sample, since the launch.", kind=NUMBER),
    Column("host", "Host of the GPU; missing on one machine.", kind=TEXT),
    Column("gpu", "Index of the GPU on its host, in NVML's order.", kind=COUNT),
    Column(
        "util_pct",
        "Share of NVML's last period of up to a second in which some kernel ran.",
        _rate("utilization", "%"),
    ),
    Column(
        "memory_used_gib",
        "In use by all processes, without the driver's reserve.",
        _gib("memory in use now"),
    ),
    Column(
        "power_w",
        "As NVML reports it: on recent GPUs a mean over a second.",
        Metric("power, 1 s mean", "W"),
    ),
    Column("energy_j", "Reading of the GPU's energy counter."),
    Column("sm_clock_mhz", "Clock of the multiprocessors."),
]
RUNS = {
    column.name: column
    for column in (
        *_NAMES, *(SETTING_COLUMNS[name] for name in SETTINGS), *_SHARING, *FIGURES, *TEXTS, *_PHASES,
        Column("notebook_s", "Execution of the run's notebook, its kernel's start included."),
        *_PLACES, *MACHINE, *_NOTES,
    )
}  # fmt: skip
"""The columns of a table of runs."""
STEPS = {column.name: column for column in _STEPS}
SAMPLES = {column.name: column for column in _SAMPLES}
METRIC_LABELS = {
    column.name: replace(column.label, about=column.meaning)
    for column in FIGURES
    if column.label is not None
}
"""Measured figures that tables and pages compare, one value per run."""
OVER_TIME = {
    column.name: column.label for column in (*_STEPS, *_SAMPLES) if column.label is not None
}
"""Figures of steps and samples that charts of one run show."""
MEMORY = ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib")
"""Memory figures, the most informative first: views that need one use the first that was measured."""
FORMER_FIGURES = {"step_time_s": "step_time_mean_s"}
"""Former name of a figure of a run -> current name. In steps and predictions `step_time_s` is no mean and stays."""


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


KEYS, METRIC_COLUMNS, ENVIRONMENT = map(_names, (_NAMES[:3], FIGURES, MACHINE))
ORDER = _names(_PLACES)
"""Where a run is in the planned order of its sweep."""
PLANNED = [*ORDER, "model_name"]
"""Fields that a sweep adds to the settings of a run."""
SUMMARY_TEXTS = [*_names(TEXTS), "note"]
"""Texts in the summary of `result.json`."""
PHASES = [name.removesuffix("_s") for name in _names(_PHASES)]
RUN_COLUMNS = list(RUNS)
RUN_NUMBERS = [name for name, column in RUNS.items() if column.kind in NUMBERS]
STEP_COLUMNS = list(STEPS)
STEP_NUMBERS = [name for name, column in STEPS.items() if column.kind in NUMBERS]
GPU_COLUMNS = list(SAMPLES)


def key_columns(names: Iterable[str]) -> list[str]:
    """Return the columns among `names` that are keys of DeepSpeed's configuration, in order."""
    return sorted(name for name in names if str(name).startswith(deepspeed_keys.PREFIX))
