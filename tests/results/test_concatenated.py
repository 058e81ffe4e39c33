"""Tables of runs that were put together with `pandas.concat`, so that labels of the index occur twice."""

import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.results.answers.lengths import compare_lengths
from dsnb.results.statistics import memory_use, scaling, setting_axes, summary, tasks
from dsnb.results.statistics.flags import flags
from tests import ROOT

ASKED = {
    "summarize": dsnb.summarize,
    "differences": dsnb.differences,
    "compare": lambda runs: dsnb.compare(runs, runs),
    "explore": dsnb.explore,
    "flags": flags,
    "tasks": tasks.tasks,
    "setting axes": setting_axes.variants,
    "memory": memory_use.footprint,
    "savings": memory_use.savings,
    "scaling": scaling.scaling,
    "lengths": compare_lengths,
    "unstable": summary.unstable,
    "varies": summary.varies,
}


@pytest.fixture(scope="module")
def both():
    """Return runs on CPUs and on GPUs, with and without a plain loop."""
    quickstart = dsnb.load_runs(ROOT / "outputs" / "examples" / "quickstart")
    return pd.concat([quickstart, dsnb.published("h200_gpt2_zero_precision")])


@pytest.mark.parametrize("name", ASKED)
def test_the_index_of_a_table_has_no_meaning(name, both):
    assert both.index.has_duplicates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ASKED[name](both)


def test_flags_are_those_of_each_table_and_keep_its_index(both):
    flagged = flags(both)
    assert flagged.index.equals(both.index)
    assert flagged["words"].tolist() == flags(both.reset_index(drop=True))["words"].tolist()
