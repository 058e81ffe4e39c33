"""Reads a params file into a list of runs: expands the grid, names experiments, rejects invalid settings.

name: gpt2_zero            # folder under outputs/
question: ...              # heads the report
defaults: {model: gpt2}    # settings of every run
grid: {zero_stage: [0, 1]} # every combination of the lists
exclude: [{zero_stage: 1, precision: fp32}]
include: [{zero_stage: 3, grad_accum: [1, 8]}] # further runs on top of the defaults; lists are multiplied
repeats: 4
order: random              # of the experiments within each repeat; `listed` for that of this file
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import model_shapes
from dsnb.settings import command, params_file
from dsnb.settings.experiment import DEFAULTS, Experiment, with_current_names
from dsnb.settings.params_file import ParamsFile, as_axes, read_params, validated
from dsnb.settings.records import paths
from dsnb.settings.records.paths import RunPaths, SweepPaths

SWEEP_SETTINGS = ("repeats", "order", "order_seed", "expect_samples_per_s")
"""Fields of the params file that `--set` can change, in addition to the settings of runs."""
MAX_NAMED = 5
"""Maximum number of experiments in a message."""


@dataclass(frozen=True)
class Run:
    """One run of a sweep."""

    name: str
    experiment: Experiment
    repeat: int
    paths: RunPaths
    lane: str = ""
    """Hosts of a sub-cluster: the runs of a lane are executed one by one, lanes in parallel."""
    stage: int = 0
    """Later stages wait for earlier ones, because they share hosts."""
    place: int = 0
    """Place in the planned order of the sweep, or of a sub-cluster, from 1; 0 outside sweeps."""
    order_seed: int | None = None
    """Seed of that order; None for the listed order."""
    model_name: str = ""
    """The model's name within names of experiments; empty for its slug."""
    inputs: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Digests of the run's input files at the start of the sweep; empty if unknown."""


@dataclass(frozen=True)
class Sweep:
    """All runs of a params file, in an order (`order_of_repeat`) in which drift favours no setting."""

    name: str
    question: str
    runs: tuple[Run, ...]
    paths: SweepPaths
    params: dict[str, Any]
    """The content of the params file after `--set`."""
    refused: tuple[tuple[str, str], ...] = ()
    """Name and problems of each rejected combination of settings."""


def load_sweep(
    path: str | Path | ParamsFile,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
    *,
    auto_gpus: int | None = None,
    adapt: Callable[[Experiment], Experiment] | None = None,
    leave_out_refused: bool = False,
) -> Sweep:
    """Read a params file and list its runs.

    Parameters
    ----------
    path
        The params file, or its content, to which `overrides` do not apply.
    overrides
        Settings that replace those of the file in every run; a list becomes an axis. `repeats`, `order`, `order_seed`
        and `expect_samples_per_s` can be replaced too. Experiments that become equal are merged.
    only
        A pattern with `*`, `?` and `[...]`; other experiments are dropped before they are validated.
    output
        The folder of the sweep, by default `outputs/<name>`.
    auto_gpus
        Value of `gpus: auto`, by default the GPUs of this machine.
    adapt
        Changes each experiment before it is named; a SettingsError is a problem of that experiment.
    leave_out_refused
        Drop experiments with invalid settings, with the reasons in `refused`, as long as one is left.

    Raises
    ------
    SettingsError
        With every problem of the file and of all runs.

    Examples
    --------
    Three stages, twice each:

    >>> params = '''
    ... name: stages
    ... defaults: {model: opt-350m, gpus: 2}
    ... grid: {zero_stage: [1, 2, 3]}
    ... repeats: 2
    ... '''
    >>> _ = Path("stages.yaml").write_text(params)
    >>> len(dsnb.load_sweep("stages.yaml").runs)
    6
    >>> [run.experiment.zero_stage for run in dsnb.load_sweep("stages.yaml", only="*zs3_*").runs]
    [3, 3]
    """
    file = path if isinstance(path, ParamsFile) else read_with_overrides(path, overrides)
    combinations = params_file.combinations(file)
    if not combinations:
        raise SettingsError(
            f"params file {str(path)!r}: no run is left; exclude less, or give the grid values"
        )
    for settings in combinations:
        if auto_gpus and settings.get("gpus") == "auto":
            settings["gpus"] = auto_gpus
    named = (settings.get("model", DEFAULTS["model"]) for settings in combinations)
    models = model_shapes.slugs(str(model) for model in named if model is not None)
    experiments, refused = _experiments(combinations, models, only, adapt)
    equal = command.equal_runs(experiments.values())
    if equal:
        raise SettingsError(equal)
    if refused and not (leave_out_refused and experiments):
        problems = chain.from_iterable(problems for _, problems in refused)
        raise SettingsError(list(dict.fromkeys(problems)))
    folder = SweepPaths(Path(output) if output else paths.outputs_root() / file.name)
    seed = file.order_seed if file.order == "random" else None
    runs: list[Run] = []
    for repeat in range(1, file.repeats + 1):
        for name in order_of_repeat(experiments, repeat, seed):
            experiment = experiments[name]
            run = Run(
                name,
                experiment,
                repeat,
                folder.run(name, repeat),
                place=len(runs) + 1,
                order_seed=seed,
                model_name=models.get(experiment.model, ""),
            )
            runs.append(run)
    params = file.model_dump(exclude_defaults=True)
    reasons = tuple((name, "; ".join(problems)) for name, problems in refused)
    return Sweep(file.name, file.question, tuple(runs), folder, params, reasons)


