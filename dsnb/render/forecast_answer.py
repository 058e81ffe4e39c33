"""A forecast in words and as a table: what fits, what takes the fewest days and what it costs, and how sure that is."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from dsnb.analysis import ratio_errors
from dsnb.analysis.forecast import MEASURED, PREDICTED, Forecast
from dsnb.analysis.ratio_errors import RatioError
from dsnb.render.decision_words import amount, beyond, beyond_reason, duration_range
from dsnb.render.rounding import significant
from dsnb.render.tables import Html, bullet_list, number_table, subheading
from dsnb.runs.labels import count
from dsnb.settings.planning import MOST_DAYS

HEADINGS = {
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_error_pct": "error of tokens/s, days and cost (%)",
    "days_low": "days, from",
    "days_high": "days, to",
    "gpu_hours": "GPU-hours",
}
NOTHING = "No setting fits: those that were predicted to fit ran out of memory. Take the next smaller micro-batch."


def fits(found: Forecast) -> Html:
    """Return how many settings fit, what the others lack, which were refused, and what the predictions rest on."""
    parts = "".join(f"{title}{bullet_list(_fits(part, found))}" for title, part in _by_task(found))
    said = [f"Refused and left out: {reason}." for reason in found.refused]
    if found.calibrated_on:
        said.append(f"Predicted speeds follow from {found.calibrated_on} measured settings on {found.gpu.name}.")
    return Html(f"{parts}{bullet_list(said) if said else ''}")


def _fits(table: pd.DataFrame, found: Forecast) -> list[str]:
    fitting = table[table["fits"].astype(bool)]
    bases = fitting["basis"].value_counts()
    known = [f"{bases[basis]} {basis}" for basis in (MEASURED, PREDICTED) if basis in bases]
    said = [
        f"{len(fitting)} of {count(len(table), 'setting')} fit on {found.gpu.name}, which has "
        f"{found.gpu.memory_gib:.0f} GiB ({', '.join(known) or 'none'})."
    ]
    others = table[~table["fits"].astype(bool)].dropna(subset="peak_allocated_gib")
    if len(others):
        least = others.loc[others["peak_allocated_gib"].idxmin()]
        said.append(f"The smallest that does not fit is {least['experiment']}: {_memory(least)} for tensors alone.")
    return said


def answer(found: Forecast, tokens: float, currency: str = "$") -> Html:
    """Return the setting of each task with the fewest days and the cheapest one, what they take, and how sure that is.

    Where every setting takes more than `MOST_DAYS`, say so, and how many GPUs would be needed.
    """
    return Html("".join(f"{title}{_answer(found, part, tokens, currency)}" for title, part in _by_task(found)))


def _answer(found: Forecast, table: pd.DataFrame, tokens: float, currency: str) -> Html:
    task = str(table["task"].iloc[0])
    fitting = table[table["fits"].astype(bool)]
    if fitting.empty:
        return bullet_list([f"{said[0].upper()}{said[1:]}." for said in found.instead.get(task, ())], NOTHING)
    best = fitting.iloc[0]
    quick = fitting[fitting["days"] <= MOST_DAYS]
    cheapest = fitting.loc[(fitting if quick.empty else quick)["gpu_hours"].idxmin()]
    if best["days"] > MOST_DAYS:
        said = _beyond(best, cheapest, tokens, currency)
    else:
        said = [f"Fewest days for {amount(tokens)} tokens: {_setting(best, currency)}."]
        if cheapest["experiment"] != best["experiment"]:
            said.append(f"Fewest GPU-hours: {_setting(cheapest, currency)}.")
    if len(fitting) > 1:
        said.append(_how_sure(best, fitting.iloc[1], found.doubts.get(task)))
    if best["outside"]:
        said.append(f"Less sure than that: {best['outside']}.")
    return bullet_list(said)


def _beyond(best: "pd.Series[Any]", thrifty: "pd.Series[Any]", tokens: float, currency: str) -> list[str]:
    """Say that even the fastest setting is no plan, and how many GPUs would be needed."""
    rate = f"{best['tokens_per_s']:,.0f} tokens/s{_error(best['tokens_per_s_error_pct'])}"
    fastest = f"The fastest is {best['experiment']} ({best['basis']}), {rate}."
    cost = "" if pd.isna(thrifty["cost"]) else f", {currency}{significant(thrifty['cost'])}"
    hours = f"{significant(thrifty['gpu_hours'])} GPU-hours{cost}"
    per_gpu = thrifty["tokens_per_s"] / thrifty["gpus"]
    setting = "" if thrifty["experiment"] == best["experiment"] else str(thrifty["experiment"])
    reason = f"{beyond_reason('setting', '', tokens)} on {count(best['gpus'], 'GPU')}."
    return [f"{reason} {fastest}", beyond(thrifty["gpu_hours"], per_gpu, "GPU", hours, setting, str(thrifty["basis"]))]


def table(found: Forecast, currency: str = "$") -> Html:
    """Return all settings of each task with their figures and errors; columns without any value are left out."""
    titles = {**HEADINGS, "cost": f"cost ({currency.strip()})"}
    parts = []
    for title, part in _by_task(found):
        shown = part.drop(columns=["task", "gpus", "outside"]).dropna(axis="columns", how="all")
        shown = shown.assign(fits=shown["fits"].map({True: "yes", False: "no"}))
        text = number_table(shown.rename(columns=titles), text_columns=("experiment", "basis", "fits"))
        parts.append(f"{title}{text}")
    return Html("".join(parts))


def _by_task(found: Forecast) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the heading and the settings of each task; the heading is empty if there is one task."""
    several = found.table["task"].nunique() > 1
    for title, part in found.table.groupby("task", sort=False):
        yield str(subheading(str(title))) if several else "", part


def _setting(row: "pd.Series[Any]", currency: str) -> str:
    rate = f"{row['tokens_per_s']:,.0f} tokens/s{_error(row['tokens_per_s_error_pct'])}"
    memory = "" if pd.isna(row["peak_allocated_gib"]) else f", {_memory(row)}"
    cost = "" if pd.isna(row["cost"]) else f", {currency}{significant(row['cost'])}"
    days = duration_range(24 * row["days_low"], 24 * row["days_high"])
    takes = f"{days}, {significant(row['gpu_hours'])} GPU-hours{cost}"
    return f"{row['experiment']} ({row['basis']}), {rate}, {takes}{memory}"


def _memory(row: "pd.Series[Any]") -> str:
    return f"{row['peak_allocated_gib']:.1f} GiB{_error(row['peak_allocated_error_pct'])}"


def _error(pct: float) -> str:
    return "" if pd.isna(pct) else f" ± {pct:.1f} %"


def _how_sure(best: "pd.Series[Any]", second: "pd.Series[Any]", doubt: tuple[str, RatioError] | None) -> str:
    slower = 100 * (second["days"] / best["days"] - 1)
    said = f"Next is {second['experiment']} ({second['basis']}), {slower:.1f} % slower"
    errors = pd.Series([best["tokens_per_s_error_pct"], second["tokens_per_s_error_pct"]]).dropna()
    if errors.empty:
        return f"{said}; both were measured, and 20_compare says whether that is more than noise."
    within = doubt[1].mean_pct if doubt else errors.max()
    error = ratio_errors.words(*doubt) if doubt else f"the error of {within:.1f} %"
    if slower > within:
        return f"{said}, more than {error}."
    unknown = [row["experiment"] for row in (best, second) if row["basis"] == PREDICTED]
    return f"{said}, within {error}: run {' and '.join(map(str, unknown))} to decide."
