"""A forecast in words and as a table: what fits, what takes the fewest days and what it costs, and how sure that is."""

from typing import Any

import pandas as pd

from dsnb.analysis.forecast import MEASURED, PREDICTED, Forecast
from dsnb.render.decision_words import amount, duration
from dsnb.render.rounding import significant
from dsnb.render.tables import Html, bullet_list, number_table
from dsnb.runs.labels import count

HEADINGS = {
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_error_pct": "error of tokens/s, days and cost (%)",
    "gpu_hours": "GPU-hours",
}
NOTHING = "No setting fits: raise zero_stage, recompute activations, offload, or take more GPUs."


def fits(found: Forecast) -> Html:
    """Return how many settings fit, what the others lack, which were refused, and what the predictions rest on."""
    fitting = found.table[found.table["fits"].astype(bool)]
    bases = fitting["basis"].value_counts()
    known = [f"{bases[basis]} {basis}" for basis in (MEASURED, PREDICTED) if basis in bases]
    said = [
        f"{len(fitting)} of {count(len(found.table), 'setting')} fit on {found.gpu.name}, which has "
        f"{found.gpu.memory_gib:.0f} GiB ({', '.join(known) or 'none'})."
    ]
    others = found.table[~found.table["fits"].astype(bool)].dropna(subset="peak_allocated_gib")
    if len(others):
        least = others.loc[others["peak_allocated_gib"].idxmin()]
        said.append(f"The smallest that does not fit is {least['experiment']}: {_memory(least)} for tensors alone.")
    said += [f"Refused and left out: {reason}." for reason in found.refused]
    if found.calibrated_on:
        said.append(f"Predicted speeds follow from {found.calibrated_on} measured settings on {found.gpu.name}.")
    return bullet_list(said)


def answer(found: Forecast, tokens: float, currency: str = "$") -> Html:
    """Return the setting with the fewest days and the cheapest one, what they take, and how sure that is."""
    fitting = found.table[found.table["fits"].astype(bool)]
    if fitting.empty:
        return bullet_list([], NOTHING)
    best = fitting.iloc[0]
    said = [f"Fewest days for {amount(tokens)} tokens: {_setting(best, currency)}."]
    cheapest = fitting.loc[fitting["gpu_hours"].idxmin()]
    if cheapest["experiment"] != best["experiment"]:
        said.append(f"Fewest GPU-hours: {_setting(cheapest, currency)}.")
    if len(fitting) > 1:
        said.append(_how_sure(best, fitting.iloc[1]))
    if best["outside"]:
        said.append(f"Less sure than that: {best['outside']}.")
    return bullet_list(said)


def table(found: Forecast, currency: str = "$") -> Html:
    """Return all settings with their figures and errors; columns without any value are left out."""
    shown = found.table.drop(columns="outside").dropna(axis="columns", how="all")
    shown = shown.assign(fits=shown["fits"].map({True: "yes", False: "no"}))
    titles = {**HEADINGS, "cost": f"cost ({currency.strip()})"}
    return number_table(shown.rename(columns=titles), text_columns=("experiment", "basis", "fits"))


def _setting(row: "pd.Series[Any]", currency: str) -> str:
    rate = f"{row['tokens_per_s']:,.0f} tokens/s{_error(row['tokens_per_s_error_pct'])}"
    memory = "" if pd.isna(row["peak_allocated_gib"]) else f", {_memory(row)}"
    cost = "" if pd.isna(row["cost"]) else f", {currency}{significant(row['cost'])}"
    takes = f"{duration(24 * row['days'])}, {significant(row['gpu_hours'])} GPU-hours{cost}"
    return f"{row['experiment']} ({row['basis']}), {rate}, {takes}{memory}"


def _memory(row: "pd.Series[Any]") -> str:
    return f"{row['peak_allocated_gib']:.1f} GiB{_error(row['peak_allocated_error_pct'])}"


def _error(pct: float) -> str:
    return "" if pd.isna(pct) else f" ± {pct:.1f} %"


def _how_sure(best: "pd.Series[Any]", second: "pd.Series[Any]") -> str:
    slower = 100 * (second["days"] / best["days"] - 1)
    said = f"Next is {second['experiment']} ({second['basis']}), {slower:.1f} % slower"
    errors = pd.Series([best["tokens_per_s_error_pct"], second["tokens_per_s_error_pct"]]).dropna()
    if errors.empty:
        return f"{said}; both were measured, and 20_compare says whether that is more than noise."
    within = errors.max()
    if slower > within:
        return f"{said}, more than the error of {within:.1f} %."
    unknown = [row["experiment"] for row in (best, second) if row["basis"] == PREDICTED]
    return f"{said}, within the error of {within:.1f} %: run {' and '.join(map(str, unknown))} to decide."
