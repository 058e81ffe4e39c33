"""Conditions other than settings in which runs differ: environment variables, contents of input files, the allocator.

Repeats should have none: a variable can change speed or results, and an edited file is another model or another text.
"""

import shlex
from collections.abc import Mapping

import pandas as pd

VARIABLES, INPUTS, ALLOCATOR = "variables", "inputs", "allocator"
"""Columns of `name=value` pairs, missing for runs that were recorded without them, and a setting that runs made before
it was one have in another value than their name says."""
UNCOMPARED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Choose GPUs of one kind; schedulers set them differently for each job."""
MAX_NAMED = 3
UNSET = "unset"


def parsed(text: object) -> dict[str, str] | None:
    """Return the pairs of a column's value; None if they were not recorded, or are not pairs."""
    if not isinstance(text, str):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    pairs = (word.partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals and name not in UNCOMPARED}


def _table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a column for each condition, by its kind and name; a value is missing where the kind was not recorded."""
    columns: dict[tuple[str, str], dict[object, str]] = {}
    for kind in (VARIABLES, INPUTS, ALLOCATOR):
        values = runs.get(kind, pd.Series(dtype=object)).items()
        if kind == ALLOCATOR:
            known = {label: {ALLOCATOR: value} for label, value in values if isinstance(value, str)}
        else:
            known = {label: pairs for label, value in values if (pairs := parsed(value)) is not None}
        for name in sorted({name for pairs in known.values() for name in pairs}):
            columns[kind, name] = {label: pairs.get(name, UNSET) for label, pairs in known.items()}
    return pd.DataFrame({key: pd.Series(column, dtype=object) for key, column in columns.items()}, index=runs.index)


def unlike_repeats(runs: pd.DataFrame) -> pd.Series:
    """Return in what each run differs from most runs of its experiment, in words; empty if in nothing.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    """
    words = pd.Series("", index=runs.index, dtype=object)
    table = _table(runs)
    table = table[[key for key in table if table[key].nunique() > 1]]
    for _, group in table.groupby(runs["experiment"], sort=False) if len(table.columns) else ():
        usual = {key: group[key].value_counts().idxmax() for key in group if group[key].nunique() > 1}
        for label, row in group.iterrows() if usual else ():
            odd = [key for key in usual if isinstance(row[key], str) and row[key] != usual[key]]
            parts = (_unlike(kind, {key[1]: (row[key], usual[key]) for key in odd if key[0] == kind})
                     for kind in (VARIABLES, INPUTS, ALLOCATOR))  # fmt: skip
            words[label] = "; ".join(filter(None, parts))
    return words


def _unlike(kind: str, odd: Mapping[str, tuple[str, str]]) -> str:
    """Return in words the conditions of a run, with their values in it and in most other runs."""
    if not odd:
        return ""
    more = f"; and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
    if kind == INPUTS:
        return f"read a different version of {', '.join([*odd][:MAX_NAMED])}{more} than other runs of the setting"
    pairs = [f"{name} is {value}, in other runs of the setting {usual}" for name, (value, usual) in odd.items()]
    return "; ".join(pairs[:MAX_NAMED]) + more


def between(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Return in which conditions two sets of runs differ, a sentence each; nothing where one is unknown."""
    table = _table(pd.concat([before, after], ignore_index=True))
    sentences = []
    for kind, name in table:
        sets = (table[kind, name].iloc[: len(before)], table[kind, name].iloc[len(before) :])
        first, second = (" or ".join(sorted(set(values.dropna()))) for values in sets)
        if not (first and second) or first == second:
            continue
        sentences.append(
            f"{name} is not the same file before ({first}) and after ({second})."
            if kind == INPUTS
            else f"{name} was {first} before and {second} after, which may explain a difference."
        )
    return sentences
