"""What a user's script showed of its settings, compared with what it was asked for.

Rank 0 of a recorded script writes `observed.json` when it has seen its first steps: the program,
and the settings that the engine, the wrappers and the batches really had. A script that ignores an
argument would otherwise measure another setting under the name of the one that was asked for.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.training import LONG, text

EXACT, ROUNDED = 1e-6, 0.01
"""Relative differences of numbers that are equal; programs count large ones, such as buckets, in MiB."""
OPEN = "auto"
"""A value that leaves the choice to the program."""


def read(run: RunPaths) -> dict[str, Any]:
    """Return the settings that the script of a run showed; empty before it has shown any."""
    settings = (json_files.read_json(run.observed) or {}).get("settings")
    if not isinstance(settings, Mapping):
        return {}
    return {name: settings[name] for name in settings if name in DEFAULTS}


def differences(asked: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[str]:
    """Yield each setting whose value is not the one that was asked for: "micro_batch_size 8, not 4"."""
    for name, value in seen.items():
        wanted = asked.get(name)
        if wanted is None or value is None or wanted == OPEN:
            continue
        if not _are_equal(wanted, value):
            yield f"{name} {text(value)}, not {text(wanted)}"


def _are_equal(first: Any, second: Any) -> bool:
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return bool(first == second)
    tolerance = ROUNDED if abs(first) >= LONG else EXACT
    return math.isclose(first, second, rel_tol=tolerance)


def complete(run: RunPaths) -> None:
    """Put what the script showed where its settings are unknown in `experiment.json`, and its program and model."""
    settings = json_files.read_json(run.experiment)
    record = json_files.read_json(run.observed)
    if not settings or not record:
        return
    seen = read(run)
    for name, value in seen.items():
        if settings.get(name) is None:
            settings[name] = value
    settings["program"] = record.get("program") or settings.get("program")
    model = record.get("model")
    if model and settings.get("model") is None:
        settings |= {"model": model, "model_name": model_shapes.slug(model)}
    json_files.write_json(run.experiment, settings)
