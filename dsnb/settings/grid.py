"""The combinations that the grid, `include` and `exclude` of a params file describe, before any of them is checked."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from dsnb.errors import SettingsError
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.params_file import ParamsFile

MAX_RUNS = 10_000


def combinations(file: ParamsFile) -> list[dict[str, Any]]:
    """Return the settings of every experiment, unchecked, in the order of the file.

    Raises
    ------
    SettingsError
        If there are too many, or an axis or an entry of `exclude` is empty or unknown.
    """
    for entry in file.exclude:
        if not entry:
            raise SettingsError("exclude has an empty entry, which would exclude every run: name settings or remove it")
        known = Experiment.model_fields
        if unknown := [key for key in entry if key not in known and not key.startswith(deepspeed_keys.PREFIX)]:
            raise SettingsError([f"exclude: {checks.unknown_setting(key, Experiment.model_fields)}" for key in unknown])
    grid = [("grid", file.grid)] if file.grid or not file.include else []
    several = [{key: value for key, value in entry.items() if isinstance(value, list)} for entry in file.include]
    size = _size("grid", file.grid) * len(grid) + sum(_size("include", axes) for axes in several)
    if size * file.repeats > MAX_RUNS:
        raise SettingsError(f"grid: {size * file.repeats:,} runs: at most {MAX_RUNS:,} are allowed; split the sweep")
    chosen = [settings for _, axes in grid for settings in _product(file.defaults, axes)]
    further = [
        settings
        for entry, axes in zip(file.include, several, strict=True)
        for settings in _product({**file.defaults, **entry}, axes)
    ]
    return [settings for settings in chosen if not _excluded(settings, file.exclude)] + further


def _size(where: str, axes: dict[str, list[Any]]) -> int:
    """Return the number of combinations, without building them."""
    if empty := [key for key, values in axes.items() if not values]:
        raise SettingsError(f"{where}: {empty[0]} is an empty list: give at least one value or leave it out")
    return math.prod(len(values) for values in axes.values())


def _product(settings: dict[str, Any], axes: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for chosen in itertools.product(*axes.values()):
        yield {**settings, **dict(zip(axes, chosen, strict=True))}


def _excluded(settings: dict[str, Any], exclude: list[dict[str, Any]]) -> bool:
    complete = {**DEFAULTS, **settings}
    return any(all(complete.get(key) == value for key, value in entry.items()) for entry in exclude)
