"""A params file -> the list of runs: reading it safely, multiplying the grid, naming, and refusing what cannot be run.

name: gpt2_zero            # folder under outputs/
question: ...              # stands on top of the report
defaults: {model: gpt2}    # settings of every run
grid: {zero_stage: [0, 1]} # every combination of the lists
exclude: [{zero_stage: 1, precision: fp32}]
include: [{zero_stage: 3}] # further runs, on top of the defaults
repeats: 3
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsnb import checks, paths
from dsnb.errors import SettingsError
from dsnb.experiment import Experiment
from dsnb.paths import RunPaths, SweepPaths

MOST_RUNS = 10_000
MOST_BYTES = 1_000_000


class ParamsFile(BaseModel):
    """The content of a params file, before its grid is multiplied."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Folder of the outputs: letters, digits, '.', '_' and '-'."""
    question: str = ""
    """What the sweep is to answer, in words; the report begins with it."""
    defaults: dict[str, Any] = {}
    """Settings of every run."""
    grid: dict[str, list[Any]] = {}
    """Lists of values; every combination is a run."""
    include: list[dict[str, Any]] = []
    """Further runs: settings on top of the defaults."""
    exclude: list[dict[str, Any]] = []
    """Combinations of the grid to leave out: those that have all the values of one entry."""
    repeats: int = Field(default=1, strict=True, ge=1, le=1000)
    """How often every experiment is run."""


@dataclass(frozen=True)
class Run:
    """One run to be made."""

    name: str
    experiment: Experiment
    repeat: int
    paths: RunPaths


@dataclass(frozen=True)
class Sweep:
    """All runs of a params file, repeats outermost, so that a drift of the machine meets every setting alike."""

    name: str
    question: str
    runs: tuple[Run, ...]
    paths: SweepPaths
    params: dict[str, Any]
    """The params file as it is run, after `--set`."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases, which can blow a small file up, and without silently doubled keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SettingsError("aliases (*name) are not allowed in a params file: write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        counts = Counter(str(key.value) for key, _ in node.value) if isinstance(node, yaml.MappingNode) else Counter()
        if doubled := sorted(key for key, count in counts.items() if count > 1):
            raise SettingsError(f"'{doubled[0]}' stands twice in the params file: keep one")
        return super().construct_mapping(node, deep)


def read_params(path: str | Path) -> ParamsFile:
    """Read a params file.

    Raises
    ------
    SettingsError
        If it is missing, too large, not plain YAML, or not of the right form.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"params file {str(path)!r} cannot be read: {reason}; check the path") from error
    if size > MOST_BYTES:
        raise SettingsError(f"params file {str(path)!r} has {size:,} bytes: at most {MOST_BYTES:,} are allowed")
    try:
        content = yaml.load(text, _PlainLoader)  # noqa: S506  (a SafeLoader)
    except SettingsError as error:
        raise SettingsError(f"params file {str(path)!r}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"params file {str(path)!r}: {_yaml_problem(error)}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"params file {str(path)!r} holds no settings: it needs at least 'name'")
    return _validated(content, path)


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0][:200]
    if "constructor for the tag" in problem:
        return f"{where}tags such as !!python/... are not allowed, write plain values ({problem})"
    return f"{where}this is not valid YAML ({problem})"


def _validated(content: dict[str, Any], path: Path) -> ParamsFile:
    fields = ParamsFile.model_fields
    problems = [checks.unknown_key(key, fields) for key in content if key not in fields]
    try:
        file = ParamsFile(**{key: value for key, value in content.items() if key in fields})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] == "missing":
                problems.append(f"{detail['loc'][0]} is missing: add it")
            elif detail["type"] == "string_pattern_mismatch":
                problems.append(f"name is {checks.shown(detail['input'])}: use letters, digits, '.', '_' and '-' only")
            else:
                problems.append(checks.invalid_value(dict(detail)))
    if problems:
        raise SettingsError([f"params file {str(path)!r}: {problem}" for problem in problems])
    return file


