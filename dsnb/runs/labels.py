"""Titles, units and meanings of the columns of runs, for every table, figure and sentence.

They are declared in `dsnb.run_folder.columns` and, for settings, in `dsnb.settings.training`.
"""

import math

from dsnb.run_folder.columns import MEMORY, METRIC_LABELS
from dsnb.run_folder.declarations import STATUSES, Metric
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DECLARED
from dsnb.settings.training import Setting, text

__all__ = ["AXES", "MEMORY", "METRIC_LABELS", "Metric", "axis", "count", "span", "text"]

_WORK = ("micro_batch_size", "seq_len", "data")
"""Settings of what a rank works on: those of the hardware come before them."""
AXES = {name: DECLARED[name] for name in sorted(DECLARED, key=_WORK.__contains__) if DECLARED[name].is_axis} | {
    "trained": Setting("trained", "{}"),
    "gpu_name": Setting("GPU", "{}"),
    "source": Setting("source", "{}"),
    "sweep": Setting("sweep", "{}"),
    "status": Setting("status", "{}", order=STATUSES),
}
"""The most important settings, and other columns that tell runs apart, in display order; other settings follow."""


def axis(name: str) -> Setting:
    """Return how a column is displayed that tells runs apart; one that is nowhere declared is titled by its name."""
    if name.startswith(deepspeed_keys.PREFIX):
        return Setting(name.rpartition(".")[2])
    return AXES.get(name) or DECLARED.get(name) or Setting(name.replace("_", " "))


def span(low: float, high: float) -> str:
    """Return a range with as many digits as it supports, as in "30 to 60" for 31.2 to 56.4.

    Both ends are rounded to the first digit of half the range, or of `low` if that is finer: down and up, so that the
    range stays within what is printed.
    """
    if not 0 < low < high < math.inf:
        return "" if math.isnan(high) else f"{high:,.0f}" if high >= 100 else f"{high:.3g}"
    place = math.floor(math.log10(min((high - low) / 2, low)))
    ends = math.floor(low / 10**place), math.ceil(high / 10**place)
    return " to ".join(f"{end * 10**place:,.{max(-place, 0)}f}" for end in ends)


def count(number: float, noun: str) -> str:
    """Return a number with its noun: "1 setting", "2 settings"."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"
