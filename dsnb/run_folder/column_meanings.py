"""What every column of the tables means, its unit and, where it is derived, its formula: the text of the reference.

Titles, and the meanings that views show beside a figure, are in `dsnb.runs.labels`; columns described there have no
second description here. A test fails when a column has none.
"""

UNITS = {
    "tokens_per_s_per_gpu": "tokens/s",
    "tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
    "steps_per_s": "steps/s",
    "tokens_per_joule": "tokens/J",
    "tflops_per_gpu": "TFLOP/s",
    "algbw_gb_per_s": "GB/s",
    "busbw_gb_per_s": "GB/s",
    "days_per_100b_tokens": "days",
    "gpu_hours": "h",
    "price_per_gpu_hour": "currency per hour",
    "cost": "currency",
    "step_skew": "fraction",
    "forward_skew": "fraction",
    "mfu": "fraction",
    "mfu_of_matmul": "fraction",
}
"""Units of columns whose name does not end with one; the longest matching part of a name counts."""
SUFFIXES = {
    "_s": "s",
    "_us": "µs",
    "_gib": "GiB",
    "_w": "W",
    "_j": "J",
    "_kwh": "kWh",
    "_pct": "%",
    "_mhz": "MHz",
    "_bytes": "bytes",
}

RUNS = {
    "sweep": "Folder of the sweep below the folder that was loaded.",
    "experiment": "Name of the setting that was measured; repeats share it.",
    "repeat": "Number of the repeat, the k of `run<k>`.",
    "status": "How the run ended; only `ok` runs count in medians.",
    "cause": "Why the status is not `ok`, in one sentence; for a log that stops early, where it stops.",
    "source": "Who measured: `dsnb`, a program whose log was read, or a published table.",
    "device": "`cuda` or `cpu`.",
    "data_parallel": "Ranks, or groups of ranks, that each train on their own sequences.",
    "global_batch_size": "Sequences per optimizer step over all ranks.",
    "hosts": "Hosts of the run, as the hostfile names them; missing on one machine.",
    "step_time_median_s": "Median of the timed step times.",
    "masked_flops_pct": "Share of `tflops_per_gpu` that a causal mask makes unnecessary: half of attention.",
    "days_per_100b_tokens": "Days that 100 billion tokens take at this throughput, without restarts or pauses.",
    "rank_host_memory_gib": "Largest resident host memory of a single rank, shared pages included.",
    "needed_gib": "Memory that a run out of memory would have needed at least.",
    "oom_allocated_gib": "Memory allocated at the moment when an allocation failed.",
    "oom_requested_gib": "Size of the allocation that failed.",
    "oom_step": "Optimizer step in which memory ran out, from 1; missing while the model was built.",
    "oom_phase": "Part of the step in which memory ran out: build, forward, loss, backward, optimizer, communication.",
    "sm_clock_mhz": "Mean clock of the GPUs' multiprocessors over the timed steps.",
    "loss_first": "Loss of the first step, warm-up included, mean over ranks.",
    "loss_mean": "Mean loss of a whole training, as transformers' Trainer logs it.",
    "skipped_steps": "Timed steps whose update the fp16 loss scaler skipped.",
    "skipped_warmup_steps": "Warm-up steps whose update the fp16 loss scaler skipped.",
    "slow_steps": "Timed steps that took more than twice the median.",
    "recompilations": "Graphs that torch.compile compiled during the timed steps.",
    "graph_breaks": "Different reasons for which torch.compile left its graph, in the whole run; none if not compiled.",
    "nan_steps": "Steps with a loss that is not a number, as Megatron logs them.",
    "timed_steps": "Optimizer steps that the speed is measured over.",
    "train_runtime_s": "Wall time of a whole training, as transformers' Trainer logs it.",
    "steps_per_s": "Optimizer steps per second, as transformers' Trainer logs it.",
    "samples_per_s_running": "Running average that DeepSpeed's timer prints; it leaves out data loading.",
    "tokens_per_s_logged": "Throughput as logged, where it is known to be wrong and a corrected one stands beside it.",
    "step_time_logged_s": "Step time as logged, where it is known to be wrong and a corrected one stands beside it.",
    "parameters": "Parameters of the model, tied embeddings counted once.",
    "trainable_parameters": "Parameters that are trained: fewer than `parameters` with LoRA.",
    "active_parameters": "Parameters that work on one token: fewer than `parameters` in a mixture of experts, "
    "where only the chosen experts count; more where blocks share weights, which count at each use.",
    "attention_used": "Attention implementation that the model really used.",
    "attention_kernel": "Kernel that computed attention in a warm-up step: cudnn, flash, efficient, flex, or math (not "
    "fused); missing without a warm-up step.",
    "start_s": "Launch to the first line of the workers.",
    "build_s": "Building model, engine and data.",
    "warmup_s": "Warm-up steps.",
    "timed_s": "Timed steps.",
    "stop_s": "End of the last step to the end of the last process.",
    "wall_s": "Launch to the end of the last process.",
    "notebook_s": "Execution of the run's notebook, its kernel's start included.",
    "host": "Name of the machine, of the first one where there are several.",
    "gpu_name": "Model of the GPU.",
    "gpu_memory_gib": "Memory that a GPU has, or `memory_limit_gib` if that is less.",
    "cpu": "Model of the CPU.",
    "cores": "CPU cores that the run could use.",
    "driver": "Version of the NVIDIA driver.",
    "python": "Version of Python.",
    "torch": "Version of torch.",
    "cuda": "Version of CUDA that torch was built with.",
    "nccl": "Version of NCCL that torch uses.",
    "deepspeed": "Version of DeepSpeed.",
    "transformers": "Version of transformers.",
    "power_source": "What power and energy were measured with: the GPU's energy counter, or samples of its power.",
    "dsnb": "Version of dsnb.",
    "git_commit": "Commit of the dsnb checkout; `-dirty` where files differ from it.",
    "variables": "Environment variables set for the ranks: those of `TORCH*`, `PYTORCH_*`, `CUDA_*`, `NVIDIA_*`, "
    "`NCCL_*`, `OMP_*`, `MKL_*`, `ATEN_*` and `DS_*`, with their values; empty if none was set.",
    "inputs": "Files that the run read (model, weights, tokenizer, text), each with the beginning of its digest.",
    "order_seed": "Seed of the random order in which the sweep planned its runs; missing for the listed order.",
    "order_place": "Place of the run in that order, from 1; in a sub-cluster, among its own runs.",
    "date_utc": "Date and time of the launch, UTC.",
    "note": "What is unusual about this run, such as skipped or slow steps.",
    "provenance": "Which figures of a log or table are as logged (or published) and which are derived.",
    "run_dir": "Folder of the run, or path of the log.",
}
"""Columns of `load_runs` that `dsnb.runs.labels` does not describe; settings are described where they are defined."""

