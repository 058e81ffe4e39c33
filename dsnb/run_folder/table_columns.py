"""The columns of the tables: runs, steps, and samples of a GPU, whoever measured them.

What a column means to a reader (title, unit, which way is better) is in `dsnb.runs.labels`.
"""

from collections.abc import Iterable

from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, SUPERVISION

SETTINGS = [name for name in DEFAULTS if name not in {"device", deepspeed_keys.NAME, *SUPERVISION}]
"""Settings that are columns; each key of DeepSpeed's configuration is a further one, if any run sets it."""
SHARING = ["data_parallel", "global_batch_size"]
"""Derived from the settings of dsnb's own runs; logs of other programs state them."""
METRIC_COLUMNS = [
    "tokens_per_s",
    "trained_tokens_per_s",
    "tokens_per_s_per_gpu",
    "of_plain",
    "samples_per_s",
    "step_time_s",
    "step_time_median_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "communication_s",
    "step_skew",
    "forward_skew",
    "tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu",
    "mfu_of_matmul",
    "masked_flops_pct",
    "days_per_100b_tokens",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "device_memory_gib",
    "host_memory_gib",
    "rank_host_memory_gib",
    "needed_gib",
    "oom_allocated_gib",
    "oom_requested_gib",
    "oom_step",
    "gpu_util_pct",
    "power_w",
    "energy_j",
    "tokens_per_joule",
    "run_energy_kwh",
    "gpu_hours",
    "cost",
    "sm_clock_mhz",
    "loss_first",
    "loss_last",
    "loss_mean",
    "grad_norm_last",
    "update_rms",
    "skipped_steps",
    "skipped_warmup_steps",
    "slow_steps",
    "recompilations",
    "graph_breaks",
    "nan_steps",
    "timed_steps",
    "train_runtime_s",
    "steps_per_s",
    "samples_per_s_running",
    "tokens_per_s_logged",
    "step_time_logged_s",
    "parameters",
    "trainable_parameters",
    "active_parameters",
]
PHASES = ["start", "build", "warmup", "timed", "stop", "wall"]
ENVIRONMENT = ["host", "gpu_name", "gpu_memory_gib", "cpu", "cores", "driver", "python", "torch", "cuda", "nccl"]
ENVIRONMENT += ["deepspeed", "transformers", "power_source", "dsnb", "git_commit", "date_utc", "variables"]
KEYS = ["sweep", "experiment", "repeat"]
ORDER = ["order_seed", "order_place"]
"""Where a run is in the planned order of its sweep."""
PLANNED = [*ORDER, "model_name"]
"""What a sweep decides for a run besides its settings."""
RUN_COLUMNS = [
    *KEYS,
    "status",
    "cause",
    "source",
    *SETTINGS,
    "device",
    *SHARING,
    "inputs",
    "hosts",
    *METRIC_COLUMNS,
    "attention_used",
    "attention_kernel",
    "oom_phase",
    *(f"{phase}_s" for phase in PHASES),
    "notebook_s",
    *ORDER,
    *ENVIRONMENT,
    "note",
    "provenance",
    "run_dir",
]
RUN_NUMBERS = [
    "repeat",
    *(name for name in SETTINGS if isinstance(DEFAULTS[name], int | float) and not isinstance(DEFAULTS[name], bool)),
    *SHARING,
    *METRIC_COLUMNS,
    *(f"{phase}_s" for phase in PHASES),
    "notebook_s",
    *ORDER,
    "gpu_memory_gib",
    "cores",
]
STEP_COLUMNS = [
    "step",
    "phase",
    "t_s",
    "step_time_s",
    "loss",
    "tokens",
    "allocated_gib",
    "reserved_gib",
    "skipped",
    "grad_norm",
    "step_time_logged_s",
]
STEP_NUMBERS = [name for name in STEP_COLUMNS if name not in {"phase", "skipped"}]
GPU_COLUMNS = ["t_s", "host", "gpu", "util_pct", "memory_used_gib", "power_w", "energy_j", "sm_clock_mhz"]


def key_columns(names: Iterable[str]) -> list[str]:
    """Return the columns among `names` that are keys of DeepSpeed's configuration, in order."""
    return sorted(name for name in names if str(name).startswith(deepspeed_keys.PREFIX))
