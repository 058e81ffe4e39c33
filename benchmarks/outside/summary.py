"""What the predictions of published rows come to: errors of speed and memory, what fits, and regret."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

ONE_NODE = "one node"
SEVERAL_NODES = "several nodes"


class SpeedError(NamedTuple):
    """Errors of speed in per cent, as factors with their geometric mean, of some rows."""

    name: str
    rows: int
    mean_pct: float
    median_pct: float
    bias_pct: float  # above 0 if predicted too fast
    printed_pct: float  # median of the errors that are printed
    within_pct: float  # of the rows, within the printed range


def timed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose speed was measured and is predicted."""
    return table[(table["measured"] > 0) & (table["predicted"] > 0)]


def speed_error(name: str, table: pd.DataFrame) -> SpeedError:
    """Return the errors of the speed of rows; those whose speed is not promised count as having no range."""
    logs = np.log(table["ratio"])
    within = (table["low"] <= table["measured"]) & (table["measured"] <= table["high"])
    return SpeedError(
        name,
        len(table),
        100 * float(np.expm1(logs.abs().mean())),
        100 * float(np.expm1(logs.abs().median())),
        100 * float(np.expm1(logs.mean())),
        float(table["error_pct"].median()),
        100 * float(within.mean()),
    )


def by_gpu(table: pd.DataFrame) -> list[SpeedError]:
    """Return the errors of speed by GPU and place, then of all rows, also without what is known of the programs."""
    rows = timed(table)
    place = np.where(rows["nodes"] > 1, SEVERAL_NODES, ONE_NODE)
    groups = rows.groupby([rows["gpu"], pd.Series(place, rows.index)])
    found = [speed_error(f"{gpu}, {where}", part) for (gpu, where), part in groups]
    return [*found, speed_error("all", rows), of_dsnb(table)]


def of_dsnb(table: pd.DataFrame) -> SpeedError:
    """Return the errors of the speed that dsnb's own training would have with the published settings."""
    rows = timed(table)
    ratio = rows["of_dsnb"] / rows["measured"]
    scale = ratio / rows["ratio"]
    of_range = {name: scale * rows[name] for name in ("low", "high")}
    return speed_error("all, as dsnb trains", rows.assign(ratio=ratio, **of_range))


def by_source(table: pd.DataFrame) -> list[SpeedError]:
    """Return the errors of speed by source."""
    groups = timed(table).groupby("source", sort=False)
    return [speed_error(str(source), part) for source, part in groups]


class PeakError(NamedTuple):
    """Errors of memory in per cent of some rows."""

    kind: str
    rows: int
    mean_pct: float
    bias_pct: float


def memory_errors(table: pd.DataFrame) -> list[PeakError]:
    """Return the errors of memory by what was measured."""
    rows = table[(table["mem"] > 0) & (table["memory_gib"] > 0)]
    errors_pct = 100 * (rows["memory_gib"] / rows["mem"] - 1)
    found = []
    for kind, part in errors_pct.groupby(rows["memkind"], sort=False):
        found.append(PeakError(str(kind), len(part), part.abs().mean(), part.mean()))
    return found


def not_fitting(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that ran and are predicted not to fit."""
    return table[~table["oom"] & table["fits"].eq(False)]


def fitting_shortages(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that ran out of memory and are predicted to fit."""
    return table[table["oom"] & table["fits"].eq(True)]


class Regret(NamedTuple):
    """What the setting that is predicted to be the fastest of a group loses against the fastest one."""

    group: str
    settings: int
    lost_pct: float


def regrets(table: pd.DataFrame) -> Iterator[Regret]:
    """Yield the regret of each group of rows, which differ in their settings only.

    Rows whose settings are the same for dsnb count once, with the median of their speeds.
    """
    rows = timed(table)
    for group, part in rows[rows["group"] != ""].groupby("group", sort=False):
        settings = part.groupby("experiment", sort=False)[["predicted", "measured"]].median()
        if len(settings) < 2:
            continue
        chosen = settings.loc[settings["predicted"].idxmax(), "measured"]
        lost = 100 * (settings["measured"].max() / chosen - 1)
        yield Regret(str(group), len(settings), float(lost))


def speed_lines(errors: Sequence[SpeedError], of: str) -> list[str]:
    """Return a table of errors of speed."""
    lines = [
        f"| {of} | rows | mean | median | bias | printed | within |",
        "|---|---|---|---|---|---|---|",
    ]
    for error in errors:
        figures = f"{error.mean_pct:.1f} | {error.median_pct:.1f} | {error.bias_pct:+.1f}"
        printed = f"{error.printed_pct:.1f} | {error.within_pct:.0f}"
        lines.append(f"| {error.name} | {error.rows} | {figures} | {printed} |")
    return lines


def memory_lines(errors: Sequence[PeakError]) -> list[str]:
    """Return a table of errors of memory."""
    lines = ["| memory | rows | mean | bias |", "|---|---|---|---|"]
    for error in errors:
        lines.append(
            f"| {error.kind} | {error.rows} | {error.mean_pct:.1f} | {error.bias_pct:+.1f} |"
        )
    return lines


def fitting_counts(table: pd.DataFrame) -> dict[str, str]:
    """Return how many settings are predicted to fit or not, against what was measured."""
    expressed = table[table["problem"] == ""]
    ran = int((~expressed["oom"]).sum())
    short = int(expressed["oom"].sum())
    tight = int((~expressed["oom"] & expressed["tight"].eq(True)).sum())
    return {
        "settings that ran and are predicted not to fit": f"{len(not_fitting(table))} of {ran}",
        "settings that ran and are predicted to fit tightly": f"{tight} of {ran}",
        "shortages that are predicted to fit": f"{len(fitting_shortages(table))} of {short}",
    }


def fit_lines(table: pd.DataFrame) -> list[str]:
    """Return what is said of settings that ran, and of shortages."""
    return [f"{what}: {count}" for what, count in fitting_counts(table).items()]


def memory_table(table: pd.DataFrame) -> list[str]:
    """Return one table of what fits and of the errors of peaks."""
    lines = ["| | |", "|---|---|"]
    for what, count in fitting_counts(table).items():
        lines.append(f"| {what} | {count} |")
    for error in memory_errors(table):
        lines.append(f"| {error.kind} (n = {error.rows}) | {error.mean_pct:.0f} % off on average |")
    return lines


def regret_lines(table: pd.DataFrame) -> list[str]:
    """Return the regret of each group, their mean and the worst."""
    found = list(regrets(table))
    lines = ["| group | settings | regret |", "|---|---|---|"]
    for one in found:
        lines.append(f"| {one.group} | {one.settings} | {one.lost_pct:.1f} |")
    if found:
        lost = [one.lost_pct for one in found]
        lines.append(f"| mean of {len(lost)} groups | | {np.mean(lost):.1f} |")
        lines.append(f"| worst of {len(lost)} groups | | {max(lost):.1f} |")
    return lines


def problem_lines(table: pd.DataFrame) -> list[str]:
    """Return the rows that dsnb cannot express, with the reason of each."""
    left = table[table["problem"] != ""]
    lines = [f"{len(left)} of {len(table)} rows are not expressible"]
    for row in left.to_dict("records"):
        lines.append(f"{row['model']} on {row['gpu']} ({row['source']}): {row['problem']}")
    return lines