TITLED = {
    "tokens_per_s_per_gpu": "Throughput per GPU; on a CPU, per rank.",
    "samples_per_s": "Sequences per second over all ranks.",
    "step_time_s": "Mean time of the timed optimizer steps.",
    "forward_s": "Forward pass of one step, with `profile: true`.",
    "backward_s": "Backward pass of one step, with `profile: true`.",
    "optimizer_s": "Optimizer step, with `profile: true`.",
    "communication_s": "Time in which a collective ran, with `profile: true`; it overlaps with the other parts.",
    "step_skew": "Slowest rank's step time over that of the median rank, less 1; median over the timed steps.",
    "forward_skew": "The same for the first forward pass of each step, which usually holds no collective.",
    "loss_last": "Loss of the last step, mean over ranks.",
}
"""Figures that `dsnb.runs.labels` names without describing them, since the title is enough there."""

FORMULAS = {
    "tokens_per_s": "tokens per step x timed steps / sum of the timed step times",
    "trained_tokens_per_s": "tokens_per_s x (1 - skipped_steps / timed_steps)",
    "tokens_per_s_per_gpu": "tokens_per_s / gpus",
    "samples_per_s": "tokens_per_s / seq_len",
    "global_batch_size": "micro_batch_size x grad_accum x data_parallel",
    "data_parallel": "gpus / (tensor_parallel x pipeline_parallel)",
    "tflops_per_gpu": "(6 x active_parameters + 12 x keys x width, summed over the layers with attention) "
    "x tokens_per_s_per_gpu / 1e12",
    "hardware_tflops_per_gpu": "(FLOPs per token of the model + those recomputed) x tokens_per_s_per_gpu / 1e12",
    "mfu": "tflops_per_gpu / dense peak in the vendor's data sheet",
    "mfu_of_matmul": "tflops_per_gpu / measured rate of a large matrix product",
    "masked_flops_pct": "100 x (6 x keys^2 x width / seq_len, summed over the layers with attention) / FLOPs per token",
    "days_per_100b_tokens": "1e11 / tokens_per_s / 86,400",
    "needed_gib": "oom_allocated_gib + oom_requested_gib",
    "power_w": "energy_j / timed_s / gpus",
    "tokens_per_joule": "tokens_per_s_per_gpu / power_w",
    "gpu_hours": "wall_s / 3600 x gpus",
    "cost": "gpu_hours x price_per_gpu_hour",
}
"""How a column of runs is derived from others; the functions and their sources are in `dsnb.formulas.metrics`."""

