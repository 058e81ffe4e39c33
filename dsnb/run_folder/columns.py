"""The columns of the tables, whoever measured: what each means and holds, how it is displayed and derived.

A column is declared here once; a setting, which is a column too, in `dsnb.settings.training`. Tables, records, labels,
the explorer and the reference read them from here.
"""

from collections.abc import Iterable
from dataclasses import replace

from dsnb.run_folder.declarations import (
    AMOUNT,
    COUNT,
    FLAG,
    NUMBER,
    SETTING_COLUMNS,
    STATUS,
    TEXT,
    Column,
    Metric,
    each,
    numbers,
)
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DECLARED, SUPERVISION

SETTINGS = [name for name in DECLARED if name not in {"device", deepspeed_keys.NAME, *SUPERVISION}]
"""Settings that are columns; each key of DeepSpeed's configuration is a further one, if any run sets it."""
_NAMES = [
    Column("sweep", "Folder of the sweep below the folder that was loaded.", kind=TEXT),
    Column("experiment", "Name of the setting that was measured; repeats share it.", kind=TEXT),
    Column("repeat", "Number of the repeat, the k of `run<k>`.", kind=COUNT),
    Column("status", "How the run ended; only `ok` runs count in medians.", kind=STATUS),
    *each(
        TEXT,
        cause="Why the status is not `ok`, in one sentence; for a log that stops early, where it stops.",
        source="Who measured: `dsnb`, a program whose log was read, or a published table.",
    ),
]
_SHARING = [
    Column("device", "`cuda` or `cpu`.", kind=TEXT),
    Column(
        "data_parallel",
        "Ranks, or groups of ranks, that each train on their own sequences.",
        kind=COUNT,
        formula="gpus / (tensor_parallel x pipeline_parallel)",
    ),
    Column(
        "global_batch_size",
        "Sequences per optimizer step over all ranks.",
        kind=COUNT,
        formula="micro_batch_size x grad_accum x data_parallel",
    ),
    *each(
        TEXT,
        inputs="Files that the run read (model, weights, tokenizer, text), each with the beginning of its digest.",
        hosts="Hosts of the run, as the hostfile names them; missing on one machine.",
    ),
]
FIGURES = [
    Column(
        "tokens_per_s",
        "All tokens of the timed steps divided by their time.",
        Metric("tokens/s", better="higher"),
        formula="tokens per step x timed steps / sum of the timed step times",
    ),
    Column(
        "tokens_per_s_per_gpu",
        "Throughput per GPU; on a CPU, per rank.",
        Metric("tokens/s/GPU", better="higher"),
        unit="tokens/s",
        formula="tokens_per_s / gpus",
    ),
    Column(
        "of_plain",
        "tokens/s/GPU divided by the median of the fastest plain loop (one process without an engine) that "
        "does the same work on the same GPU: model, data, batch, number format, optimizer, loss, attention "
        "and recomputation are equal. On a CPU tokens/s of all ranks, which share its cores.",
        Metric("of the plain loop", "%", 100, 1, "higher"),
    ),
    Column(
        "trained_tokens_per_s",
        "Without the tokens of steps that the fp16 loss scaler skipped.",
        Metric("trained tokens/s", better="higher"),
        formula="tokens_per_s x (1 - skipped_steps / timed_steps)",
    ),
    Column(
        "samples_per_s",
        "Sequences per second over all ranks.",
        Metric("samples/s", digits=1, better="higher"),
        formula="tokens_per_s / seq_len",
    ),
    Column("step_time_s", "Mean time of the timed optimizer steps.", Metric("step time", "ms", 1000, 1, "lower")),
    Column("forward_s", "Forward pass of one step, with profile on.", Metric("forward", "ms", 1000, 1, "lower")),
    Column("backward_s", "Backward pass of one step, with profile on.", Metric("backward", "ms", 1000, 1, "lower")),
    Column(
        "optimizer_s",
        "Update of the weights in one step, with profile on.",
        Metric("optimizer step", "ms", 1000, 1, "lower"),
    ),
    Column(
        "communication_s",
        "Time in which a collective ran, with profile on; it overlaps with the other parts.",
        Metric("communication", "ms", 1000, 1, "lower"),
    ),
    Column(
        "step_skew",
        "Slowest rank's step time over that of the median rank, less 1; median over the timed steps.",
        Metric("step skew", "%", 100, 1, "lower"),
        kind=NUMBER,
    ),
    Column(
        "forward_skew",
        "As `step_skew`, for the first forward pass of each step, which usually holds no collective.",
        Metric("forward skew", "%", 100, 1, "lower"),
        kind=NUMBER,
    ),
    Column(
        "peak_allocated_gib",
        "Peak of the memory that torch allocated on any GPU during the steps, not while the model was built.",
        Metric("memory allocated", "GiB", digits=2, better="lower"),
    ),
    Column(
        "peak_reserved_gib",
        "Peak of the memory that torch reserved on any GPU, its unused cache included, during the steps, not "
        "while the model was built.",
        Metric("memory reserved", "GiB", digits=2, better="lower"),
    ),
    Column(
        "device_memory_gib",
        "Peak of the memory in use on any GPU (NVML, all processes, no driver reserve) during the steps, not "
        "while the model was built.",
        Metric("memory on device", "GiB", digits=2, better="lower"),
    ),
    Column(
        "host_memory_gib",
        "Peak resident memory of the ranks of the fullest host, shared pages counted once, during the steps, "
        "not while the model was built.",
        Metric("host memory", "GiB", digits=2, better="lower"),
    ),
    Column(
        "gpu_util_pct",
        "Share of the timed steps in which any kernel ran. A GPU that waits for others in NCCL counts as "
        "busy, so a high value does not mean that the GPU is used well. Missing where the timed steps took "
        "less than 5 s: NVML reports the share of up to a second before each sample, so that the figure of a "
        "shorter time is noise.",
        Metric("utilization", "%", better="higher"),
    ),
    Column(
        "power_w",
        "Mean per GPU over the timed steps: energy divided by time.",
        Metric("power", "W", better="lower"),
        formula="energy_j / timed_s / gpus",
    ),
    Column(
        "energy_j", "Sum over all GPUs, without the hosts.", Metric("energy of the timed steps", "J", better="lower")
    ),
    Column(
        "tokens_per_joule",
        "Tokens of the timed steps divided by the energy of the GPUs.",
        Metric("tokens/joule", digits=1, better="higher"),
        unit="tokens/J",
        formula="tokens_per_s_per_gpu / power_w",
    ),
    Column(
        "run_energy_kwh",
        "Sum over all GPUs from launch to end, model building and warm-up included, without the hosts.",
        Metric("energy of the run", "Wh", 1000, 1, "lower"),
    ),
    Column(
        "gpu_hours",
        "From launch to end.",
        Metric("GPU-hours of the run", "h", digits=3, better="lower"),
        formula="wall_s / 3600 x gpus",
    ),
    Column(
        "cost",
        "GPU-hours times price_per_gpu_hour.",
        Metric("cost of the run", digits=2, better="lower"),
        unit="currency",
        formula="gpu_hours x price_per_gpu_hour",
    ),
    Column(
        "tflops_per_gpu",
        "Model FLOPs: 6 x active parameters + 12 x layers with attention x hidden x sequence per token; in a "
        "mixture of experts the chosen ones are active. With LoRA, 4 x active + 2 x trainable parameters "
        "instead of 6 x active ones, because frozen weights have no gradient. By convention, the masked half "
        "of attention is counted.",
        Metric("TFLOP/s/GPU", digits=1, better="higher"),
        unit="TFLOP/s",
        formula="(6 x active_parameters + 12 x keys x width, summed over the layers with attention) x "
        "tokens_per_s_per_gpu / 1e12",
    ),
    Column(
        "hardware_tflops_per_gpu",
        "Including the blocks that activation checkpointing recomputes.",
        Metric("hardware TFLOP/s/GPU", digits=1, better="higher"),
        unit="TFLOP/s",
        formula="(FLOPs per token of the model + those recomputed) x tokens_per_s_per_gpu / 1e12",
    ),
    Column(
        "mfu",
        "TFLOP/s divided by the vendor's dense peak for the precision.",
        Metric("MFU", "%", 100, 1, "higher"),
        formula="tflops_per_gpu / dense peak in the vendor's data sheet",
    ),
    Column(
        "mfu_of_matmul",
        "TFLOP/s divided by those of a large matrix product measured on the same GPU model.",
        Metric("MFU of a measured matmul", "%", 100, 1, "higher"),
        formula="tflops_per_gpu / measured rate of a large matrix product",
    ),
    Column(
        "loss_last",
        "Loss of the last step, mean over ranks.",
        Metric("last loss", digits=3, better="lower"),
        kind=NUMBER,
    ),
    Column("grad_norm_last", "Of the last step, before clipping.", Metric("gradient norm", digits=3)),
    Column(
        "update_rms",
        "Root mean square over the weights of their change in all steps, without weight decay.",
        Metric("weight change", digits=6),
    ),
    # The others are compared in no table.
    Column(
        "masked_flops_pct",
        "Share of `tflops_per_gpu` that a causal mask makes unnecessary: half of attention.",
        formula="100 x (6 x keys^2 x width / seq_len, summed over the layers with attention) / FLOPs per token",
    ),
    Column(
        "days_per_100b_tokens",
        "Days that 100 billion tokens take at this throughput, without restarts or pauses.",
        unit="days",
        formula="1e11 / tokens_per_s / 86,400",
    ),
    Column(
        "needed_gib",
        "Memory that a run out of memory would have needed at least.",
        formula="oom_allocated_gib + oom_requested_gib",
    ),
    Column(
        "samples_per_s_running",
        "Running average that DeepSpeed's timer prints; it leaves out data loading.",
        unit="samples/s",
    ),
    Column(
        "tokens_per_s_logged",
        "Throughput as logged, where it is known to be wrong and a corrected one stands beside it.",
        unit="tokens/s",
    ),
    *each(
        AMOUNT,
        step_time_median_s="Median of the timed step times.",
        rank_host_memory_gib="Largest resident host memory of a single rank, shared pages included.",
        oom_allocated_gib="Memory allocated at the moment when an allocation failed.",
        oom_requested_gib="Size of the allocation that failed.",
        oom_step="Optimizer step in which memory ran out, from 1; missing while the model was built.",
        sm_clock_mhz="Mean clock of the GPUs' multiprocessors over the timed steps.",
        skipped_steps="Timed steps whose update the fp16 loss scaler skipped.",
        skipped_warmup_steps="Warm-up steps whose update the fp16 loss scaler skipped.",
        slow_steps="Timed steps that took more than twice the median.",
        recompilations="Graphs that torch.compile compiled during the timed steps.",
        graph_breaks="Different reasons for which torch.compile left its graph in the run; missing if not compiled.",
        nan_steps="Steps with a loss that is not a number, as Megatron logs them.",
        timed_steps="Optimizer steps that the speed is measured over.",
        train_runtime_s="Wall time of a whole training, as transformers' Trainer logs it.",
        steps_per_s="Optimizer steps per second, as transformers' Trainer logs it.",
        step_time_logged_s="Step time as logged, where it is known to be wrong and a corrected one stands beside it.",
        parameters="Parameters of the model, tied embeddings counted once.",
        trainable_parameters="Parameters that are trained: fewer than `parameters` with LoRA.",
        active_parameters="Parameters that work on one token: fewer than `parameters` in a mixture of experts, where "
        "only the chosen experts count; more where blocks share weights, which count at each use.",
    ),
    *each(
        NUMBER,
        loss_first="Loss of the first step, warm-up included, mean over ranks.",
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
    Column("step_time_s", "Time between two boundaries in the GPU's queue; on a CPU, of a monotonic clock."),
    Column("loss", "Loss, mean over ranks and micro-batches.", kind=NUMBER),
    Column("tokens", "Tokens of the step over all ranks."),
    Column("allocated_gib", "Most memory that torch had allocated on rank 0's GPU since the first step."),
    Column("reserved_gib", "Most memory that torch had reserved on rank 0's GPU since the first step."),
    Column("skipped", "True if the fp16 loss scaler skipped the update.", kind=FLAG),
    Column("grad_norm", "Norm of the gradients before clipping, where the engine computes it anyway."),
    Column("step_time_logged_s", "Step time as logged, where it is known to be wrong."),
]
_SAMPLES = [
    Column("t_s", "Time of the sample, since the launch.", kind=NUMBER),
    Column("host", "Host of the GPU; missing on one machine.", kind=TEXT),
    Column("gpu", "Index of the GPU on its host, in NVML's order.", kind=COUNT),
    Column("util_pct", "Share of NVML's last sampling period, of up to a second, in which some kernel ran."),
    Column("memory_used_gib", "Memory in use by all processes, without the driver's reserve."),
    Column("power_w", "Power as NVML reports it: on recent GPUs an average over a second."),
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
    column.name: replace(column.label, about=column.meaning) for column in FIGURES if column.label is not None
}
"""Measured figures that tables and pages compare, one value per run."""
MEMORY = ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib")
"""Figures of memory, the most informative first: views that need one use the first that was measured."""


def _names(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns]


KEYS, METRIC_COLUMNS, ENVIRONMENT = map(_names, (_NAMES[:3], FIGURES, MACHINE))
ORDER = _names(_PLACES)
"""Where a run is in the planned order of its sweep."""
PLANNED = [*ORDER, "model_name"]
"""What a sweep decides for a run besides its settings."""
SUMMARY_TEXTS = [*_names(TEXTS), "note"]
"""Texts beside the figures in the summary of `result.json`."""
PHASES = [name.removesuffix("_s") for name in _names(_PHASES)]
RUN_COLUMNS = list(RUNS)
RUN_NUMBERS = numbers(RUNS.values())
STEP_COLUMNS = list(STEPS)
STEP_NUMBERS = numbers(STEPS.values())
GPU_COLUMNS = list(SAMPLES)


def key_columns(names: Iterable[str]) -> list[str]:
    """Return the columns among `names` that are keys of DeepSpeed's configuration, in order."""
    return sorted(name for name in names if str(name).startswith(deepspeed_keys.PREFIX))
