"""A plan in words: the measured setting that takes the fewest days, and the one that takes the fewest GPU-hours."""

import html

import pandas as pd

from dsnb.render.tables import Html


def answer(table: pd.DataFrame, tokens: float) -> Html:
    """Return the settings with the fewest days and with the fewest GPU-hours as sentences."""
    if table.empty:
        return Html("<p>No setting has a measured throughput: choose other runs, other tables or another model.</p>")
    fastest, cheapest = table.loc[table["days"].idxmin()], table.loc[table["gpu_hours"].idxmin()]
    sentences = [f"Fewest days for {tokens / 1e9:,.4g} billion tokens: {_setting(fastest)}."]
    if cheapest["experiment"] == fastest["experiment"]:
        sentences.append("No other setting takes fewer GPU-hours.")
    else:
        sentences.append(f"Fewest GPU-hours: {_setting(cheapest)}.")
    return Html("<ul>" + "".join(f"<li>{sentence}</li>" for sentence in sentences) + "</ul>")


def _setting(row: pd.Series) -> str:
    name = f"<code>{html.escape(str(row['experiment']))}</code> on {int(row['gpus'])} GPUs"
    cost = "" if pd.isna(row["cost"]) else f", {row['cost']:,.0f} at the given price"
    energy = "" if pd.isna(row["energy_kwh"]) else f", {row['energy_kwh']:,.0f} kWh"
    return f"{name}, {row['days']:,.4g} days, {row['gpu_hours']:,.0f} GPU-hours{energy}{cost}"
