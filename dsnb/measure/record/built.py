"""What a recorded training was built of, for `worker.json`."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from dsnb.measure.record import seen
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

SIZES = {"layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size"}
"""Names in `worker.json` -> names in a configuration of transformers."""
NEEDED = ("seq_len", "activation_checkpointing", "lora_rank")
"""Settings without which the FLOPs of a token are unknown."""


def describe(model: Any, device: torch.device) -> dict[str, Any]:
    """Return properties of a model as built, and the software below it."""
    layers = seen.layers_of(model)
    described: dict[str, Any] = {
        **seen.parameters_of(model),
        "gpu_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cpu_threads": torch.get_num_threads(),
        "communication": _backend(),
        "versions": _versions(),
    }
    if layers:
        config = getattr(layers[-1], "config", None)
        formats = {str(weight.dtype) for weight in model.parameters() if weight.requires_grad}
        described["strategy"] = type(layers[0]).__name__
        described["attention"] = getattr(config, "_attn_implementation", None)
        described["parameter_dtype"] = " and ".join(sorted(formats)).replace("torch.", "")
        described |= {name: getattr(config, field, None) for name, field in SIZES.items()}
    return described


def _backend() -> Any:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.get_backend()
    return False


def _versions() -> dict[str, str | None]:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"cuda": torch.version.cuda, "nccl": nccl}


def flops_of(run: RunPaths, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the FLOPs of a token of a transformers model; if they are unknown, `flops_missing` says why."""
    if not run.model.exists():
        return {"flops_missing": "the model has no configuration of transformers"}
    unknown = [name for name in NEEDED if settings.get(name) is None]
    if unknown:
        return {"flops_missing": f"not known: {', '.join(unknown)}"}
    known = {name: value for name, value in settings.items() if value is not None}
    from dsnb.models.observe import flops

    with _unpartitioned(), torch.random.fork_rng(devices=[]):
        return flops.record(Experiment.recorded({**known, "model": str(run.model)}))


@contextlib.contextmanager
def _unpartitioned() -> Iterator[None]:
    """Build a model without ZeRO 3, which transformers would apply while the script's engine lives."""
    module: Any = sys.modules.get("transformers.integrations.deepspeed")
    if module is None:
        yield
        return
    shared = module._hf_deepspeed_config_weak_ref
    module.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        module._hf_deepspeed_config_weak_ref = shared
