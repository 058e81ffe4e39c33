"""What a user states about runs whose log does not say it; a log that says something else is an error."""

from collections.abc import Mapping
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas import model_shapes
from dsnb.results.logs import parallel
from dsnb.results.logs.reading import STATED, LoggedRun
from dsnb.settings import checks
from dsnb.settings.records import values
from dsnb.settings.records.columns import SETTINGS

OTHERS = ("data_parallel", "global_batch_size", "gpu_name")
"""Columns besides settings that can be stated."""
SIZES = ("layers", "hidden", "heads")


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stated settings; a SettingsError names all that do not exist or have no such value."""
    problems = []
    found = {}
    for name, value in settings.items():
        if name not in SETTINGS and name not in OTHERS:
            problems.append(checks.unknown_setting(name, [*SETTINGS, *OTHERS]))
            continue
        try:
            found[name] = values.checked(name, value)
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return found


def add(run: LoggedRun, settings: Mapping[str, Any], path: str) -> None:
    """Add stated settings to a run of a log before figures are derived from them."""
    if not settings:
        return
    parallel.derive(run)
    for name, value in settings.items():
        said = run.settings[name]
        if name == "model" and _is_unknown_model(run, said):
            said = None
        if said is not None and not _are_equal(name, said, value):
            raise _contradiction(path, name, said, value)
        if said is None:
            run.settings[name] = value
            run.provenance[name] = STATED
    _check_model(run, settings, path)
    parallel.derive(run)
    _check_batch(run, path)


def fill(row: dict[str, Any], settings: Mapping[str, Any], is_known: bool) -> None:
    """Add stated settings to the row of a run folder, where they are unknown; dsnb's own runs know all."""
    for name, value in settings.items():
        said = row.get(name)
        if said is None and not is_known:
            row[name] = value
        elif said is not None and not _are_equal(name, said, value):
            raise _contradiction(row["run_dir"], name, said, value)


def _contradiction(path: str, name: str, said: Any, value: Any) -> SettingsError:
    return SettingsError(
        f"{path} says that {name} is {short_repr(said)}, but {short_repr(value)} is stated: leave {name} out, or name "
        "the runs that it holds for"
    )


def _are_equal(name: str, said: Any, value: Any) -> bool:
    if name == "model":
        return _meant(str(said)) == _meant(str(value))
    return bool(said == value)


def _meant(model: str) -> str:
    """Return the preset that a name means, else the end of the name."""
    return model_shapes.preset_of(model) or model.rpartition("/")[2].lower()


def _is_unknown_model(run: LoggedRun, name: Any) -> bool:
    """Return whether a name says nothing: a user's own, or one that was derived from sizes."""
    return model_shapes.preset_of(str(name)) is None or "model" in run.provenance


def _check_model(run: LoggedRun, settings: Mapping[str, Any], path: str) -> None:
    """Compare the sizes of a stated model with those that the log says."""
    if "model" not in settings:
        return
    sizes = model_shapes.facts(str(settings["model"]))
    for name in SIZES:
        said = run.shape[name]
        if said and sizes.get(name, said) != said:
            raise SettingsError(
                f"{path} says that the model has {said} as {name}, but {settings['model']} has {sizes[name]}: "
                "state another model"
            )


def _check_batch(run: LoggedRun, path: str) -> None:
    """Compare the batch of all ranks with its parts."""
    have = run.settings
    parts = [have[name] for name in ("micro_batch_size", "grad_accum", "data_parallel")]
    total = have["global_batch_size"]
    if total and all(parts) and parts[0] * parts[1] * parts[2] != total:
        product = " x ".join(map(str, parts))
        raise SettingsError(
            f"{path}: global_batch_size is {total}, but micro_batch_size x grad_accum x data_parallel is {product}: "
            "correct what is stated"
        )
