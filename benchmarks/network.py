"""Predict the steps of `benchmarks/network.csv`: `python -m benchmarks.network`.

The rows were measured by `python -m benchmarks.network_box`: two hosts of two GPUs each in one machine,
joined by a network of a given speed. The prediction is told that speed, or, where nothing limited the
network, what an all-gather of 64 MiB reached.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from dsnb.prediction.predict import predict
from dsnb.settings.experiment import Experiment
from dsnb.settings.parallelism import parallelism

TABLE = Path(__file__).with_name("network.csv")
BANDWIDTH = Path(__file__).with_name("network_bandwidth.csv")
MESSAGE = 2**26
"""Bytes of the message that tells the speed of the network."""
HOSTS = 2
SETTINGS = [
    "model",
    "strategy",
    "zero_stage",
    "shard_size",
    "gpus",
    "micro_batch_size",
    "grad_accum",
    "seq_len",
    "compile",
]


def measured() -> pd.DataFrame:
    """Return the measured steps, with the speed of the network in `gbit`."""
    table = pd.read_csv(TABLE)
    bandwidth = pd.read_csv(BANDWIDTH)
    gathers = bandwidth[(bandwidth["collective"] == "all-gather") & (bandwidth["bytes"] == MESSAGE)]
    reached = 8 * gathers.groupby("limit_gbit")["busbw_gb_per_s"].mean()
    table["reached_gbit"] = table["limit_gbit"].map(reached)
    table["gbit"] = table["limit_gbit"].where(table["limit_gbit"] > 0, table["reached_gbit"])
    return table


def predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the predicted seconds of each step in `predicted_s`."""
    table = table.copy()
    for gbit, rows in table.groupby("gbit"):
        settings = [Experiment(**row, nodes=HOSTS) for row in rows[SETTINGS].to_dict("records")]
        steps = predict(settings, "H200", link=f"eth:{gbit:g}/node", probe=False)
        table.loc[rows.index, "predicted_s"] = steps["step_time_s"].to_numpy()
    table["error"] = table["predicted_s"] / table["step_s"] - 1
    return table


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the settings in words, and in the order of the first."""
    words = []
    for _, row in table.iterrows():
        name = parallelism(row)
        if row["grad_accum"] > 1:
            name += f", {row['grad_accum']} accumulated"
        words.append(name)
    return table.assign(setting=words)


def lines() -> list[str]:
    """Return the measured steps as a table of Markdown, with a column for each speed."""
    table = named(measured())
    speeds = sorted(table["limit_gbit"].unique(), key=lambda gbit: gbit or np.inf)
    names = [f"{gbit:g} Gbit/s" if gbit else "no limit" for gbit in speeds]
    found = [f"| seconds a step | {' | '.join(names)} |", "|---" * (len(speeds) + 1) + "|"]
    steps = table.pivot_table(index="setting", columns="limit_gbit", values="step_s")
    for setting, row in steps.sort_values(10.0).iterrows():
        cells = ["" if np.isnan(row[gbit]) else f"{row[gbit]:.2f}" for gbit in speeds]
        found.append(f"| {setting} | {' | '.join(cells)} |")
    return found


def main() -> None:
    """Print measured steps and errors by setting and speed, and the mean errors by speed."""
    table = named(predicted(measured()))
    print("\n".join(lines()), end="\n\n")
    errors = table.pivot_table(index="setting", columns="limit_gbit", values="error")
    print("error of the prediction by setting and limit in Gbit/s (0: none)")
    print(errors.to_string(float_format="{:+.0%}".format), end="\n\n")
    size = np.abs(table["error"]).groupby(table["limit_gbit"])
    print(size.agg(["mean", "max"]).to_string(float_format="{:.1%}".format))
    print(f"mean error of all {len(table)}: {np.abs(table['error']).mean():.1%}")


if __name__ == "__main__":
    main()
