"""Settings that no data set has, beside their predictions: fewer bits on one GPU, 7 to 8 billion parameters on four.

`python -m benchmarks.new_settings FOLDER GPU` adds the runs of a folder to `new_settings.csv`;
without arguments it prints the table of docs/explanation/prediction_time_errors.md, predicted with
today's constants.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import dsnb
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import KEYS

TABLE = Path(__file__).with_name("new_settings.csv")
GPU = "gpu"
"""The column with the name under which predictions know a run's GPU."""
FIGURES = ("tokens_per_s", "peak_allocated_gib")
HEADER = [
    "| model and setting | GPU | tokens/s | predicted | off, % | GiB | predicted | off, % |",
    "|---" * 8 + "|",
]


def known() -> pd.DataFrame:
    """Return the runs, a row each, with the columns of other tables of runs."""
    return pd.read_csv(TABLE)


def add(folder: Path, gpu: str) -> int:
    """Add the successful runs of a folder; return how many."""
    runs = dsnb.load_runs(folder)
    runs = runs[runs["status"] == "ok"].assign(**{GPU: gpu})
    before = known() if TABLE.exists() else pd.DataFrame()
    table = pd.concat([before, runs.drop(columns=["run_dir", "host", "source"])], ignore_index=True)
    table = table.dropna(axis=1, how="all").drop_duplicates(KEYS, keep="last")
    table.to_csv(TABLE, index=False, float_format="%.6g")
    return len(runs)


def compared() -> pd.DataFrame:
    """Return measured and predicted figures of each setting, medians of its runs."""
    table = known()
    medians = table.groupby(["model", "experiment", GPU], sort=False)[list(FIGURES)].median()
    first = table.groupby(["model", "experiment", GPU], sort=False).head(1)
    rows = []
    for row in first.to_dict("records"):
        experiment = Experiment.of_row(row)
        [predicted] = dsnb.predict([experiment], str(row[GPU])).to_dict("records")
        measured = medians.loc[(row["model"], row["experiment"], row[GPU])]
        found = {"model": row["model"], "experiment": row["experiment"], GPU: row[GPU]}
        for name in FIGURES:
            found[name] = measured[name]
            found[f"predicted_{name}"] = predicted[name]
        rows.append(found)
    return pd.DataFrame(rows)


def rows() -> Iterator[str]:
    """Yield the table's rows."""
    for row in compared().to_dict("records"):
        setting = row["experiment"].removeprefix(f"{row['model']}_")
        cells = [f"{row['model']}, {setting}", row[GPU]]
        for name, digits in zip(FIGURES, (0, 2), strict=True):
            measured = row[name]
            predicted = row[f"predicted_{name}"]
            cells.append(f"{measured:,.{digits}f}")
            cells.append(f"{predicted:,.{digits}f}")
            cells.append(f"{100 * (predicted / measured - 1):+.1f}")
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:]:
        print(add(Path(sys.argv[1]), sys.argv[2]), "runs added")
    else:
        print("\n".join([*HEADER, *rows()]))
