"""Columns as numbers."""

import numpy as np
import pandas as pd

from dsnb.runs.columns import numbers


def test_what_is_no_number_is_nan():
    runs = pd.DataFrame({"mixed": [1, "2.5", "x", None], "whole": [1, 2, 3, 4]}, index=[3, 1, 4, 5])
    assert numbers(runs, "mixed").tolist()[:2] == [1.0, 2.5]
    assert numbers(runs, "mixed").isna().tolist() == [False, False, True, True]
    assert numbers(runs, "whole").dtype == np.float64
    assert numbers(runs, "missing").isna().all()
    assert list(numbers(runs, "missing").index) == [3, 1, 4, 5]
