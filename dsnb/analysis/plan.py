"""Cost of a training at measured throughput: days, GPU-hours, energy, money."""

import pandas as pd

from dsnb.analysis.summary import qualify_experiments
from dsnb.formulas import metrics
from dsnb.runs.column_aliases import rename_old_columns

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
]


def plan(
    runs: pd.DataFrame, tokens: float, price_per_gpu_hour: float | None = None, power_w: float | None = None
) -> pd.DataFrame:
    """Return what training on `tokens` takes with each measured experiment.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` and `dsnb.published` return them; only ok runs count.
    tokens
        Tokens to train on.
    price_per_gpu_hour
        In any currency; without it, `cost` is missing.
    power_w
        Mean power of a GPU for runs without measured power; without it, their energy is missing.

    Returns
    -------
    pandas.DataFrame
        One row per experiment, the fastest first: medians over its runs, then `days`, `gpu_hours`, `energy_kwh` (GPUs
        only), `cost`. Days assume uninterrupted training: restarts, checkpoints and evaluation are not included.
    """
    known = qualify_experiments(rename_old_columns(runs))
    ok = known[(known["status"] == "ok") & known["tokens_per_s"].notna() & known["gpus"].notna()]
    groups = ok.groupby("experiment", sort=False)
    table = groups[["source", "gpu_name"]].first()
    table[["gpus", "tokens_per_s", "power_w"]] = groups[["gpus", "tokens_per_s", "power_w"]].median()
    if power_w is not None:
        table["power_w"] = table["power_w"].fillna(power_w)
    rates = table[["tokens_per_s", "gpus"]].itertuples(index=False)
    table["days"] = [metrics.days(tokens, rate) for rate in table["tokens_per_s"]]
    table["gpu_hours"] = [metrics.gpu_hours(tokens, rate, gpus) for rate, gpus in rates]
    table["energy_kwh"] = table["gpu_hours"] * table["power_w"] / 1000
    table["cost"] = [metrics.cost(hours, price_per_gpu_hour) for hours in table["gpu_hours"]]
    table["cost"] = pd.to_numeric(table["cost"])
    return table.reset_index().sort_values("days", ignore_index=True)[COLUMNS]
