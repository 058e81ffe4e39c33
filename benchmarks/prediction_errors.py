"""How wrong predicted step times of models are that the constants were not fitted to.

`python -m benchmarks.prediction_errors` prints the error of each setting, predicted from those of other models.
The measured rows: `dsnb.published("h200_gpt2_zero_precision")` and `("h200_memory")`, `benchmarks/h200_bars.csv`, and
`benchmarks/h200_log.csv`, which holds the tables of docs/LOG.md since 2026-11-21 whose code is still the one that runs.
With `fit` it prints the constants that fit all of them, for `dsnb/prediction/constants.py`.
"""

import sys
from pathlib import Path

import pandas as pd

import dsnb
from benchmarks import bars
from dsnb.prediction.calibration import calibrate
from dsnb.prediction.constants import PRIOR
from dsnb.prediction.measured import Measured, measured
from dsnb.prediction.time_errors import TimeError, by_kind, left_out

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


def lines(found: dict[str, TimeError]) -> list[str]:
    """Return the table of docs/explanation/prediction.md that says how large errors are, by kind of setting."""
    return [
        f"| {name} | {one.settings} | {one.mean_pct:.1f} | {one.worst_pct:.1f} | {one.bias_pct:+.1f} |"
        for name, one in found.items()
    ]


def main() -> None:
    """Print the error of each run and those by kind, or the fitted constants."""
    runs = h200_runs()
    if sys.argv[1:] == ["fit"]:
        print(calibrate(runs, PRIOR))
        return
    errors = left_out(runs, PRIOR)
    for run, error in sorted(zip(runs, errors, strict=True), key=lambda one: one[1]):
        print(f"{run.experiment.name_with_model}: {1e3 * run.step_time_s:.1f} ms measured, {error:+.1f} %")
    print("\n".join(lines(by_kind(runs, errors))))


if __name__ == "__main__":
    main()
