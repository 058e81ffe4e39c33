"""Conditions other than settings in which runs differ: environment variables, and the contents of input files.

Repeats should have none: a variable can change speed or results, and an edited file is another model or another text.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

VARIABLES, INPUTS = "variables", "inputs"
"""Columns of `name=value` pairs; missing for runs that were recorded without them."""
UNCOMPARED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Choose GPUs of one kind; schedulers set them differently for each job."""
MAX_NAMED = 3
UNSET = "unset"

Values = Mapping[str, str]


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


def unlike_repeats(runs: pd.DataFrame) -> pd.Series:
    """Return in what each run differs from most runs of its experiment, in words; empty if in nothing.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    """
    words = pd.Series("", index=runs.index, dtype=object)
    if not {VARIABLES, INPUTS} & set(runs.columns):
        return words
    for _, group in runs.groupby("experiment", sort=False):
        found = [_unlike([parsed(value) for value in group.get(name, [])], name) for name in (VARIABLES, INPUTS)]
        for place, label in enumerate(group.index):
            words[label] = "; ".join(filter(None, (texts[place] for texts in found if texts)))
    return words


def _unlike(values: Sequence[Values | None], column: str) -> list[str]:
    """Return in what each of some runs differs from most of them; None is unknown and differs in nothing."""
    names = sorted({name for value in values for name in value or ()})
    usual = {name: Counter(value.get(name, UNSET) for value in values if value is not None) for name in names}
    usual = {name: counts for name, counts in usual.items() if len(counts) > 1}
    return [_words(value, usual, column) if value is not None else "" for value in values]


def _words(value: Values, usual: Mapping[str, Counter[str]], column: str) -> str:
    most = {name: counts.most_common(1)[0][0] for name, counts in usual.items()}
    odd = [name for name in usual if value.get(name, UNSET) != most[name]]
    more = f"; and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
    if column == INPUTS:
        return (
            f"read a different version of {', '.join(odd[:MAX_NAMED])}{more} than other runs of the setting"
            if odd
            else ""
        )
    pairs = [f"{name} is {value.get(name, UNSET)}, in other runs of the setting {most[name]}" for name in odd]
    return "; ".join(pairs[:MAX_NAMED]) + more


def between(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Return in which variables and files two sets of runs differ, a sentence each; nothing where one is unknown."""
    sentences = []
    for column in (VARIABLES, INPUTS):
        sets = [_values(runs, column) for runs in (before, after)]
        if not all(known for known, _ in sets):
            continue
        (_, first), (_, second) = sets
        for name in sorted({*first, *second}):
            one, other = (sorted(values.get(name, {UNSET})) for values in (first, second))
            if one != other:
                sentences.append(_sentence(column, name, " or ".join(one), " or ".join(other)))
    return sentences


def _sentence(column: str, name: str, before: str, after: str) -> str:
    if column == INPUTS:
        return f"{name} is not the same file before ({before}) and after ({after})."
    return f"{name} was {before} before and {after} after, which may explain a difference."


def _values(runs: pd.DataFrame, column: str) -> tuple[bool, dict[str, set[str]]]:
    """Return whether a column is known of any run, and the values of each name; UNSET where only some runs have it."""
    known = [value for text in runs.get(column, []) if (value := parsed(text)) is not None]
    names = {name for value in known for name in value}
    return bool(known), {name: {value.get(name, UNSET) for value in known} for name in names}