STEPS = {
    "sweep": "Sweep of the run.",
    "experiment": "Experiment of the run.",
    "repeat": "Repeat of the run.",
    "step": "Number of the optimizer step, from 1, warm-up included.",
    "phase": "`warmup` or `timed`.",
    "t_s": "End of the step, since the launch.",
    "step_time_s": "Time between two boundaries in the GPU's queue; on a CPU, of a monotonic clock.",
    "loss": "Loss, mean over ranks and micro-batches.",
    "tokens": "Tokens of the step over all ranks.",
    "allocated_gib": "Most memory that torch had allocated on rank 0's GPU since the first step.",
    "reserved_gib": "Most memory that torch had reserved on rank 0's GPU since the first step.",
    "skipped": "True if the fp16 loss scaler skipped the update.",
    "grad_norm": "Norm of the gradients before clipping, where the engine computes it anyway.",
    "step_time_logged_s": "Step time as logged, where it is known to be wrong.",
    "source": "Who measured.",
}

GPU_SAMPLES = {
    "t_s": "Time of the sample, since the launch.",
    "host": "Host of the GPU; missing on one machine.",
    "gpu": "Index of the GPU on its host, in NVML's order.",
    "util_pct": "Share of NVML's last sampling period, of up to a second, in which some kernel ran.",
    "memory_used_gib": "Memory in use by all processes, without the driver's reserve.",
    "power_w": "Power as NVML reports it: on recent GPUs an average over a second.",
    "energy_j": "Reading of the GPU's energy counter.",
    "sm_clock_mhz": "Clock of the multiprocessors.",
}

SUMMARY = {
    "n": "Runs that are `ok`; medians and spreads are over these.",
    "n_failed": "Runs with any other status.",
    "<metric>_median": "Median over the `ok` runs; missing where nothing was measured.",
    "<metric>_std": "Sample standard deviation over the `ok` runs (n - 1); missing for a single run.",
    "<metric>_min": "Lowest value of an `ok` run.",
    "<metric>_max": "Highest value of an `ok` run.",
    "<metric>_n": "`ok` runs that measured it.",
}
"""Columns of `summarize`; `<metric>` stands for every figure of `dsnb.runs.labels.METRIC_LABELS`."""


def unit(name: str) -> str:
    """Return the unit in which a column or setting is stored; empty for text, counts and settings without a unit."""
    if name in UNITS:
        return UNITS[name]
    known = [part for part in UNITS if part in name and "_per_" in part]
    if known:
        return UNITS[max(known, key=len)]
    return next((unit for suffix, unit in SUFFIXES.items() if name.endswith(suffix)), "")
