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
from dsnb.settings.experiment import Experiment

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
    """Return a row per run: its kind, and its step time as predicted from the runs of all other models, by parts."""
    rows = []
    for model in sorted({run.experiment.model for run in runs}):
        left = [run for run in runs if run.experiment.model == model]
        constants = calibrate([run for run in runs if run.experiment.model != model], PRIOR)
        parts = vars(step_times([run.setting for run in left], constants))
        columns = {name: np.broadcast_to(part, len(left)) for name, part in parts.items()}
        for number, run in enumerate(left):
            own = {f"{name.removesuffix('_s')}_ms": 1e3 * float(column[number]) for name, column in columns.items()}
            predicted_ms, measured_ms = sum(own.values()), 1e3 * run.step_time_s
            error = 100 * (predicted_ms / measured_ms - 1)
            names = {"kind": kind(run.experiment), "experiment": run.experiment.name_with_model}
            times = {"measured_ms": measured_ms, "predicted_ms": predicted_ms, "error_pct": error}
            rows.append({**names, **times, **own})
    return pd.DataFrame(rows)


def kind(experiment: Experiment) -> str:
    """Return what a setting is an example of."""
    if experiment.offload != "none":
        return "offload to the CPU"
    if experiment.tensor_parallel > 1 or experiment.pipeline_parallel > 1:
        return "TP 2, PP 2"
    if experiment.lora_rank:
        return "LoRA"
    names = {"plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
    return names.get(experiment.strategy, f"ZeRO {experiment.zero_stage}")


def table(found: pd.DataFrame) -> list[str]:
    """Return the lines of docs/explanation/prediction.md that say how large errors are, by kind of setting."""
    sizes = found.assign(size=found["error_pct"].abs())
    groups = [*sizes.groupby("kind"), ("**all**", sizes)]
    return [
        f"| {name} | {len(group)} | {group['size'].mean():.1f} | {group['size'].max():.1f} "
        f"| {group['error_pct'].mean():+.1f} |"
        for name, group in groups
    ]


def main() -> None:
    """Print the errors one by one and by kind, or the fitted constants."""
    runs = h200_runs()
    if sys.argv[1:] == ["fit"]:
        print(calibrate(runs, PRIOR))
        return
    found = errors(runs)
    print(found.round(1).to_string())
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
