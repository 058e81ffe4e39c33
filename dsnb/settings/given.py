"""The settings of one training, from whatever holds them: an experiment, a mapping, a params file or a run's record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.settings import params_file
from dsnb.settings.experiment import RECORD, Experiment


def experiment_of(given: Experiment | Mapping[str, Any] | str | Path) -> Experiment:
    """Return the settings; `model_fields_set` of it has the names of those that are stated.

    Raises SettingsError for a file that cannot be read, or that holds several settings.
    """
    if isinstance(given, Experiment):
        return given
    if isinstance(given, Mapping):
        return Experiment(**given)
    path = Path(given)
    if path.is_dir():
        path = path / RECORD
    if path.name == RECORD:
        return Experiment.read(path)
    content = plain_yaml.read(path, "settings file")
    if not isinstance(content, Mapping):
        raise SettingsError(
            f"settings file {str(path)!r} holds no settings: give 'name: value' lines"
        )
    if not content.keys() & {"defaults", "grid", "include"}:
        return Experiment(**content)
    return _only_one(params_file.validated(dict(content), path), path)


def _only_one(file: params_file.ParamsFile, path: Path) -> Experiment:
    """Return the experiment of a params file that describes one."""
    described = params_file.combinations(file)
    if len(described) != 1:
        raise SettingsError(
            f"params file {str(path)!r} has {len(described)} settings of runs, but one model is trained in one way: "
            "give a file with one of them"
        )
    return Experiment(**described[0])
