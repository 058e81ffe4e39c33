"""The fields of a params file, and the settings that its grid, `include` and `exclude` describe."""

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.settings import checks, flat_keys
from dsnb.settings.experiment import CURRENT_NAMES, DEFAULTS, Experiment, with_current_names

MAX_RUNS = 10_000


def as_axes(settings: Any) -> Any:
    """Return settings under their current names, with every key of `deepspeed` and `script` as a separate setting.

    Anything but a mapping stays as it is: pydantic refuses it.
    """
    if not isinstance(settings, Mapping):
        return settings
    axes = {}
    for name, value in with_current_names(settings).items():
        if name not in flat_keys.NAMES and not flat_keys.is_key(name):
            axes[name] = value
    for name in flat_keys.NAMES:
        keys = flat_keys.flattened(settings, name)
        if isinstance(keys, Mapping):
            axes |= {f"{name}.{key}": value for key, value in keys.items()}
        else:
            axes[name] = keys
    return axes


CURRENT = BeforeValidator(as_axes)


class ParamsFile(BaseModel):
    """The content of a params file, before its grid is multiplied."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, defer_build=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the output folder: letters, digits, '.', '_' and '-'."""
    question: str = ""
    """The question that the sweep answers; the report begins with it."""
    command: str = ""
    """Your own program, which every run starts in place of dsnb's training."""
    defaults: Annotated[dict[str, Any], CURRENT] = {}
    """Settings of every run."""
    grid: Annotated[dict[str, list[Any]], CURRENT] = {}
    """Lists of values; every combination is an experiment."""
    include: list[Annotated[dict[str, Any], CURRENT]] = []
    """Further experiments: settings on top of the defaults; lists are multiplied within their entry."""
    exclude: list[Annotated[dict[str, Any], CURRENT]] = []
    """Combinations of the grid to leave out: those with all the values of one entry."""
    repeats: int = Field(default=1, strict=True, ge=1, le=1000)
    """Number of runs of every experiment."""
    order: Literal["random", "listed"] = "random"
    """Order of the experiments within each repeat: random by `order_seed`, or as listed."""
    order_seed: int = Field(default=0, strict=True, ge=0, lt=2**32)
    """Seed of the random order; the same seed gives the same order."""
    expect_samples_per_s: float | None = Field(default=None, strict=True, gt=0, allow_inf_nan=False)
    """Least sequences per second of every node; a slower group of nodes has failed."""


def read_params(path: str | Path) -> ParamsFile:
    """Read a params file; a SettingsError has a sentence for every unknown or wrong field."""
    path = Path(path)
    if path.parent.name == "params" and not path.parent.is_dir():
        raise SettingsError(
            f"there is no folder {str(path.parent)!r}: `dsnb init` writes one, with params files in it"
        )
    content = plain_yaml.read(path, "params file")
    if not isinstance(content, dict):
        raise SettingsError(f"params file {str(path)!r} holds no settings: give at least 'name'")
    return validated(content, path)


def validated(content: dict[str, Any], path: str | Path) -> ParamsFile:
    """Return the checked content of a params file; `path` names it in messages."""
    try:
        return ParamsFile.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    raise SettingsError(
        [f"params file {str(path)!r}: {_problem(dict(detail))}" for detail in details]
    )


def _problem(detail: dict[str, Any]) -> str:
    """Return the sentence for one of pydantic's error details."""
    key = str(detail["loc"][0])
    fields = ParamsFile.model_fields
    if detail["type"] == "missing":
        return f"{key} is missing: add it"
    if key in fields:
        return checks.invalid_value(detail)
    where = "put settings below 'defaults:'"
    if key in DEFAULTS or key in CURRENT_NAMES or flat_keys.is_key(key):
        return f"{key!r} is a setting of runs: {where}, or below 'grid:' with a list of values"
    if checks.closest_match(key, [*fields, *DEFAULTS]) in DEFAULTS:
        return f"{checks.unknown_setting(key, DEFAULTS)} {where}"
    return checks.unknown_setting(key, fields)


def combinations(file: ParamsFile) -> list[dict[str, Any]]:
    """Return the settings of every experiment, unchecked, in the order of the file."""
    grids = [file.grid] if file.grid or not file.include else []
    _check_exclude(file)
    _check_size(file.repeats, {"grid": grids, "include": file.include})
    shared = file.defaults
    if file.command:
        shared = {"command": file.command, **shared}
    chosen = []
    for entries, exclude in ((grids, file.exclude), (file.include, [])):
        for entry in entries:
            axes = _axes(entry)
            for values in itertools.product(*axes.values()):
                settings = {**shared, **entry, **dict(zip(axes, values, strict=True))}
                if not _excluded(settings, exclude):
                    chosen.append(settings)
    return chosen


def _check_exclude(file: ParamsFile) -> None:
    problems: list[str] = []
    for entry in file.exclude:
        if not entry:
            raise SettingsError(
                "exclude has an empty entry, which would exclude every run: name settings or remove it"
            )
        for key in entry:
            if key not in DEFAULTS and not flat_keys.is_key(key):
                problems.append(f"exclude: {checks.unknown_setting(key, DEFAULTS)}")
    if problems:
        raise SettingsError(problems)


def _check_size(repeats: int, fields: Mapping[str, list[dict[str, Any]]]) -> None:
    size = 0
    for where, entries in fields.items():
        for axes in map(_axes, entries):
            empty = next((key for key, values in axes.items() if not values), None)
            if empty:
                raise SettingsError(
                    f"{where}: {empty} is an empty list: give at least one value or leave it out"
                )
            size += math.prod(map(len, axes.values())) * repeats
    if size > MAX_RUNS:
        raise SettingsError(
            f"grid: {size:,} runs: at most {MAX_RUNS:,} are allowed; split the sweep"
        )


def experiments(
    combinations: Iterable[Mapping[str, Any]],
) -> tuple[dict[int, Experiment], dict[int, list[str]]]:
    """Return the allowed experiments, and the problems of the others, by place."""
    allowed: dict[int, Experiment] = {}
    refused: dict[int, list[str]] = {}
    for place, settings in enumerate(combinations):
        try:
            allowed[place] = Experiment(**{str(key): value for key, value in settings.items()})
        except SettingsError as error:
            refused[place] = error.problems
    return allowed, refused


def _axes(entry: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings with several values."""
    return {key: value for key, value in entry.items() if isinstance(value, list)}


def _excluded(settings: dict[str, Any], exclude: list[dict[str, Any]]) -> bool:
    complete = {**DEFAULTS, **settings}
    return any(all(complete.get(key) == value for key, value in entry.items()) for entry in exclude)