def load_sweep(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
) -> Sweep:
    """Read a params file and list its runs.

    Parameters
    ----------
    path
        The params file.
    overrides
        Settings that replace those of the file in every run; a list becomes an axis of the grid. `repeats` as well.
    only
        A pattern with `*` and `?`; experiments whose names do not match are left out.
    output
        The folder of the sweep, by default `outputs/<name>`.

    Raises
    ------
    SettingsError
        With every problem of the file and of every run at once.
    """
    file = _override(read_params(path), dict(overrides or {}))
    combinations = list(_combinations(file))
    if not combinations:
        raise SettingsError(f"params file {str(path)!r}: no run is left; exclude less, or give the grid values")
    experiments = _experiments(combinations)
    if only is not None:
        kept = {name: item for name, item in experiments.items() if fnmatchcase(name, only)}
        if not kept:
            raise SettingsError(f"no experiment is named like {only!r}: there are {', '.join(experiments)}")
        experiments = kept
    folder = SweepPaths(Path(output) if output else paths.outputs_root() / file.name)
    runs = tuple(
        Run(name, experiment, repeat, folder.run(name, repeat))
        for repeat in range(1, file.repeats + 1)
        for name, experiment in experiments.items()
    )
    return Sweep(file.name, file.question, runs, folder, file.model_dump(exclude_defaults=True))


def _override(file: ParamsFile, overrides: dict[str, Any]) -> ParamsFile:
    if "repeats" in overrides:
        file = _validated({**file.model_dump(), "repeats": overrides.pop("repeats")}, Path("--set"))
    axes = {key: value for key, value in overrides.items() if isinstance(value, list)}
    single = {key: value for key, value in overrides.items() if key not in axes}
    return file.model_copy(
        update={
            "defaults": {**file.defaults, **single},
            "grid": {**{key: values for key, values in file.grid.items() if key not in overrides}, **axes},
            "include": [{key: value for key, value in entry.items() if key not in overrides} for entry in file.include],
        }
    )


def _combinations(file: ParamsFile) -> Iterator[dict[str, Any]]:
    """Give the settings of every experiment, as they stand in the file."""
    for entry in file.exclude:
        if not entry:
            raise SettingsError("exclude has an empty entry, which would leave nothing: name settings or drop it")
        if unknown := [key for key in entry if key not in Experiment.model_fields]:
            raise SettingsError([f"exclude: {checks.unknown_key(key, Experiment.model_fields)}" for key in unknown])
    size = 1
    for key, values in file.grid.items():
        if not values:
            raise SettingsError(f"grid: {key} is an empty list: give at least one value or leave it out")
        size *= len(values)
    if size * file.repeats > MOST_RUNS:
        raise SettingsError(f"grid: {size * file.repeats:,} runs: at most {MOST_RUNS:,} are allowed; split the sweep")
    if file.grid or not file.include:
        defaults = {name: field.default for name, field in Experiment.model_fields.items()}
        for chosen in itertools.product(*file.grid.values()):
            settings = {**file.defaults, **dict(zip(file.grid, chosen, strict=True))}
            complete = {**defaults, **settings}
            if not any(all(complete[key] == value for key, value in entry.items()) for entry in file.exclude):
                yield settings
    for entry in file.include:
        yield {**file.defaults, **entry}


def _experiments(combinations: list[dict[str, Any]]) -> dict[str, Experiment]:
    problems: list[str] = []
    experiments: list[Experiment] = []
    for settings in combinations:
        try:
            experiments.append(Experiment(**{str(key): value for key, value in settings.items()}))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    several_models = len({experiment.model for experiment in experiments}) > 1
    named: dict[str, Experiment] = {}
    for experiment in experiments:
        name = experiment.name_with_model if several_models else experiment.name
        known = named.setdefault(name, experiment)
        if known != experiment:
            differing = [key for key in Experiment.model_fields if getattr(known, key) != getattr(experiment, key)]
            raise SettingsError(
                f"two experiments are named {name!r}: they differ only in {', '.join(differing)}; "
                "give each a sweep of its own"
            )
    return named
