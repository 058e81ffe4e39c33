"""Creates the run folder, checks the disk, and writes the records that precede the launch.

`deepspeed.json` is derived from the settings; everything else keeps DeepSpeed's default.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.measure.launcher import environment
from dsnb.settings import deepspeed_keys, inputs
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import ENDED, PLANNED
from dsnb.settings.records.paths import RunPaths, SweepPaths
from dsnb.settings.records.result import check_readable, unfinished
from dsnb.settings.training import ADAMW, accumulates_in_fp32, compiles_blocks

MIN_FREE_BYTES = 64 * 2**20
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_BY_COLUMN = (
    r"mlp\.c_fc",
    r"self_attn\.[qkv]_proj",
    "fc1",
    r"self_attention\.query_key_value",
    r"mlp\.dense_h_to_4h",
)
_BY_ROW = (
    r"(attn|mlp)\.c_proj",
    r"self_attn\.out_proj",
    "fc2",
    r"self_attention\.dense",
    r"mlp\.dense_4h_to_h",
)
SPLIT_LAYERS: list[dict[str, Any]] = [
    # GPT-2's query, key and value are three stacked matrices; BLOOM's are interleaved by head.
    {
        "patterns": [r".*attn\.c_attn\.weight$"],
        "partition_type": "column",
        "shape": [3, -1],
        "partition_dim": 0,
    },
    {"patterns": [rf".*{layer}\.weight$" for layer in _BY_COLUMN], "partition_type": "column"},
    {"patterns": [rf".*{layer}\.weight$" for layer in _BY_ROW], "partition_type": "row"},
]
"""How AutoTP splits the blocks of GPT-2 (with linear layers), OPT and BLOOM; other layers are replicated."""


def create_run_dir(home: Path, experiment: str) -> Path:
    """Create the next free run folder of an experiment; concurrent callers get different ones."""
    repeat = 1
    while True:
        folder = SweepPaths(home).run(experiment, repeat).dir.absolute()
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            repeat += 1
        except OSError as error:
            raise LaunchError(
                f"{folder} cannot be written: {error.strerror}; choose another folder"
            ) from error


def prepare(run: RunPaths, experiment: Experiment) -> None:
    """Create the run folder and write settings and environment; refuse a folder with a finished run."""
    check_readable(run)
    before = json_files.read_json(run.result)
    if before and before.get("status") in ENDED and not unfinished(run):
        raise SettingsError(
            f"run_dir is {str(run.dir)!r}: it holds a finished run; choose another folder"
        )
    try:
        run.dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(run)
        check_free_space(run.dir)
        ranks = environment.for_ranks(experiment.device, experiment.gpus, 0.0, experiment.allocator)
        write_description(run, experiment, environment.describe(ranks))
        run.console.touch()
    except OSError as error:
        raise LaunchError(
            f"{run.dir} cannot be written: {error.strerror}; choose another folder"
        ) from error


def write_description(run: RunPaths, experiment: Experiment, machine: dict[str, Any]) -> None:
    """Write the settings, DeepSpeed's configuration and the description of the machine."""
    write_experiment(run, experiment)
    json_files.write_json(run.deepspeed, deepspeed_config(experiment))
    json_files.write_json(run.environment, machine)


def write_experiment(
    run: RunPaths, experiment: Experiment, planned: Mapping[str, Any] | None = None
) -> None:
    """Write `experiment.json`: settings, names, a new identity of the run, and digests of input files.

    `planned` are the values that the sweep chose for the run (`PLANNED`), by default those already in the file.
    """
    if planned is None:
        before = json_files.read_json(run.experiment) or {}
        planned = {name: before.get(name) for name in PLANNED}
    settings = experiment.model_dump()
    names = {"name": experiment.name, "model_name": model_shapes.slug(experiment.model)}
    names["run_id"] = secrets.token_hex(8)
    further = {name: value for name, value in planned.items() if value is not None}
    further |= {"inputs": files} if (files := inputs.digests(settings)) else {}
    json_files.write_json(run.experiment, {**settings, **names, **further})


