"""Tables that were written before some columns were renamed: every reader of tables takes them as it did."""

import pandas as pd
import pytest

import dsnb
from dsnb.analysis.choices import variants
from dsnb.analysis.comparisons import effects
from dsnb.analysis.decide import candidates, plan
from dsnb.analysis.memory_use import footprint, savings
from dsnb.analysis.scaling import scaling
from dsnb.explorer.data import read
from dsnb.render import answer
from dsnb.run_folder.columns import RUN_COLUMNS
from dsnb.runs.table import ALIASES, as_runs, named_runs
from tests.support import made_up

OLD = {new: old for old, new in ALIASES.items()}


@pytest.fixture(scope="module")
def runs():
    table = made_up.runs(12).reindex(columns=RUN_COLUMNS)
    names = table["zero_stage"].map({0: "H200", 1: "H200"}).fillna("A100")
    return table.assign(gpu_name=names, host="h", provenance="as logged: tokens_per_s")


@pytest.mark.parametrize("reader", [dsnb.summarize, footprint, savings, scaling, lambda runs: plan(runs, 1e9)])
def test_old_tables_of_runs_give_the_same_tables(runs, reader):
    pd.testing.assert_frame_equal(reader(runs.rename(columns=OLD)), reader(runs))


def test_old_tables_are_split_compared_and_explored_by_the_same_columns(runs):
    old = runs.rename(columns=OLD)
    assert "gpu" in old
    assert "origins" in old
    assert variants(old, 0).keys() == variants(runs, 0).keys()
    assert "gpu_name" in read(old).choices
    pd.testing.assert_frame_equal(read(old).runs, runs)
    base = runs["experiment"].iloc[0]
    columns = ["gpu_name", "zero_stage", "precision"], ["tokens_per_s_per_gpu"]
    pd.testing.assert_frame_equal(effects(old, base, *columns), effects(runs, base, *columns))
    assert str(answer.answer(old)) == str(answer.answer(runs))


def test_a_table_without_rows_keeps_its_columns():
    table = pd.DataFrame({"compile": pd.Series(dtype="str"), "gpu": pd.Series(dtype="str")})
    assert list(as_runs(table)) == ["compile", "gpu_name"]


def test_a_column_whose_current_name_is_there_is_left_alone():
    table = pd.DataFrame({"gpu": [0], "gpu_name": ["H200"], "n": [1]})
    pd.testing.assert_frame_equal(as_runs(table), table)


def test_a_table_that_has_passed_the_door_passes_it_unchanged(runs):
    named = named_runs(runs.assign(sweep=["a", "b"] * 6))
    assert named["experiment"].iloc[1] == f"b/{runs['experiment'].iloc[1]}"
    pd.testing.assert_frame_equal(named_runs(named), named)
    pd.testing.assert_frame_equal(as_runs(as_runs(runs)), as_runs(runs))


def test_names_of_several_sweeps_are_given_once_in_an_answer(runs):
    two = pd.concat([runs.assign(sweep="a"), runs.assign(sweep="b")], ignore_index=True)
    assert set(candidates(two).index) == set(named_runs(two)["experiment"])
