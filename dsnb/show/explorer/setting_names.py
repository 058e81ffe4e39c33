"""Names of the settings of a task: what tells them apart, in words."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from dsnb.results.runs import labels
from dsnb.show.explorer.data import Data


def short_names(data: Data) -> tuple[dict[str, str], dict[int, str]]:
    """Return names of experiments such as "ZeRO 3, bf16", and by code of a task what all of its names leave out.

    Settings that the words do not tell apart are told apart by others in which they differ, then by
    the titles of their sweeps; those that nothing tells apart have no name.
    """
    codes = data.run_codes.assign(experiment=data.experiments)
    first = codes.drop_duplicates(["task", "experiment"])
    rows = data.runs.reset_index(drop=True)
    named: dict[str, str] = {}
    shared = {}
    for code, task in first.groupby("task", sort=False):
        runs = rows.loc[task.index]
        names = dict(zip(task["experiment"], runs.to_dict("records"), strict=True))
        words, shared[int(str(code))] = _words(names)
        by_name = task.set_index("experiment")
        for group in _alike(words):
            differing = _differing(data, by_name.loc[group])
            words |= {
                name: ", ".join(filter(None, [words[name], differing[name]])) for name in group
            }
        for group in _alike(words):
            titles = {
                name: labels.axis("sweep").label(names[name].get("sweep", "")) for name in group
            }
            words |= {name: f"{words[name]} ({titles[name]})".strip() for name in group}
        counts = Counter(words.values())
        named |= {name: text for name, text in words.items() if text and counts[text] == 1}
    return named, shared


def predicted_names(data: Data) -> tuple[list[str], dict[int, str]]:
    """Return names of the predicted settings in order, and by code of a task what all of its names leave out.

    Settings that the words do not tell apart have the names of their experiments.
    """
    rows = data.predicted
    codes = data.codes["task"][len(data.runs) :].set_axis(rows.index)
    names = rows["experiment"].map(labels.text) if len(rows) else pd.Series(dtype=str)
    shared = {}
    for code, task in rows.groupby(codes, sort=False):
        records = dict(zip(task.index, task.to_dict("records"), strict=True))
        words, shared[int(str(code))] = _words(records)
        counts = Counter(words.values())
        for row, text in words.items():
            if counts[text] == 1:
                names[row] = text
    return names.tolist(), shared


Key = TypeVar("Key", bound=Hashable)


def _words(runs: Mapping[Key, Mapping[Any, Any]]) -> tuple[dict[Key, str], str]:
    """Return runs in words without the parts that all of several have, and these parts."""
    parts = {key: _parts(run) for key, run in runs.items()}
    common = [part for part in min(parts.values(), key=len) if len(parts) > 1]
    common = [part for part in common if all(part in own for own in parts.values())]
    words = {key: _without(own, common) for key, own in parts.items()}
    return words, ", ".join(common)


def _parts(run: Mapping[Any, Any]) -> list[str]:
    parts = labels.setting_parts(run)
    if not labels.is_missing(run.get("gpus")):
        parts.append(labels.choice(run, "gpus"))
    return parts


def _without(parts: Sequence[str], common: Sequence[str]) -> str:
    """Return a name without the parts that all names have; the whole name if it has no others."""
    rest = [part for part in parts if part not in common]
    return ", ".join(rest or parts)


def _alike(words: Mapping[str, str]) -> list[list[str]]:
    """Return the experiments of each name that several have."""
    groups: dict[str, list[str]] = {}
    for name, text in words.items():
        groups.setdefault(text, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _differing(data: Data, codes: pd.DataFrame) -> dict[str, str]:
    """Return in words the settings in which some experiments differ."""
    varying = [name for name in data.axes if codes[name].nunique() > 1]
    found = {}
    for experiment, own in codes[varying].iterrows():
        values = [(name, data.values[name][own[name]]) for name in varying]
        said = [labels.axis(name).describe(value) for name, value in values if value is not None]
        found[str(experiment)] = ", ".join(said)
    return found