def is_params(target: str | Path) -> bool:
    """Return whether a target is a params file rather than a model."""
    path = Path(target)
    return path.suffix in {".yaml", ".yml"} or (path.is_file() and path.suffix != ".json")


def order_of_repeat(names: Iterable[str], repeat: int, seed: int | None) -> list[str]:
    """Return experiments in the random order of one repeat; without a seed, in the listed order.

    In a fixed order, a machine that slows down during each repeat would always favour the first
    settings. Sorting by a hash of the name keeps the order when a resumed sweep adds experiments or
    repeats.
    """
    if seed is None:
        return list(names)
    return sorted(
        names, key=lambda name: hashlib.sha256(f"{seed} {repeat} {name}".encode()).digest()
    )


def read_with_overrides(path: str | Path, overrides: Mapping[str, Any] | None) -> ParamsFile:
    """Read a params file and apply `overrides`."""
    file = read_params(path)
    changes = as_axes(overrides or {})
    sweep_settings = {key: changes.pop(key) for key in SWEEP_SETTINGS if key in changes}
    if sweep_settings:
        file = validated({**file.model_dump(), **sweep_settings}, "--set")
    defaults = dict(file.defaults)
    grid = dict(file.grid)
    axes: dict[str, list[Any]] = {}
    for key, value in changes.items():
        if isinstance(value, list):
            axes[key] = value
            continue
        defaults[key] = value
        if key in grid:
            grid[key] = [value]
    if grid or not file.include:
        grid |= axes
    include = [
        {key: value for key, value in entry.items() if key not in changes} | axes
        for entry in file.include
    ]
    return file.model_copy(update={"defaults": defaults, "grid": grid, "include": include})


def _experiments(
    combinations: list[dict[str, Any]],
    models: Mapping[str, str],
    only: str | None,
    adapt: Callable[[Experiment], Experiment] | None,
) -> tuple[dict[str, Experiment], list[tuple[str, list[str]]]]:
    """Return the experiments by name, and the tentative names and problems of invalid ones.

    `models` maps the sweep's models to their names, which prefix those of experiments if there are
    several.
    """
    prefixes = dict.fromkeys(models, "")
    if len(models) > 1:
        prefixes = {model: f"{name}_" for model, name in models.items()}
    pattern = "*" if only is None else only
    refused = []
    named: dict[str, Experiment] = {}
    for settings in combinations:
        try:
            experiment = Experiment(**settings)
            if adapt:
                experiment = adapt(experiment)
        except SettingsError as error:
            name = _tentative_name(settings, prefixes) or only or "a setting without a name"
            if fnmatchcase(name, pattern):
                refused.append((name, error.problems))
            continue
        name = prefixes.get(experiment.model, "") + experiment.name
        same = named.setdefault(name, experiment)
        if same != experiment:
            keys = [key for key in DEFAULTS if getattr(same, key) != getattr(experiment, key)]
            raise SettingsError(
                f"two experiments are named {name!r}: they differ only in {', '.join(keys)}; "
                "put each into its own sweep"
            )
    kept = {name: named[name] for name in named if fnmatchcase(name, pattern)}
    if not kept and not refused:
        some = ", ".join([*named][:MAX_NAMED])
        if len(named) > MAX_NAMED:
            some += f", and {len(named) - MAX_NAMED:,} more (--dry-run lists them)"
        raise SettingsError(f"no experiment's name matches {only!r}: there are {some}")
    return kept, refused


def _tentative_name(settings: dict[str, Any], prefixes: Mapping[str, str]) -> str | None:
    """Return the name that invalid settings would have; None if their types are wrong."""
    machine: dict[str, Any] = {key: settings[key] for key in ("device", "gpus") if key in settings}
    if settings.get("precision") == "auto":
        machine["precision"] = "auto"
    try:
        resolved = Experiment(**machine)
        named = with_current_names(settings) | {key: getattr(resolved, key) for key in machine}
        experiment = Experiment.model_construct(**named)
        return prefixes.get(experiment.model, "") + experiment.name
    except (SettingsError, TypeError, ValueError, KeyError, AttributeError):
        return None


def left_out_lines(
    left_out: Iterable[tuple[str, str]], total: int, in_full: bool = False
) -> Iterator[str]:
    """Yield for each reason how many of `total` settings it leaves out and, in full, their names.

    `left_out` has the name and the reason of each setting.
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out:
        by_reason.setdefault(reason, []).append(name)
    hint = "" if in_full else " (names with -v)"
    for reason, names in by_reason.items():
        yield f"left out {len(names)} of {total} settings{hint}: {reason}"
        if in_full:
            yield from (f"  {name}" for name in sorted(set(names)))
