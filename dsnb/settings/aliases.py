"""Former names of settings: params files, `--set`, notebooks and old run folders may still use them."""

from collections.abc import Mapping
from typing import Any

from dsnb.settings.training import compile_mode

CURRENT_NAMES = {"hang_limit_s": "step_timeout_s"}
"""Former name -> current name."""


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their current names; where both names are given, the current one counts."""
    settings = {
        CURRENT_NAMES.get(key, key): settings[key] for key in settings if CURRENT_NAMES.get(key) not in settings
    }
    if isinstance(settings.get("compile"), bool):
        settings["compile"] = compile_mode(settings["compile"])
    return settings


def conflicts(settings: Mapping[str, Any]) -> list[str]:
    """List the settings that are given under both of their names, one sentence each."""
    return [
        f"{former} is the former name of {current}, and both are given: remove {former}"
        for former, current in CURRENT_NAMES.items()
        if former in settings and current in settings
    ]
