"""Creates the run folder, checks the disk, and writes the records that precede the launch.

`deepspeed.json` is derived from the settings; everything else keeps DeepSpeed's default.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.measure.launcher import environment
from dsnb.settings import deepspeed_keys, inputs
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import PLANNED
from dsnb.settings.records.paths import RunPaths, SweepPaths
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.training import ADAMW

MIN_FREE_BYTES = 64 * 2**20
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def create_run_dir(home: Path, experiment: str) -> Path:
    """Create the next free run folder of an experiment; concurrent callers get different ones."""
    repeat = 1
    while True:
        folder = SweepPaths(home).run(experiment, repeat).dir.absolute()
        with writing(folder), contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        repeat += 1


def prepare(run: RunPaths, experiment: Experiment) -> None:
    """Make the folder ready for a launch with these settings; refuse a folder with a finished run.

    Settings that a sweep has written for this launch stay as they are, with the identity of the
    run.
    """
    record = RunRecord(run)
    record.check_readable()
    record.check_repeatable()
    if record.is_finished():
        raise SettingsError(
            f"run_dir is {str(run.dir)!r}: it holds a finished run; choose another folder"
        )
    was_used = run.environment.exists() or run.result.exists()
    with writing(run.dir):
        run.dir.mkdir(parents=True, exist_ok=True)
        check_free_space(run.dir)
        written = json_files.read_json(run.experiment) or {}
        if was_used or not experiment.model_dump().items() <= written.items():
            planned = {name: written[name] for name in PLANNED if name in written}
            files = inputs.digests(experiment)
            if files:
                planned["inputs"] = files
            begin(run, experiment, planned)
        ranks = environment.for_ranks(experiment.device, experiment.gpus, 0.0, experiment.allocator)
        json_files.write_json(run.environment, environment.describe(ranks))
        run.console.touch()


def begin(run: RunPaths, experiment: Experiment, planned: Mapping[str, Any]) -> None:
    """Make a folder that of an unfinished run with a new identity; only its notebook, which may be running, stays.

    `planned` has the values that the sweep chose for the run (`PLANNED`), and the digests of its
    input files.
    """
    of_launch = (run.environment, run.deepspeed, run.console, run.nodes, run.result)
    of_ranks = (run.steps, run.gpu, run.worker, run.failures, run.profile, run.trace)
    for path in (*of_launch, *of_ranks):
        path.unlink(missing_ok=True)
    record = {
        **experiment.model_dump(),
        "name": experiment.name,
        "model_name": model_shapes.slug(experiment.model),
        "run_id": secrets.token_hex(8),
        **planned,
    }
    json_files.write_json(run.experiment, record)


@contextlib.contextmanager
def writing(folder: Path, advice: str = "choose another folder") -> Iterator[None]:
    """Raise LaunchError with advice if the block cannot write to a folder."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{folder} cannot be written: {error.strerror}; {advice}") from error


def existing_part(folder: Path) -> Path:
    """Return a folder or, if it does not exist yet, the nearest one above it that does."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_writable(folder: Path) -> None:
    """Raise LaunchError if a run cannot write its records to this folder, which need not exist yet."""
    existing = existing_part(folder)
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
    free = shutil.disk_usage(existing_part(folder)).free
    if free < MIN_FREE_BYTES:
        raise LaunchError(
            f"{folder}: the disk is full ({free // 2**20} MiB free); free 64 MiB and start again"
        )


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Return the content of `deepspeed.json`; empty for the strategies of torch."""
    if not experiment.parallel_strategy.is_deepspeed:
        return {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.micro_batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        **_optimizer(experiment),
        "zero_optimization": _zero(experiment),
        "gradient_clipping": experiment.gradient_clipping,
        # DeepSpeed's progress lines would read the clock, and on GPUs synchronize, inside the timed
        # region.
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
    }
    if experiment.tensor_parallel > 1:  # each rank finds out how the model's blocks are split
        alone = experiment.pipeline_parallel == 1
        config["tensor_parallel"] = {"autotp_size": experiment.tensor_parallel if alone else 0}
    numbers = experiment.numbers
    if numbers.autocast:
        config["torch_autocast"] = {"enabled": True, "dtype": DTYPES[numbers.computed]}
    elif numbers.natively_half:
        config[numbers.computed] = {"enabled": True}
    if experiment.mixed_precision == "none":
        config["bf16"] |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    if experiment.gradient_checks == "off" and "bf16" in config:
        config["bf16"]["check_grad_overflow"] = False
    if numbers.accumulates_in_fp32:
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
    if experiment.zero_stage == 3 and experiment.compiles_blocks:
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
