"""Cost of a training at measured throughput: days, GPU-hours, energy, money."""

from collections.abc import Mapping

import pandas as pd

from dsnb.analysis import stability
from dsnb.errors import SettingsError
from dsnb.formulas import metrics
from dsnb.runs.table import named_runs
from dsnb.settings import planning

COLUMNS = [
    "experiment",
    "source",
    "gpu_name",
    "gpus",
    "tokens_per_s",
    "days",
    "gpu_hours",
    "power_w",
    "energy_kwh",
    "cost",
    "is_unstable",
]
CPU = "CPU"
"""Name in place of a GPU's for runs without one, also in prices; their "GPUs" are ranks."""
MEASURED = ("source", "gpu_name", "gpus", "tokens_per_s", "power_w")
"""What must be known of a run; tables of other programs may lack the column."""


def plan(
    runs: pd.DataFrame, tokens: float, prices: Mapping[str, float] | None = None, power_w: float | None = None
) -> pd.DataFrame:
    """Return what training on `tokens` takes with each measured experiment.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` and `dsnb.published` return them; only ok runs count.
    tokens
        Tokens to train on.
    prices
        Price of a GPU-hour by `gpu_name`, in any currency; the key `""` is for all others. Without a price, the cost of
        a setting is missing.
    power_w
        Mean power of a GPU for runs without measured power; without it, their energy is missing.

    Returns
    -------
    pandas.DataFrame
        One row per experiment, the fastest first: `gpu_name` (`CPU` for runs without a GPU, whose `gpus` and
        `gpu_hours` are ranks and rank-hours), medians over its runs, then `days`, `gpu_hours`, `energy_kwh` (GPUs
        only), `cost`, and `is_unstable` (`dsnb.analysis.stability`), where a median is no answer. Days assume
        uninterrupted training: restarts, checkpoints and evaluation are not included.

    Raises
    ------
    SettingsError
        If the tokens, a price or the power is not a number of the allowed size.
    """
    if prices is not None and not isinstance(prices, Mapping):
        raise SettingsError(f"prices is {prices!r}: give the price of a GPU-hour by GPU, such as {{'A100': 1.5}}")
    planning.check(tokens, {f"prices[{name!r}]": price for name, price in (prices or {}).items()}, power_w=power_w)
    known = named_runs(runs)
    known = known.reindex(columns=[*known, *(name for name in MEASURED if name not in known)])
    ok = known[(known["status"] == "ok") & known["tokens_per_s"].notna() & known["gpus"].notna()]
    on_cpu = ok.get("device", pd.Series(index=ok.index, dtype=object)) == "cpu"
    ok = ok.assign(gpu_name=ok["gpu_name"].astype(object).mask(on_cpu & ok["gpu_name"].isna(), CPU))
    groups = ok.groupby("experiment", sort=False)
    table = groups[["source", "gpu_name"]].first()
    table[["gpus", "tokens_per_s", "power_w"]] = groups[["gpus", "tokens_per_s", "power_w"]].median()
    if power_w is not None:
        table["power_w"] = table["power_w"].fillna(power_w)
    rates = table[["tokens_per_s", "gpus"]].itertuples(index=False)
    table["days"] = [metrics.days(tokens, rate) for rate in table["tokens_per_s"]]
    table["gpu_hours"] = [metrics.gpu_hours(tokens, rate, gpus) for rate, gpus in rates]
    table[["days", "gpu_hours"]] = table[["days", "gpu_hours"]].astype(float)
    table["energy_kwh"] = table["gpu_hours"] * table["power_w"] / 1000
    price = pd.Series([price_of(name, prices or {}) for name in table["gpu_name"]], index=table.index, dtype=float)
    table["cost"] = table["gpu_hours"] * price
    table["is_unstable"] = table.index.isin(stability.unstable(ok))
    return table.reset_index().sort_values("days", kind="stable", ignore_index=True)[COLUMNS]


def price_of(gpu_name: object, prices: Mapping[str, float]) -> float | None:
    """Return the price of an hour of a GPU; None if none is given."""
    return prices.get(str(gpu_name), prices.get(""))
