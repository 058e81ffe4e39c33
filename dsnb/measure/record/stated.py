"""What the user states of a training: checked by name and kind, and compared with what the training shows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import SUPERVISION, Experiment, with_current_names
from dsnb.settings.records import record_schema
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.training import text

PROGRAM = "program"
"""The program that trains; no setting, but a field of the record."""
_SETTINGS = RunPaths(Path()).experiment.name
ARGUMENTS = ("steps", "warmup_steps", "command", "script")
"""Settings that are arguments of the recorder, or of the launcher that started the script."""


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stated settings under their current names; raise SettingsError with all that are wrong."""
    settings = with_current_names(settings)
    names = {*Experiment.model_fields} - {*SUPERVISION, *ARGUMENTS}
    keys = {name for name in settings if name.startswith(deepspeed_keys.PREFIX)}
    problems = [
        checks.unknown_setting(name, names) for name in settings.keys() - names - keys - {PROGRAM}
    ]
    if keys:
        settings[deepspeed_keys.NAME] = deepspeed_keys.flattened(settings)
        settings = {name: value for name, value in settings.items() if name not in keys}
    known = {name: value for name, value in settings.items() if name in names}
    wrong = record_schema.wrong_values(_SETTINGS, known)[1]
    if wrong:
        problems.append(wrong.removeprefix(f"{_SETTINGS}: "))
    if problems:
        raise SettingsError(problems)
    return settings


def check_agreement(stated: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Raise SettingsError with every stated setting that the training contradicts."""
    problems = []
    for name, value in stated.items():
        found = seen.get(name)
        if name == "model" or found is None or value is None or found == value:
            continue
        if name == deepspeed_keys.NAME:
            continue
        problems.append(
            f"{name} is {text(value)!r}, but the training has {text(found)!r}: correct it, or leave it out"
        )
    if problems:
        raise SettingsError(problems)


def complete(stated: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of a run: as stated, else as seen, else None, which is unknown."""
    every = dict.fromkeys(Experiment.model_fields)
    known = {name: value for name, value in seen.items() if name in every}
    return {**every, **known, **stated}
