"""The claims of runs and logs: one of each setting that succeeded, with the medians of its runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.prediction.check.claims import Claim, Seen, of_row
from dsnb.prediction.check.verdict import Verdict
from dsnb.results.runs.labels import count
from dsnb.results.runs.table import as_runs

KEYS = ["sweep", "experiment", "gpu_name"]


def claims(
    runs: pd.DataFrame, stated: Mapping[str, Any], gpu: str, link: str | None, seen: Seen
) -> list[Claim]:
    """Return the claims of a table of `load_runs`; what the user states and has seen wins over the runs.

    Raises SettingsError if no run succeeded with a known speed, or none has a known training: then
    with the reasons.
    """
    runs = as_runs(runs)
    ok = runs[runs["status"] == "ok"]
    if ok.empty:
        raise SettingsError("no run is ok, so there is no speed to check")
    for key in KEYS:
        if key not in ok:
            ok = ok.assign(**{key: ""})
    found = []
    problems = []
    for _, group in ok.groupby(KEYS, sort=False, dropna=False):
        row: dict[str, Any] = {str(key): value for key, value in group.iloc[0].items()}
        medians = group.select_dtypes("number").median()
        row |= {str(key): value for key, value in medians.items()}
        try:
            claim = of_row(row, stated, gpu, link)
        except SettingsError as error:
            problems += error.problems
            continue
        found.append(replace(claim, seen=_joined(claim.seen, seen)))
    if not found:
        raise SettingsError(list(dict.fromkeys(problems)))
    return found


def _joined(of_run: Seen, stated: Seen) -> Seen:
    """Return what a run shows, with what the user states in its place."""
    given = {one.name: getattr(stated, one.name) for one in fields(Seen)}
    given = {name: value for name, value in given.items() if value is not None}
    return replace(of_run, **given)


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return how many further settings have which verdict."""
    kinds = Counter(verdict.kind for verdict in verdicts)
    words = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return f"{count(len(verdicts), 'further setting')}: {words}"
