"""accelerate's configuration in dsnb's settings."""

from collections.abc import Callable, Mapping
from typing import Any

from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange import from_deepspeed, from_fsdp
from dsnb.settings.exchange.imported import Imported
from dsnb.settings.exchange.incoming import INCOMING

IGNORED = set(INCOMING["accelerate"]["ignored"])
STRATEGIES = {"NO": "plain", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp"}
DEEPSPEED = "deepspeed_config."
FSDP = "fsdp_config.fsdp_"
PARALLEL = "parallelism_config.parallelism_config_"
ZERO_CONFIG = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
"""Keys of accelerate's own section -> DeepSpeed's."""


def read(
    config: Mapping[str, Any],
    open_file: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    model: str | None = None,
) -> Imported:
    """Return the settings of a configuration; `open_file` reads DeepSpeed's if a key names its file."""
    keys = deepspeed_keys.flattened({"deepspeed": config})
    keys = {path: value for path, value in keys.items() if value is not None and value != {}}
    found = Imported()
    kind = str(keys.pop("distributed_type", "NO")).upper()
    for key, setting in (("num_processes", "gpus"), ("num_machines", "nodes")):
        if key in keys:
            found.put(key, **{setting: keys.pop(key)})
    if keys.pop("use_cpu", False) is True:
        found.put("use_cpu", device="cpu")
    half = str(keys.pop("mixed_precision", "no")).lower()
    if kind == "DEEPSPEED":
        _deepspeed(keys, found, half, open_file, model)
    elif kind == "FSDP":
        options = {
            key.removeprefix(FSDP): value for key, value in keys.items() if key.startswith(FSDP)
        }
        from_fsdp.read((), options, found)
    elif kind in STRATEGIES:
        found.put("distributed_type", strategy=STRATEGIES[kind])
    else:
        found.problems.append(
            f"distributed_type is {kind!r}, which dsnb does not measure: use DEEPSPEED, FSDP or MULTI_GPU"
        )
    if kind != "DEEPSPEED":
        _precision(half, found)
    _groups(keys, found)
    _compilation(keys, found)
    for path in keys:
        if path not in IGNORED and not path.startswith(
            (DEEPSPEED, FSDP, PARALLEL, "dynamo_config.")
        ):
            found.dropped[path] = "no setting of dsnb"
    return found


def _precision(half: str, found: Imported) -> None:
    if half in {"bf16", "fp16"}:
        found.add("precision", half, "mixed_precision")
    elif half == "no":
        found.left_open["precision"] = "mixed_precision is 'no': give the format of the weights"
    else:
        found.problems.append(
            f"mixed_precision is {half!r}, which dsnb does not have: use bf16 or fp16"
        )


def _deepspeed(
    keys: Mapping[str, Any],
    found: Imported,
    half: str,
    open_file: Callable[[str], Mapping[str, Any] | None],
    model: str | None,
) -> None:
    """Add the configuration in DeepSpeed's file, or in accelerate's own section."""
    path = keys.get(DEEPSPEED + "deepspeed_config_file")
    config: Mapping[str, Any] | None
    if path:
        config = open_file(path)
    else:
        own = {name: keys.get(DEEPSPEED + key) for key, name in ZERO_CONFIG.items()}
        config = deepspeed_keys.merged(
            {}, {name: value for name, value in own.items() if value is not None}
        )
        if half in {"bf16", "fp16"}:
            config[half] = {"enabled": True}
    if config is None:
        found.put("distributed_type", strategy="deepspeed")
        found.left_open["zero_stage"] = f"{path} is not there: import it, too, or give zero_stage"
        return
    found.include(from_deepspeed.read(config, model))


def _groups(keys: Mapping[str, Any], found: Imported) -> None:
    """Add the sizes of groups of ranks; those of sharding count if there are copies."""
    sizes = {
        key.removeprefix(PARALLEL): value for key, value in keys.items() if key.startswith(PARALLEL)
    }
    if sizes.get("dp_replicate_size", 1) > 1 and sizes.get("dp_shard_size", 1) > 1:
        found.put("dp_shard_size", shard_size=sizes["dp_shard_size"])
    if sizes.get("tp_size", 1) > 1:
        found.put("tp_size", tensor_parallel=sizes["tp_size"])
    for name in ("cp_size", "sp_size"):
        found.refuse_split(name, sizes.get(name, 1))


def _compilation(keys: Mapping[str, Any], found: Imported) -> None:
    backend = str(keys.get("dynamo_config.dynamo_backend", "NO")).upper()
    mode = str(keys.get("dynamo_config.dynamo_mode", "default"))
    if backend == "INDUCTOR":
        found.add("compile", mode.removesuffix("-no-cudagraphs"), "dynamo_config")
    elif backend != "NO":
        found.dropped["dynamo_config"] = f"dsnb compiles with Inductor, not {backend}"
