"""A plan in words: which measured setting takes the fewest days, GPU-hours and money, and which prices that assumes."""

import html
from collections.abc import Mapping

import pandas as pd

from dsnb.analysis.plan import CPU, price_of
from dsnb.render.decision_words import amount, beyond, beyond_reason, duration, left_out_unstable
from dsnb.render.rounding import significant
from dsnb.render.tables import Html, bullet_list, number_table, subheading
from dsnb.runs import setting_words
from dsnb.settings.planning import MOST_DAYS

HEADINGS = {
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "tokens_per_s": "tokens/s",
    "gpu_hours": "GPU-hours",
    "power_w": "power per GPU (W)",
    "energy_kwh": "energy (kWh)",
}
NOTHING = "No setting has a measured throughput: choose other runs, other tables or another model."
LEAST = {"days": "Fewest days", "gpu_hours": "Fewest GPU-hours", "cost": "Lowest cost of the settings with a price"}


def table(needed: pd.DataFrame, currency: str = "$") -> Html:
    """Return a plan as a table with units; columns without any value are left out."""
    shown = needed.drop(columns="is_unstable")
    shown = shown.dropna(axis="columns", how="all") if len(shown) else shown
    titles = {**HEADINGS, "cost": f"cost ({currency.strip()})"}
    if set(needed["gpu_name"]) == {CPU}:
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
    left_out = int(needed["is_unstable"].sum())
    needed = needed[~needed["is_unstable"]]
    unstable = [f"{left_out_unstable(left_out)}."] if left_out else []
    if needed.empty:
        return bullet_list(unstable, NOTHING)
    quick = needed[needed["days"] <= MOST_DAYS]
    if quick.empty:
        fastest, thrifty = (needed.loc[needed[name].idxmin()] for name in ("days", "gpu_hours"))
        return bullet_list([*_beyond(fastest, thrifty, tokens, currency), *unstable])
    best = {name: quick.loc[quick[name].idxmin()] for name in LEAST if quick[name].notna().any()}
    sentences: list[str] = []
    named: set[str] = set()
    for column, row in best.items():
        of_what = f" for {amount(tokens)} tokens" if column == "days" else ""
        code = f"<code>{html.escape(str(row['experiment']))}</code>"
        setting = f"{code}, as above" if row["experiment"] in named else f"{code} {_figures(row, currency)}"
        least = LEAST[column].replace("GPU", _unit(row["gpu_name"]))
        sentences.append(f"<li>{least}{of_what}: {setting}.</li>")
        named.add(row["experiment"])
    sentences += [f"<li>{html.escape(one)}</li>" for one in unstable]
    return Html(f"<ul>{''.join(sentences)}</ul>")


def assumptions(needed: pd.DataFrame, prices: Mapping[str, float], currency: str = "$") -> Html:
    """Return which prices the costs assume, for which GPUs there is none, and which given price is not used."""
    used = [str(name) for name in needed["gpu_name"].dropna().unique()]
    priced = {name: price for name in used if (price := price_of(name, prices)) is not None}
    sentences = [
        f"Assumed: {currency}{price:,.10g} per {_unit(name)}-hour of {name}." for name, price in priced.items()
    ]
    if missing := [name for name in used if name not in priced]:
        sentences.append(f"No price is given for {', '.join(missing)}: no cost is shown. Set prices in the parameters.")
    if unused := [name for name in prices if name and name not in used]:
        sentences.append(f"The price for {', '.join(unused)} is not used here: no setting was measured on it.")
    return bullet_list(sentences, "No setting names its GPU, so only a price for all GPUs, prices[''], is used.")


def _beyond(fastest: pd.Series, thrifty: pd.Series, tokens: float, currency: str) -> list[str]:
    """Say that even the fastest setting is no plan, and how many GPUs would be needed."""
    unit = _unit(thrifty["gpu_name"])
    cost = "" if pd.isna(thrifty["cost"]) else f", {currency}{significant(thrifty['cost'])}"
    hours = f"{significant(thrifty['gpu_hours'])} {unit}-hours{cost}"
    setting = "" if thrifty["experiment"] == fastest["experiment"] else str(thrifty["experiment"])
    rate = thrifty["tokens_per_s"] / thrifty["gpus"]
    return [
        f"{beyond_reason('measured setting', '', tokens)} on {_place(fastest)}.",
        f"The fastest is {fastest['experiment']}, {significant(fastest['tokens_per_s'])} tokens/s.",
        beyond(thrifty["gpu_hours"], rate, unit, hours, setting),
    ]


def _figures(row: pd.Series, currency: str) -> str:
    cost = "" if pd.isna(row["cost"]) else f", {html.escape(currency)}{significant(row['cost'])}"
    energy = "" if pd.isna(row["energy_kwh"]) else f", {significant(row['energy_kwh'])} kWh"
    place, hours = html.escape(_place(row)), significant(row["gpu_hours"])
    return f"on {place}, {duration(24 * row['days'])}, {hours} {_unit(row['gpu_name'])}-hours{energy}{cost}"


def _place(row: pd.Series) -> str:
    device = "cpu" if row["gpu_name"] == CPU else None
    return setting_words.place({"gpus": row["gpus"], "gpu_name": None if device else row["gpu_name"], "device": device})


def _unit(gpu_name: object) -> str:
    return "rank" if gpu_name == CPU else "GPU"
