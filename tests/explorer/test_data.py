"""Columns as a page holds them: exact for few runs, to 15 digits and short for many."""

import numpy as np
import pandas as pd
import pytest

from dsnb.explorer import data


def table(count):
    draw = np.random.default_rng(0)
    rate = draw.lognormal(10, 1, count)
    rate[::7] = np.nan
    gpus = draw.choice([1, 3, 8], count)
    other = draw.normal(300, 5, count)
    return pd.DataFrame({"rate": rate, "per_gpu": rate / gpus, "mfu": 7.3 * rate / gpus / 989, "power": other})


def test_figures_of_few_runs_are_exact():
    few = table(300)
    stored = data.stored(few)
    assert all("values" in one for one in stored.values())
    pd.testing.assert_frame_equal(data.restored(stored, few.index), few, check_exact=True)


def test_multiples_of_a_figure_are_stored_as_such_where_there_are_many_runs():
    many = table(1200)
    stored = data.stored(many)
    assert [one.get("of") for one in stored.values()] == [None, "rate", "rate", None]
    assert [len(stored[name]["factors"]) for name in ("per_gpu", "mfu")] == [3, 3]
    pd.testing.assert_frame_equal(data.restored(stored, many.index), many, rtol=1.1e-15, atol=0)


@pytest.mark.parametrize("change", [1e-9, np.nan, -1.0])
def test_one_run_that_is_no_multiple_keeps_the_whole_column(change):
    many = table(1200)
    many.loc[5, "mfu"] = change if change < 0 or np.isnan(change) else many.loc[5, "mfu"] * (1 + change)
    stored = data.stored(many)
    pd.testing.assert_frame_equal(data.restored(stored, many.index), many, rtol=1.1e-15, atol=0)
