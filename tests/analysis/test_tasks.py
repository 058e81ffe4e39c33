"""Tasks: what must be trained; no two of them are ever compared."""

import pandas as pd

import dsnb
from dsnb.analysis.tasks import tasks
from tests.support import made_up


def test_a_task_is_model_length_data_and_what_is_trained():
    titles = {task.title: len(task.runs) for task in tasks(dsnb.published("lambda_1cc_opt"))}
    assert titles == {"opt-350m, sequence 512": 8, "opt-13b, sequence 512, LoRA adapters": 8}


def test_a_title_tells_what_is_unusual_or_what_other_tasks_do_not_tell():
    runs = made_up.runs(9, model=["gpt2"], seq_len=[512])
    runs["data"] = ["synthetic"] * 3 + ["stdlib"] * 3 + [None] * 3
    titles = ["gpt2, sequence 512, synthetic data", "gpt2, sequence 512, stdlib data", "gpt2, sequence 512"]
    assert sorted(task.title for task in tasks(runs)) == sorted(titles)
    assert [task.title for task in tasks(runs[:6])] == ["gpt2, sequence 512", "gpt2, sequence 512, stdlib data"]


def test_the_task_with_the_most_runs_comes_first():
    few, many = made_up.runs(6, seq_len=[128], model=["gpt2"]), made_up.runs(12, seq_len=[512], model=["gpt2"])
    found = tasks(pd.concat([few, many]))
    assert [task.title for task in found] == ["gpt2, sequence 512", "gpt2, sequence 128"]
    assert [len(task.runs) for task in found] == [12, 6]
    assert many.drop(columns=["model", "seq_len"]).nunique().max() > 3  # everything else is a way to do it
    pd.testing.assert_frame_equal(found[0].runs, many)


def test_runs_of_other_programs_may_not_say_what_they_trained():
    runs = pd.DataFrame({"experiment": ["a", "b"], "repeat": 1, "status": "ok", "model": [None, None]})
    assert [(task.title, len(task.runs)) for task in tasks(runs)] == [("", 2)]
