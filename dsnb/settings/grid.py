"""The combinations that the grid, `include` and `exclude` of a params file describe, before any of them is checked."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from dsnb.errors import SettingsError
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import DEFAULTS
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
        unknown = [key for key in entry if key not in DEFAULTS and not key.startswith(deepspeed_keys.PREFIX)]
        if unknown:
            raise SettingsError([f"exclude: {checks.unknown_setting(key, DEFAULTS)}" for key in unknown])
    grids: list[tuple[dict[str, Any], dict[str, list[Any]]]] = (
        [({}, file.grid)] if file.grid or not file.include else []
    )
    includes = [
        (entry, {key: value for key, value in entry.items() if isinstance(value, list)}) for entry in file.include
    ]
    for where, axes in (*(("grid", axes) for _, axes in grids), *(("include", axes) for _, axes in includes)):
        if empty := [key for key, values in axes.items() if not values]:
            raise SettingsError(f"{where}: {empty[0]} is an empty list: give at least one value or leave it out")
    size = sum(math.prod(map(len, axes.values())) for _, axes in grids + includes) * file.repeats
    if size > MAX_RUNS:
        raise SettingsError(f"grid: {size:,} runs: at most {MAX_RUNS:,} are allowed; split the sweep")
    chosen = [settings for settings in _product(file.defaults, grids) if not _excluded(settings, file.exclude)]
    return [*chosen, *_product(file.defaults, includes)]


def _product(
    defaults: dict[str, Any], entries: list[tuple[dict[str, Any], dict[str, list[Any]]]]
) -> Iterator[dict[str, Any]]:
    """Yield every combination of the axes of each entry, on top of its other settings."""
    for entry, axes in entries:
        for values in itertools.product(*axes.values()):
            yield {**defaults, **entry, **dict(zip(axes, values, strict=True))}


def _excluded(settings: dict[str, Any], exclude: list[dict[str, Any]]) -> bool:
    complete = {**DEFAULTS, **settings}
    return any(all(complete.get(key) == value for key, value in entry.items()) for entry in exclude)
