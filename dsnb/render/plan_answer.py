"""Plans as HTML: what a training takes with measured settings, and with predicted ones."""

from collections.abc import Mapping, Sequence

from dsnb.analysis.decide import CPU
from dsnb.analysis.recommend import Recommendation
from dsnb.render.tables import Html, bullet_list, number_table, subheading

TITLES = {
    "experiment": "experiment",
    "basis": "basis",
    "fits": "fits",
    "source": "source",
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_error_pct": "error of tokens/s, days and cost (%)",
    "days": "days",
    "days_low": "days, from",
    "days_high": "days, to",
    "gpu_hours": "GPU-hours",
    "power_w": "power per GPU (W)",
    "energy_kwh": "energy (kWh)",
    "cost": "cost",
}
"""Columns of a plan and their headings."""
NOTHING = "No setting has a measured throughput: choose other runs, other tables or another model."


def answers(plans: Sequence[Recommendation], notes: Sequence[str] = ()) -> Html:
    """Return the answer for each task below its title, then the notes on all of them."""
    parts = [f"{subheading(plan.task)}{bullet_list(list(plan.sentences), NOTHING)}" for plan in plans]
    parts += [str(bullet_list(list(notes)))] if notes else []
    return Html("".join(parts) or f"<p>{NOTHING}</p>")


def tables(plans: Sequence[Recommendation], currency: str = "$") -> Html:
    """Return the settings of each task with their figures and errors; columns without any value are left out."""
    return Html("".join(f"{subheading(plan.task)}{_table(plan, currency)}" for plan in plans))


def _table(plan: Recommendation, currency: str) -> Html:
    shown = plan.table[[name for name in TITLES if name in plan.table]]
    shown = shown.dropna(axis="columns", how="all") if len(shown) else shown
    titles = {**TITLES, "cost": f"cost ({currency.strip()})"}
    if "fits" in shown:
        shown = shown.assign(fits=shown["fits"].map({True: "yes", False: "no"}))
    else:
        shown = shown.drop(columns=["days_low", "days_high"], errors="ignore")
    if "kind" in plan.table and set(plan.table["kind"]) == {CPU}:
        shown = shown.drop(columns="gpu_name", errors="ignore")
        titles = {name: title.replace("GPU", "rank") for name, title in titles.items()}
    return number_table(shown.rename(columns=titles), ("experiment", "basis", "fits", "source", "GPU"))


def assumptions(plans: Sequence[Recommendation], prices: Mapping[str, float], currency: str = "$") -> Html:
    """Return which prices the costs assume, for which GPUs there is none, and which given price is not used."""
    names = dict.fromkeys(str(name) for plan in plans for name in plan.table["gpu_name"].dropna())
    used = {name: prices.get(name, prices.get("")) for name in names}
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
