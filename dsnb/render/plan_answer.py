"""A plan in words and tables: what a training takes with measured settings, and with predicted ones."""

import html
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dsnb.analysis import ratio_errors
from dsnb.analysis.decide import CPU, MEASURED, PREDICTED, Question, decide
from dsnb.analysis.recommend import Forecast
from dsnb.analysis.texts import amount, duration, duration_range, significant
from dsnb.render.tables import Html, bullet_list, number_table, subheading
from dsnb.render.words import beyond, left_out_unstable
from dsnb.runs import setting_words
from dsnb.runs.labels import count
from dsnb.settings.planning import MOST_DAYS

SHOWN = {
    "source": "source",
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "tokens_per_s": "tokens/s",
    "days": "days",
    "gpu_hours": "GPU-hours",
    "power_w": "power per GPU (W)",
    "energy_kwh": "energy (kWh)",
    "cost": "cost",
}
"""Columns of a plan and their headings."""
FORECAST_SHOWN = {
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_error_pct": "error of tokens/s, days and cost (%)",
    "days_low": "days, from",
    "days_high": "days, to",
    "gpu_hours": "GPU-hours",
}
LEAST = {
    "time": "Fewest days",
    "gpu_hours": "Fewest GPU-hours",
    "cost": "Lowest cost of the settings with a price",
}
NOTHING = "No setting has a measured throughput: choose other runs, other tables or another model."
NOTHING_FITS = "No setting fits: those that were predicted to fit ran out of memory. Take the next smaller micro-batch."


def table(needed: pd.DataFrame, currency: str = "$") -> Html:
    """Return a plan (`dsnb.analysis.decide.plan`) as a table; columns without any value are left out."""
    shown = needed[["experiment", *SHOWN]]
    shown = shown.dropna(axis="columns", how="all") if len(shown) else shown
    titles = {**SHOWN, "cost": f"cost ({currency.strip()})"}
    if set(needed["kind"]) == {CPU}:
        shown = shown.drop(columns="gpu_name")
        titles = {name: title.replace("GPU", "rank") for name, title in titles.items()}
    return number_table(shown.rename(columns=titles), text_columns=("experiment", "source", "GPU"))


def answers(plans: Mapping[str, pd.DataFrame], tokens: float, currency: str = "$") -> Html:
    """Return the answer for each task, below its title."""
    parts = [f"{subheading(title)}{answer(needed, tokens, currency)}" for title, needed in plans.items()]
    return Html("".join(parts) or f"<p>{NOTHING}</p>")


def answer(needed: pd.DataFrame, tokens: float, currency: str = "$") -> Html:
    """Return the settings with the fewest days, the fewest GPU-hours and the lowest cost as sentences.

    Settings whose repeats do not agree, and those that take more than `MOST_DAYS`, are no answer. Where every setting
    takes as long, say so, and how many GPUs would be needed.
    """
    needed = needed.set_index("experiment")
    prices = needed.groupby("kind")["price"].first().dropna().to_dict()
    decisions = {name: decide(needed, Question(tokens, name, prices=prices)) for name in LEAST}
    fastest = decisions["time"]
    unstable = [left_out_unstable(fastest.unstable)] if fastest.unstable else []
    if fastest.options.empty:
        return bullet_list(unstable, NOTHING)
    if fastest.is_beyond:
        first = fastest.options.iloc[0]
        reason, gpus = beyond(
            fastest.options, "measured setting", _place(first), tokens, currency, _unit(fastest.options.iloc[0])
        )
        rate = f"The fastest is {first.name}, {significant(first['tokens_per_s'])} tokens/s."
        return bullet_list([reason, rate, gpus, *unstable])
    sentences: list[str] = []
    named: set[object] = set()
    for objective, decision in decisions.items():
        if decision.options.empty or decision.is_beyond:
            continue
        best = decision.options.iloc[0]
        of_what = f" for {amount(tokens)} tokens" if objective == "time" else ""
        code = f"<code>{html.escape(str(best.name))}</code>"
        setting = f"{code}, as above" if best.name in named else f"{code} {html.escape(_figures(best, currency))}"
        sentences.append(f"<li>{LEAST[objective].replace('GPU', _unit(best))}{of_what}: {setting}.</li>")
        named.add(best.name)
    sentences += [f"<li>{html.escape(sentence)}</li>" for sentence in unstable]
    return Html(f"<ul>{''.join(sentences)}</ul>")


def assumptions(needed: pd.DataFrame, prices: Mapping[str, float], currency: str = "$") -> Html:
    """Return which prices the costs assume, for which GPUs there is none, and which given price is not used."""
    used = {str(name): prices.get(str(name), prices.get("")) for name in needed["gpu_name"].dropna().unique()}
    sentences = [
        f"Assumed: {currency}{price:,.10g} per {'rank' if name == CPU else 'GPU'}-hour of {name}."
        for name, price in used.items()
        if price is not None
    ]
    if missing := [name for name, price in used.items() if price is None]:
        sentences.append(f"No price is given for {', '.join(missing)}: no cost is shown. Set prices in the parameters.")
    if unused := [name for name in prices if name and name not in used]:
        sentences.append(f"The price for {', '.join(unused)} is not used here: no setting was measured on it.")
    return bullet_list(sentences, "No setting names its GPU, so only a price for all GPUs, prices[''], is used.")


def _figures(row: "pd.Series[Any]", currency: str) -> str:
    energy = "" if pd.isna(row["energy_kwh"]) else f", {significant(row['energy_kwh'])} kWh"
    hours = f"{significant(row['gpu_hours'])} {_unit(row)}-hours{energy}{_cost(row, currency)}"
    return f"on {_place(row)}, {duration(24 * row['days'])}, {hours}"


