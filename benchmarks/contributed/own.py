"""How many of dsnb's own published runs would pass the checks of contributed ones, and why the others would not."""

from collections import Counter

import dsnb
from dsnb.results.contribution import checks
from dsnb.results.literature import tables

PUBLISHED = ("h200", "h100")


def lines() -> list[str]:
    """Return a line for each table: runs that pass every check of a run, and runs by the checks they fail."""
    return [_line(name) for name in PUBLISHED]


def _line(name: str) -> str:
    runs = dsnb.published(name)
    ended = runs[runs["status"].isin(checks.STATUSES)].reset_index(drop=True).assign(link="nvlink")
    disturbed = checks.disturbances(ended, tables.steps(tables.SOURCE + name))
    failed: Counter[str] = Counter()
    passing = 0
    for run, disturbance in zip(ended.to_dict("records"), disturbed, strict=True):
        reasons = [check.__name__ for check in checks.CHECKS if check(run)]
        if disturbance:
            reasons.append("disturbance")
        failed.update(reasons)
        if not reasons:
            passing += 1
    why = ", ".join(f"{reason} {count}" for reason, count in failed.most_common())
    return f"{name}: {passing} of {len(ended)} runs pass; refused by {why}"
