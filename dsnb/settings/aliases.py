"""Former names and defaults of settings: params files, `--set`, notebooks and old run folders may still use them."""

from collections.abc import Mapping
from typing import Any

from dsnb.settings.training import Training, compile_mode

CURRENT_NAMES = {"hang_limit_s": "step_timeout_s"}
"""Former name -> current name."""
_DEFAULTS = {name: field.default for name, field in Training.model_fields.items()}


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their current names; where both names are given, the current one counts."""
    settings = {
        CURRENT_NAMES.get(key, key): settings[key] for key in settings if CURRENT_NAMES.get(key) not in settings
    }
    if isinstance(settings.get("compile"), bool):
        settings["compile"] = compile_mode(settings["compile"])
    return settings


def with_former_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with what it did where its record has no such setting yet.

    DeepSpeed accumulated the gradients of native bf16 in bf16 before `grad_accum_dtype` said otherwise, and on GPUs
    torch's allocator was the default one before `allocator` chose.
    """
    if settings and "allocator" not in settings and settings.get("device") != "cpu":
        settings = {**settings, "allocator": "default"}
    if "grad_accum_dtype" in settings:
        return dict(settings)
    every = {**_DEFAULTS, **settings}
    native_bf16 = (every["strategy"], every["precision"], every["mixed_precision"]) == ("deepspeed", "bf16", "native")
    several = isinstance(every["grad_accum"], int) and every["grad_accum"] > 1
    return {**settings, "grad_accum_dtype": "bf16"} if native_bf16 and several else dict(settings)
