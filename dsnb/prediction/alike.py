"""Settings of other programs under the names that dsnb has for what takes the same time."""

from collections.abc import Mapping
from typing import Any

ALIKE: dict[str, dict[Any, Any]] = {
    "attention": {
        "flash_attention_2": "sdpa",
        "flash_attention_3": "sdpa",
        "flash_attention_4": "sdpa",
        "flash": "sdpa",
        "flex_attention": "sdpa",
        "xformers": "sdpa",
        "torch": "eager",
    },
    "compile": {True: "default", False: "off"},
    "offload": {"cpu": "optimizer-cpu", "optimizer": "optimizer-cpu", "all": "all-cpu"},
}
"""Values that other programs have, and the setting that takes the same time."""
OPTIMIZERS = {
    "8bit": "adamw-8bit",
    "8-bit": "adamw-8bit",
    "adafactor": "adafactor",
    "muon": "muon",
    "adam": "adamw",
}
"""Parts of the names of optimizers: FusedAdam, adamw_torch_fused, DeepSpeedCPUAdam."""
WAYS: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"strategy": "deepspeed", "zero_stage": stage} for stage in range(4)},
    "fsdp2": {"strategy": "fsdp"},
    "hsdp": {"strategy": "fsdp", "shard_size": 8},
    "single": {"strategy": "plain"},
    "none": {"strategy": "plain"},
}
"""Other names of strategies."""


def usual_names(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with values of other programs replaced by those that take the same time."""
    settings = dict(stated)
    for name, alike in ALIKE.items():
        value = settings.get(name)
        if isinstance(value, str | bool):
            settings[name] = alike.get(value, value)
    optimizer = str(settings.get("optimizer", "")).lower()
    for part, name in OPTIMIZERS.items():
        if part in optimizer:
            settings["optimizer"] = name
            break
    way = str(settings.get("strategy", "")).lower().replace("-", "").replace(" ", "")
    if way in WAYS:
        del settings["strategy"]
        settings = {**WAYS[way], **settings}
    return settings