def check_writable(folder: Path) -> None:
    """Raise LaunchError if a run cannot write its records to this folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise LaunchError(
            f"{folder} cannot be written: {existing} is no folder; choose another --output"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise LaunchError(
            f"{folder} cannot be written: {existing} is read-only; choose another --output"
        )


def check_free_space(folder: Path) -> None:
    """Raise LaunchError if the records of a run may not fit on the disk."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if (free := shutil.disk_usage(existing).free) < MIN_FREE_BYTES:
        raise LaunchError(
            f"{folder}: the disk is full ({free // 2**20} MiB free); free 64 MiB and start again"
        )


def remove_leftovers(run: RunPaths) -> None:
    """Remove the files of an unfinished run, except the notebook, which may be running."""
    written = (run.steps, run.gpu, run.console, run.worker, run.failures, run.result, run.nodes)
    for path in (*written, run.profile, run.trace):
        path.unlink(missing_ok=True)


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Return the content of `deepspeed.json`; empty for the strategies of torch."""
    if experiment.strategy != "deepspeed":
        return {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.micro_batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        **_optimizer(experiment),
        "zero_optimization": _zero(experiment),
        "gradient_clipping": experiment.gradient_clipping,
        # DeepSpeed's progress lines would read the clock, and on GPUs synchronize, inside the timed region.
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
    }
    if experiment.tensor_parallel > 1:  # the worker splits the stages of a pipeline
        config["tensor_parallel"] = {
            "autotp_size": experiment.tensor_parallel if experiment.pipeline_parallel == 1 else 0,
            "partition_config": {"use_default_specs": False, "layer_specs": SPLIT_LAYERS},
        }
    if experiment.precision in DTYPES:
        if experiment.mixed_precision == "autocast":
            config["torch_autocast"] = {"enabled": True, "dtype": DTYPES[experiment.precision]}
        else:
            config[experiment.precision] = {"enabled": True}
    if experiment.gradient_checks == "off" and "bf16" in config:
        config["bf16"]["check_grad_overflow"] = False
    if accumulates_in_fp32(experiment.model_dump()):
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if experiment.compile == "deepcompile":
        config["compile"] = {"deepcompile": True}
    return deepspeed_keys.merged(config, experiment.deepspeed)


def _optimizer(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration of DeepSpeed's optimizer; Adafactor is torch's and built in the worker."""
    if experiment.optimizer == "adafactor":
        return {"zero_allow_untested_optimizer": True}
    if experiment.optimizer == "muon":
        kind, params = "Muon", {"weight_decay": ADAMW["weight_decay"]}
    else:
        kind, params = "AdamW", {**ADAMW, "betas": list(ADAMW["betas"])}
    if experiment.device == "cpu":
        params["torch_adam"] = (
            True  # DeepSpeed's FusedAdam takes a minute to compile and is no faster there
        )
    return {"optimizer": {"type": kind, "params": {"lr": experiment.learning_rate, **params}}}


def _zero(experiment: Experiment) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": experiment.zero_stage}
    what, _, device = experiment.offload.partition("-")
    if what != "none":
        zero["offload_optimizer"] = {"device": device, "pin_memory": experiment.device == "cuda"}
    if device == "nvme":
        zero["offload_optimizer"]["nvme_path"] = os.path.expanduser(experiment.nvme_path)
    if what == "all":
        zero["offload_param"] = zero["offload_optimizer"]
    if experiment.overlap_comm != "auto":
        zero["overlap_comm"] = experiment.overlap_comm == "on"
    if experiment.bucket_elements:
        zero |= dict.fromkeys(
            ("reduce_bucket_size", "allgather_bucket_size"), experiment.bucket_elements
        )
    if experiment.gradient_checks == "off":
        zero["compute_grad_norm"] = False
    if experiment.zero_stage == 3 and compiles_blocks(experiment.model_dump()):
        zero["memory_efficient_linear"] = (
            False  # it is an autograd function of DeepSpeed's, opaque to the compiler
        )
    if experiment.zeropp in {"weights", "all"}:
        zero["zero_quantized_weights"] = True
    if experiment.zeropp in {"gradients", "all"}:
        zero["zero_quantized_gradients"] = True
    if experiment.zeropp in {"partition", "all"}:
        zero["zero_hpz_partition_size"] = max(1, experiment.gpus // experiment.nodes)
    return zero
