"""Eight GPUs of one host, predicted before they ran: `python -m benchmarks.eight_gpus predict`, then `FOLDER GPU`.

`predict` writes the predictions of the settings in `params/eight` for the GPUs that may be lent;
`benchmarks/eight_gpus.sh` measures them on a host. With a folder of its runs and the GPU's name, the
table has each setting's median beside its prediction, and how speed grows with the GPUs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import dsnb
from dsnb.measure.sweep.params import load_sweep
from dsnb.settings.experiment import Experiment

PARAMS = Path(__file__).parent / "params" / "eight"
PREDICTED = Path(__file__).with_name("eight_gpus.csv")
GPUS = ("H100", "H200")
"""Of which a machine of eight may be."""
NAMES = ["model", "experiment"]
FIGURES = ["tokens_per_s", "peak_allocated_gib"]
RANGE = ["tokens_per_s_low", "tokens_per_s_high"]
COLUMNS = ["experiment", *FIGURES, *RANGE, "fits"]
HEADER = [
    "| model and setting | runs | tokens/s | predicted | off, % | in range | GiB | predicted | scaling, % |",
    "|---" * 9 + "|",
]


def experiments() -> list[Experiment]:
    """Return the settings, in the order in which they are measured."""
    found: dict[str, Experiment] = {}
    for file in sorted(PARAMS.glob("*.yaml")):
        for run in load_sweep(file).runs:
            found[run.experiment.name_with_model] = run.experiment
    return list(found.values())


def predicted() -> pd.DataFrame:
    """Return the predictions of all settings on each GPU, by today's constants."""
    asked = experiments()
    models = [one.model for one in asked]
    tables = []
    for gpu in GPUS:
        table = dsnb.predict(asked, gpu)[COLUMNS]
        table.insert(0, "model", models)
        tables.append(table.assign(gpu=gpu))
    return pd.concat(tables, ignore_index=True)


def compared(runs: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting that was tried: medians, predictions, and the share of ideal scaling from one GPU.

    A setting without a successful run has no figures, and the status of its first run as `problem`.

    Parameters
    ----------
    runs : pandas.DataFrame
        Runs with `model`, `experiment`, `gpus`, `status`, `tokens_per_s` and `peak_allocated_gib`.
    before : pandas.DataFrame
        The predictions of one GPU, a row for each setting.
    """
    ok = runs["status"] == "ok"
    groups = runs.assign(**runs[FIGURES].where(ok)).groupby([*NAMES, "gpus"], sort=False)
    table = groups[FIGURES].median().reset_index()
    table["runs"] = groups[FIGURES[0]].count().to_numpy()
    table["problem"] = groups["status"].first().to_numpy()
    of_one = table["experiment"].str.replace(r"gpus\d+", "gpus1", regex=True)
    alone = table.set_index(NAMES)["tokens_per_s"]
    ideal = (
        table["gpus"]
        * alone.reindex(pd.MultiIndex.from_arrays([table["model"], of_one])).to_numpy()
    )
    table["scaling_pct"] = 100 * table["tokens_per_s"] / ideal
    return table.merge(
        before[[*NAMES, *FIGURES, *RANGE, "fits"]], "left", NAMES, suffixes=("", "_predicted")
    )


def lines(table: pd.DataFrame) -> Iterator[str]:
    """Yield the rows of a table in Markdown."""
    for row in table.to_dict("records"):
        cells = _figures(row) if row["runs"] else _failure(row)
        name = f"{row['model']}, {row['experiment'].removeprefix(row['model'] + '_')}"
        yield f"| {' | '.join([name, str(row['runs']), *cells])} |"


def _figures(row: dict[str, Any]) -> list[str]:
    """Return measured and predicted figures; a range without a low end promises none."""
    low, high = (row[name] for name in RANGE)
    speed = row["tokens_per_s"]
    is_within = speed <= high and not speed < low
    scaling = row["scaling_pct"]
    return [
        f"{speed:,.0f}",
        f"{row['tokens_per_s_predicted']:,.0f}",
        f"{100 * (row['tokens_per_s_predicted'] / speed - 1):+.1f}",
        "yes" if is_within else "no",
        f"{row['peak_allocated_gib']:.2f}",
        f"{row['peak_allocated_gib_predicted']:.2f}",
        "" if pd.isna(scaling) else f"{scaling:.1f}",
    ]


def _failure(row: dict[str, Any]) -> list[str]:
    """Return why a setting has no figures, and what was predicted."""
    verdict = "fits" if row["fits"] else "does not fit"
    speed, memory_gib = (row[f"{name}_predicted"] for name in FIGURES)
    return [row["problem"], f"{speed:,.0f}", "", "", verdict, f"{memory_gib:.2f}", ""]


def main(arguments: list[str]) -> None:
    """Write the predictions, or print the table of a folder's runs."""
    if arguments == ["predict"]:
        predicted().to_csv(PREDICTED, index=False, float_format="%.6g")
        return
    folder, gpu = arguments
    runs = dsnb.load_runs(folder)
    before = pd.read_csv(PREDICTED)
    table = compared(runs, before[before["gpu"] == gpu])
    print("\n".join([*HEADER, *lines(table)]))


if __name__ == "__main__":
    main(sys.argv[1:])
