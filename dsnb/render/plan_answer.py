"""A plan in words: which measured setting takes the fewest days, GPU-hours and money, and which prices that assumes."""

import html
from collections.abc import Mapping

import pandas as pd

from dsnb.analysis.plan import price_of
from dsnb.render.tables import Html, bullet_list, number_table

HEADINGS = {
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "tokens_per_s": "tokens/s",
    "gpu_hours": "GPU-hours",
    "power_w": "power per GPU (W)",
    "energy_kwh": "energy (kWh)",
}
LEAST = {"days": "Fewest days", "gpu_hours": "Fewest GPU-hours", "cost": "Lowest cost of the settings with a price"}


def table(needed: pd.DataFrame, currency: str = "$") -> Html:
    """Return a plan as a table with units; columns without any value are left out."""
    shown = needed.dropna(axis="columns", how="all") if len(needed) else needed
    titles = {**HEADINGS, "cost": f"cost ({currency})"}
    return number_table(shown.rename(columns=titles), text_columns=("experiment", "source", "GPU"))


def answer(needed: pd.DataFrame, tokens: float, currency: str = "$") -> Html:
    """Return the settings with the fewest days, the fewest GPU-hours and the lowest cost as sentences."""
    if needed.empty:
        return Html("<p>No setting has a measured throughput: choose other runs, other tables or another model.</p>")
    best = {name: needed.loc[needed[name].idxmin()] for name in LEAST if needed[name].notna().any()}
    sentences: list[str] = []
    named: set[str] = set()
    for column, row in best.items():
        of_what = f" for {tokens / 1e9:,.4g} billion tokens" if column == "days" else ""
        code = f"<code>{html.escape(str(row['experiment']))}</code>"
        setting = f"{code}, as above" if row["experiment"] in named else f"{code} {_figures(row, currency)}"
        sentences.append(f"<li>{LEAST[column]}{of_what}: {setting}.</li>")
        named.add(row["experiment"])
    return Html(f"<ul>{''.join(sentences)}</ul>")


def assumptions(needed: pd.DataFrame, prices: Mapping[str, float], currency: str = "$") -> Html:
    """Return which prices the costs assume, for which GPUs there is none, and which given price is not used."""
    used = [str(name) for name in needed["gpu_name"].dropna().unique()]
    priced = {name: price for name in used if (price := price_of(name, prices)) is not None}
    sentences = [f"Assumed: {currency}{price:,.10g} per GPU-hour of {name}." for name, price in priced.items()]
    if missing := [name for name in used if name not in priced]:
        sentences.append(f"No price is given for {', '.join(missing)}: no cost is shown for these. Set `prices`.")
    if unused := [name for name in prices if name and name not in used]:
        sentences.append(f"The price for {', '.join(unused)} is not used: no setting was measured on it.")
    return bullet_list(sentences, "No setting names its GPU, so only a price for all GPUs, prices[''], is used.")


def _figures(row: pd.Series, currency: str) -> str:
    cost = "" if pd.isna(row["cost"]) else f", {html.escape(currency)}{row['cost']:,.0f}"
    energy = "" if pd.isna(row["energy_kwh"]) else f", {row['energy_kwh']:,.0f} kWh"
    gpus = f"{row['gpus']:.0f} GPU{'s' if row['gpus'] != 1 else ''}"
    return f"on {gpus}, {row['days']:,.4g} days, {row['gpu_hours']:,.0f} GPU-hours{energy}{cost}"
