"""How wrong predicted step times of models are that the constants were not fitted to.

`python -m benchmarks.prediction_errors` prints the error of each setting, predicted from those of other models.
The measured rows: `dsnb.published("h200_gpt2_zero_precision")` and `("h200_memory")`, `benchmarks/h200_bars.csv`, and
`benchmarks/h200_log.csv`, which holds the tables of docs/LOG.md since 2026-11-21 whose code is still the one that runs.
With `fit` it prints the constants that fit all of them, for `dsnb/prediction/constants.py`.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import dsnb
from benchmarks import bars
from dsnb.prediction.calibration import calibrate
from dsnb.prediction.constants import PRIOR
from dsnb.prediction.measured import Measured, measured
from dsnb.prediction.step_time import step_times

HERE = Path(__file__).parent
H200 = "NVIDIA H200"


def h200_runs() -> list[Measured]:
    """Return every measured run on H200 of this repository, medians where repeats were kept one by one."""
    return [*_medians(dsnb.published("h200_gpt2_zero_precision")), *_medians(dsnb.published("h200_memory")),
            *measured(_bars()), *measured(_log())]  # fmt: skip


def _medians(runs: pd.DataFrame) -> list[Measured]:
    fastest_first = runs.sort_values("step_time_s")
    middle = [group.iloc[(len(group) - 1) // 2] for _, group in fastest_first.groupby("experiment", sort=False)]
    return measured(pd.DataFrame(middle))


def _bars() -> pd.DataFrame:
    known = {f"{work}/{one.name}": one for work in bars.WORKS for one in bars.experiments(work)}
    table = pd.read_csv(HERE / "h200_bars.csv").rename(columns={"step_time_s_median": "step_time_s"})
    rows = [{**known[row["experiment"]].model_dump(), "step_time_s": row["step_time_s"], "gpu_name": H200}
            for row in table.to_dict("records")]  # fmt: skip
    return pd.DataFrame(rows)


def _log() -> pd.DataFrame:
    table = pd.read_csv(HERE / "h200_log.csv", keep_default_na=False)
    return table.assign(gpu_name=H200, precision="bf16", tokens_per_s=table["tokens_per_s_per_gpu"] * table["gpus"])


def errors(runs: list[Measured]) -> pd.DataFrame:
    """Return a row per run with its step time as predicted from the runs of all other models."""
    rows = []
    for model in sorted({run.experiment.model for run in runs}):
        left = [run for run in runs if run.experiment.model == model]
        constants = calibrate([run for run in runs if run.experiment.model != model], PRIOR)
        predicted = step_times([run.setting for run in left], constants)
        for number, run in enumerate(left):
            seconds = float(np.asarray(predicted.step_time_s)[number])
            parts = {name: round(float(np.broadcast_to(part, len(left))[number]) * 1e3, 1)
                     for name, part in vars(predicted).items()}  # fmt: skip
            error = 100 * (seconds / run.step_time_s - 1)
            rows.append({"experiment": run.experiment.name_with_model, "measured_ms": 1e3 * run.step_time_s,
                         "predicted_ms": 1e3 * seconds, "error_pct": error, **parts})  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table of errors, their mean and worst, or the fitted constants."""
    runs = h200_runs()
    if sys.argv[1:] == ["fit"]:
        print(calibrate(runs, PRIOR))
        return
    found = errors(runs)
    print(found.round(1).to_string())
    size = found["error_pct"].abs()
    print(f"mean {size.mean():.1f} %, median {size.median():.1f} %, worst {size.max():.1f} % of {len(found)} settings")


if __name__ == "__main__":
    main()
