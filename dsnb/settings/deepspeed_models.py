"""Checks keys against DeepSpeed's own configuration models, in a process of its own: its import takes seconds."""

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

LIMIT_S = 120.0


def problems(zero_stage: int, keys: Mapping[str, Any]) -> list[str]:
    """Return the keys that DeepSpeed does not know, and values that it refuses, one sentence each.

    Nothing is known where DeepSpeed is not installed.
    """
    if not importlib.util.find_spec("deepspeed"):
        return []
    return list(_checked(zero_stage, json.dumps(keys, sort_keys=True, default=str)))


@functools.cache
def _checked(zero_stage: int, keys: str) -> tuple[str, ...]:
    command = [sys.executable, "-m", "dsnb.train.config_check", str(zero_stage)]
    try:
        done = subprocess.run(command, input=keys, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return ()  # DeepSpeed cannot be imported here: the launch will say why
