"""Figures of predicted settings as they are read, with their errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.results.answers.decide import is_tight
from dsnb.results.runs.number_text import rounded, significant, span, supported, unit_of_time


def fit(row: Mapping[Any, Any]) -> str:
    """Return whether a setting fits: `yes`, `tight`, `no`, or `unknown`; empty if its memory is not predicted."""
    if pd.isna(row["fits"]):
        if pd.isna(row.get("peak_allocated_gib")):
            return ""
        return "unknown"
    if not row["fits"]:
        return "no"
    return "tight" if is_tight(row) else "yes"


def predicted_figures(table: pd.DataFrame, currency: str = "$") -> pd.DataFrame:
    """Return figures of `dsnb.predict` as text; measured ones have no errors, tight settings only bounds."""
    rows = table.to_dict("records")

    def each(name: str, form: Callable[[Any], str], bound: str = "", error: str = "") -> list[str]:
        texts = []
        for row in rows:
            value = row.get(name)
            text = "" if pd.isna(value) else form(value)
            if text and error and not pd.isna(row.get(error)):
                text += f" ± {row[error]:.1f} %"
            if text and bound and is_tight(row):
                text = f"{bound} {text}"
            texts.append(text)
        return texts

    gib = "{:,.1f}".format
    hours, unit = _unit(rows)
    shown = {
        "fits": [fit(row) for row in rows],
        "tokens/s": [_speed(row) for row in rows],
        f"{unit}s": [_time(row, hours) for row in rows],
        "cost": each("cost", lambda cost: currency + rounded(cost), "from"),
        "GiB": each("peak_allocated_gib", gib, error="peak_allocated_error_pct"),
        "reserved": each("peak_reserved_gib", gib, error="peak_reserved_error_pct"),
        "host GiB": each("host_memory_gib", significant, error="host_memory_error_pct"),
        "peak in": each("moment", str),
        "ms a step": each("step_time_s", lambda seconds: f"{1e3 * seconds:,.0f}", "from"),
        "MFU": each("mfu", "{:.0%}".format),
    }
    return pd.DataFrame(shown, table.index)


def _speed(row: Mapping[Any, Any]) -> str:
    """Return the speed with its range; that of a tight setting is a limit, a measured one has none."""
    if pd.isna(row["tokens_per_s"]):
        return ""
    error_pct = row["tokens_per_s_error_pct"]
    speed = supported(row["tokens_per_s"], error_pct / 100)
    if is_tight(row):
        return f"up to {speed}"
    if pd.isna(error_pct):
        return speed
    return f"{speed} ({span(row['tokens_per_s_low'], row['tokens_per_s_high'])})"


def _unit(rows: Sequence[Mapping[Any, Any]]) -> tuple[float, str]:
    """Return the unit of all times, in hours and by name: the largest of which each time is at least one."""
    times = [24 * row["days_low"] for row in rows if row["days_low"] > 0]
    return unit_of_time(min(times, default=24))


def _time(row: Mapping[Any, Any], hours: float) -> str:
    """Return the range of the time in units of some hours; that of a tight setting has no upper end."""
    if pd.isna(row["days_low"]):
        return ""
    low, high = (24 * row[name] / hours for name in ("days_low", "days_high"))
    if is_tight(row):
        return f"from {rounded(low)}"
    return span(low, high)
