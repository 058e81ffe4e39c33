"""What the explorer, forms and recommendations that are written refuse: the whole message."""

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.results.answers.answer import Answer
from dsnb.show.form import recommend
from dsnb.show.form.measure import Measuring, _checked
from dsnb.show.render.nodes import compare_groups
from tests.support.refusals import message_of

RUNS = pd.DataFrame({"experiment": ["a"], "status": ["ok"], "tokens_per_s": [1.0]})


def refusal(call):
    return message_of(call, SettingsError)


@pytest.mark.parametrize("lacking", ["status", "experiment"])
def test_tables_that_are_none_of_runs(lacking):
    words = f"explore needs the table that load_runs returns; it has no column {lacking}"
    assert (
        refusal(lambda: dsnb.explore(dsnb.published("lambda_1cc_opt").drop(columns=lacking)))
        == words
    )


def test_a_table_cannot_be_watched():
    words = "explore can watch a folder of runs, not a table: pass the folder, such as outputs/name"
    assert refusal(lambda: dsnb.explore(RUNS, watch=True)) == words


def test_nothing_is_written_where_nothing_fits(tmp_path):
    words = f"nothing is written to {tmp_path}: no setting fits"
    assert refusal(lambda: recommend.write(tmp_path, Answer("a", pd.DataFrame(), ()))) == words
    assert list(tmp_path.iterdir()) == []


def test_groups_need_hosts():
    words = (
        "no run used a hostfile, so there are no groups of nodes to compare: "
        "choose the folder of a sweep that did"
    )
    assert refusal(lambda: compare_groups(dsnb.published("lambda_1cc_opt"))) == words


def test_values_that_no_params_file_can_have():
    words = "1j cannot be written to a params file: give numbers, texts, lists"
    assert refusal(lambda: plain_yaml.dump({"grid": 1j})) == words
    assert plain_yaml.dump({"grid": ["a"]}) == "grid:\n- a\n"


def test_measurements_without_a_result(tmp_path, monkeypatch):
    measuring = Measuring(tmp_path, None, {}, None)
    words = "nothing could be measured: there was no time for any run; give more minutes"
    assert refusal(lambda: _checked(None, measuring)) == words
    failed = {"a": "out of memory", "b": "it hung"}
    monkeypatch.setattr(Measuring, "failed", lambda self, runs: failed)
    with pytest.raises(SettingsError) as caught:
        _checked(RUNS.assign(status="oom"), measuring)
    assert caught.value.problems == [
        "nothing could be measured: a: out of memory",
        "nothing could be measured: b: it hung",
    ]
    assert _checked(RUNS, measuring) is RUNS
