"""Planned runs, and those that have not ended."""

import json

import pandas as pd
import pytest

from dsnb.render import by_task
from dsnb.runs.load import left_out, planned_runs, still_to_come


def plan(folder, content):
    (folder / "planned.json").write_text(json.dumps(content))


def test_what_has_not_ended_is_to_come_first_repeats_first(tmp_path):
    plan(tmp_path, {"runs": {"a": [1, 2], "b": [1, 2]}})
    rows = [("a", 1, "ok"), ("b", 1, "oom"), ("a", 2, "interrupted")]
    runs = pd.DataFrame(rows, columns=["experiment", "repeat", "status"])
    assert still_to_come(runs, tmp_path) == ([("a", 2), ("b", 2)], 4)
    assert still_to_come(runs.head(0), tmp_path)[0] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    text = str(by_task.to_come(runs, tmp_path))
    assert "2 of 4 runs of this sweep are still to come: <code>a</code> run 2; <code>b</code> run 2." in text
    plan(tmp_path, {"runs": {"a": [1]}})
    assert not str(by_task.to_come(runs, tmp_path))


def test_what_was_left_out_is_not_to_come_and_is_said_with_its_reason(tmp_path):
    why = {"b": "needs 149.0 GiB of 140.0", "<b>": "needs <i>", "a": "needs 5", "odd": 3}
    plan(tmp_path, {"runs": {"a": [1]}, "left_out": why})
    runs = pd.DataFrame([("a", 1, "ok")], columns=["experiment", "repeat", "status"])
    text = str(by_task.to_come(runs, tmp_path))
    assert text == (
        "<p>Not run, because of the memory that is predicted (2 settings): "
        "<code>b</code> needs 149.0 GiB of 140.0; <code>&lt;b&gt;</code> needs &lt;i&gt;.</p>"
    )
    plan(tmp_path, {"left_out": {f"x{number}": "needs" for number in range(8)}})
    assert str(by_task.to_come(runs, tmp_path)).endswith("<code>x4</code> needs; and 3 more.</p>")


@pytest.mark.parametrize(
    "content", [{}, {"runs": [1]}, {"runs": {"a": 1}}, {"runs": {"a": ["x", True, None, [1]]}}, {"left_out": [1]}]
)
def test_a_plan_of_something_else_has_no_runs(tmp_path, content):
    plan(tmp_path, content)
    assert planned_runs(tmp_path) == []
    assert left_out(tmp_path) == {}


def test_names_are_escaped_and_a_long_list_is_cut(tmp_path):
    plan(tmp_path, {"runs": {"<script>": list(range(1, 9))}})
    runs = pd.DataFrame(columns=["experiment", "repeat", "status"])
    text = str(by_task.to_come(runs, tmp_path))
    assert "<script>" not in text
    assert "run 5; and 3 more" in text
