"""Figures that are means of samples need a time that is long for a sample: without it they are missing."""

import pandas as pd

from dsnb.formulas.metrics import UTILIZATION_S
from dsnb.runs.columns import numbers

UTILIZATION = "gpu_util_pct"


def without_noise(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs without the utilization of those whose timed steps took less than `UTILIZATION_S`.

    Parameters
    ----------
    runs
        One row per run in the columns of `dsnb.load_runs`. The time of the timed steps is `timed_s`, otherwise
        `timed_steps` x `step_time_s`; where neither is known, the figure stays.
    """
    timed_s = numbers(runs, "timed_s").fillna(numbers(runs, "timed_steps") * numbers(runs, "step_time_s"))
    is_short = timed_s < UTILIZATION_S
    return runs.assign(**{UTILIZATION: runs[UTILIZATION].mask(is_short)}) if is_short.any() else runs