def _cost(row: "pd.Series[Any]", currency: str) -> str:
    return "" if pd.isna(row["cost"]) else f", {currency}{significant(row['cost'])}"


def _place(row: "pd.Series[Any]") -> str:
    device, gpu_name = ("cpu", None) if row["kind"] == CPU else (None, row["gpu_name"])
    return setting_words.place({"gpus": row["gpus"], "gpu_name": gpu_name, "device": device})


def _unit(row: "pd.Series[Any]") -> str:
    return "rank" if row["kind"] == CPU else "GPU"


def fits(found: Forecast) -> Html:
    """Return how many settings fit, what the others lack, which were refused, and what the predictions rest on."""
    parts = "".join(f"{title}{bullet_list(_fits(part, found))}" for title, part in _by_task(found))
    said = [f"Refused and left out: {reason}." for reason in found.refused]
    if found.calibrated_on:
        said.append(f"Predicted speeds follow from {found.calibrated_on} measured settings on {found.gpu.name}.")
    return Html(f"{parts}{bullet_list(said) if said else ''}")


def _fits(table: pd.DataFrame, found: Forecast) -> list[str]:
    is_fitting = table["fits"].astype(bool)
    bases = table["basis"][is_fitting].value_counts()
    known = [f"{bases[basis]} {basis}" for basis in (MEASURED, PREDICTED) if basis in bases]
    said = [
        f"{is_fitting.sum()} of {count(len(table), 'setting')} fit on {found.gpu.name}, which has "
        f"{found.gpu.memory_gib:.0f} GiB ({', '.join(known) or 'none'})."
    ]
    others = table[~is_fitting].dropna(subset="peak_allocated_gib")
    if len(others):
        least = others.loc[others["peak_allocated_gib"].idxmin()]
        said.append(f"The smallest that does not fit is {least['experiment']}: {_memory(least)} for tensors alone.")
    return said


def forecast_answer(found: Forecast, tokens: float, currency: str = "$") -> Html:
    """Return the setting of each task with the fewest days and the cheapest one, what they take, and how sure that is.

    Where every setting takes more than `MOST_DAYS`, say so, and how many GPUs would be needed.
    """
    return Html("".join(f"{title}{_answer(found, part, tokens, currency)}" for title, part in _by_task(found)))


def _answer(found: Forecast, table: pd.DataFrame, tokens: float, currency: str) -> Html:
    task = str(table["task"].iloc[0])
    made, fewest = found.decisions[task]
    if made.options.empty:
        return bullet_list([f"{said[0].upper()}{said[1:]}." for said in found.instead.get(task, ())], NOTHING_FITS)
    rows = table.set_index("experiment", drop=False)
    ranked = rows.loc[made.options["experiment"]]
    best, cheapest = ranked.iloc[0], rows.loc[fewest.options["experiment"].iloc[0]]
    if best["days"] > MOST_DAYS:
        reason, needed = beyond(ranked, "setting", count(best["gpus"], "GPU"), tokens, currency)
        rate = f"{best['tokens_per_s']:,.0f} tokens/s{_error(best['tokens_per_s_error_pct'])}"
        said = [f"{reason} The fastest is {best['experiment']} ({best['basis']}), {rate}.", needed]
    else:
        said = [f"Fewest days for {amount(tokens)} tokens: {_setting(best, currency)}."]
        if cheapest["experiment"] != best["experiment"]:
            said.append(f"Fewest GPU-hours: {_setting(cheapest, currency)}.")
    if len(ranked) > 1:
        said.append(_how_sure(best, ranked.iloc[1], found.doubts.get(task)))
    if best["outside"]:
        said.append(f"Less sure than that: {best['outside']}.")
    return bullet_list(said)


def forecast_table(found: Forecast, currency: str = "$") -> Html:
    """Return all settings of each task with their figures and errors; columns without any value are left out."""
    titles = {**FORECAST_SHOWN, "cost": f"cost ({currency.strip()})"}
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
    days = duration_range(24 * row["days_low"], 24 * row["days_high"])
    takes = f"{days}, {significant(row['gpu_hours'])} GPU-hours{_cost(row, currency)}"
    return f"{row['experiment']} ({row['basis']}), {rate}, {takes}{memory}"


def _memory(row: "pd.Series[Any]") -> str:
    return f"{row['peak_allocated_gib']:.1f} GiB{_error(row['peak_allocated_error_pct'])}"


def _error(pct: float) -> str:
    return "" if pd.isna(pct) else f" ± {pct:.1f} %"


def _how_sure(
    best: "pd.Series[Any]", second: "pd.Series[Any]", doubt: tuple[str, ratio_errors.RatioError] | None
) -> str:
    slower = 100 * (second["days"] / best["days"] - 1)
    said = f"Next is {second['experiment']} ({second['basis']}), {slower:.1f} % slower"
    errors = [pct for pct in (best["tokens_per_s_error_pct"], second["tokens_per_s_error_pct"]) if not math.isnan(pct)]
    if not errors:
        return f"{said}; both were measured, and 20_compare says whether that is more than noise."
    within = doubt[1].mean_pct if doubt else max(errors)
    error = ratio_errors.words(*doubt) if doubt else f"the error of {within:.1f} %"
    if slower > within:
        return f"{said}, more than {error}."
    unknown = [row["experiment"] for row in (best, second) if row["basis"] == PREDICTED]
    return f"{said}, within {error}: run {' and '.join(map(str, unknown))} to decide."
