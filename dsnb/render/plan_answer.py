"""The answer of a plan in words: which measured setting is the quickest, and which takes the fewest GPU-hours."""

import html

import pandas as pd

from dsnb.render.tables import Html


def answer(table: pd.DataFrame, tokens: float) -> Html:
    """Name the quickest and the thriftiest setting of a plan."""
    if table.empty:
        return Html("<p>No setting here has a measured throughput: choose other runs, tables or another model.</p>")
    quick, thrifty = table.loc[table["days"].idxmin()], table.loc[table["gpu_hours"].idxmin()]
    said = [f"Quickest for {tokens / 1e9:,.4g} billion tokens: {_setting(quick)}."]
    if thrifty["experiment"] == quick["experiment"]:
        said.append("No other setting takes fewer GPU-hours.")
    else:
        said.append(f"Fewest GPU-hours: {_setting(thrifty)}.")
    return Html("<ul>" + "".join(f"<li>{sentence}</li>" for sentence in said) + "</ul>")


def _setting(row: pd.Series) -> str:
    name = f"<code>{html.escape(str(row['experiment']))}</code> on {int(row['gpus'])} GPUs"
    money = "" if pd.isna(row["cost"]) else f", {row['cost']:,.0f} at the given price"
    energy = "" if pd.isna(row["energy_kwh"]) else f", {row['energy_kwh']:,.0f} kWh"
    return f"{name}, {row['days']:,.4g} days, {row['gpu_hours']:,.0f} GPU-hours{energy}{money}"
