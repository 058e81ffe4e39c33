"""What the form says, and the params file that says the same."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dsnb.errors import SettingsError
from dsnb.files import plain_yaml, records


@dataclass(frozen=True)
class Draft:
    """A sweep as the form has it: settings with one value are shared by all runs, those with several are axes."""

    name: str
    question: str = ""
    settings: Mapping[str, list[Any]] = field(default_factory=dict)
    repeats: int = 1

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The settings with several values."""
        return {name: list(values) for name, values in self.settings.items() if len(values) > 1}

    def content(self, exclude: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Return the content of the params file, without what is empty."""
        shared = {name: values[0] for name, values in self.settings.items() if len(values) == 1}
        parts = {"question": self.question, "defaults": shared, "grid": self.axes, "exclude": [*map(dict, exclude)]}
        return {
            "name": self.name,
            **{key: part for key, part in parts.items() if part},
            "repeats": self.repeats,
        }


def write(path: Path, content: str, own: tuple[Path, str] | None = None) -> None:
    """Write a params file; `own` is the path and the content of the last one that was written, which may be replaced.

    Raises
    ------
    SettingsError
        If there is another file with that name, or it cannot be written.
    """
    with warnings.catch_warnings(action="ignore"):  # what cannot be read is another file
        raw = records.read_bytes(path, plain_yaml.MAX_BYTES)
    present = raw.decode("utf-8", "replace") if raw is not None else None
    if present == content:
        return
    if os.path.lexists(path) and own != (path, present):
        raise SettingsError(f"{path} exists already: choose another name, or delete it.")
    try:
        records.write_text(path, content)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}.") from error


def entries(axes: Mapping[str, list[Any]], left_out: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Return entries of `exclude` that leave out these combinations of the axes and no other.

    Parameters
    ----------
    axes
        Setting to its values, all different.
    left_out
        The combinations: for each axis the position of its value. Not all combinations there are.
    """
    if not left_out:
        return []
    names, sizes = list(axes), [len(values) for values in axes.values()]
    places = np.array(left_out, dtype=int).reshape(-1, len(names))
    remaining, found = np.ones(len(places), dtype=bool), []
    while remaining.any():
        chosen = dict(enumerate(places[remaining][0]))
        for axis in range(len(names)):
            fewer = {other: place for other, place in chosen.items() if other != axis}
            size = np.prod([sizes[other] for other in range(len(names)) if other not in fewer])
            if _matching(places, fewer).sum() == size:  # all that it would leave out are to be left out
                chosen = fewer
        found.append({names[axis]: axes[names[axis]][place] for axis, place in chosen.items()})
        remaining &= ~_matching(places, chosen)
    return found


def _matching(places: np.ndarray, chosen: Mapping[int, int]) -> np.ndarray:
    return np.all([places[:, axis] == place for axis, place in chosen.items()] or [np.ones(len(places), bool)], axis=0)
