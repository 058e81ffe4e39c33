"""Parts of a report by task: nothing is ranked, and nothing is warned about, across tasks."""

import re

from dsnb.render import by_task
from tests.support import made_up

FAST, SLOW = "gpt2, sequence 512", "bloom-560m, sequence 512"


def two_tasks():
    """Give a small model at 1,000 and 2,000 tokens/s and a large one at 10 and 30, and a failed run of the latter."""
    table = made_up.runs(5, repeats=1, model=["gpt2"], gpus=[1]).assign(status="ok", cause=None)
    names = ["a", "b", "c", "d", "e"]
    table = table.assign(experiment=names, model=["gpt2"] * 2 + ["bloom-560m"] * 3, loss_first=[1, 1, 2, 2, 2.1])
    table = table.assign(tokens_per_s=[1000.0, 2000, 10, 30, 20], seed=0, global_batch_size=8)
    return table.assign(status=["ok"] * 4 + ["oom"], cause=[None] * 4 + ["no <room>"])


def parts(html, heading="h3"):
    """Give each task's part of the HTML by its title."""
    found = re.split(rf"<{heading}>(.*?)</{heading}>", str(html))
    return dict(zip(found[1::2], found[2::2], strict=True))


def names(html):
    return re.findall(r'<th scope="row"[^>]*>(.*?)</th>', str(html))


def test_medians_are_ranked_within_a_task():
    found = parts(by_task.medians(two_tasks()))
    assert {title: names(part) for title, part in found.items()} == {SLOW: ["d", "c", "e"], FAST: ["b", "a"]}
    one = str(by_task.medians(two_tasks().head(2)))
    assert "<h3>" not in one
    assert names(one) == ["b", "a"]
    disagreeing = two_tasks().iloc[[0, 1, 1]].assign(repeat=[1, 1, 2], tokens_per_s=[1000.0, 2000, 9000])
    assert names(by_task.medians(disagreeing)) == ["a", "b"]  # comes last


def test_settings_of_several_sweeps_have_one_name_on_the_page():
    runs = two_tasks().assign(sweep=["one", "two", "two", "two", "two"])
    found = parts(by_task.medians(runs))
    assert (names(found[FAST]), names(found[SLOW])) == (["two/b", "one/a"], ["two/d", "two/c", "two/e"])


def test_failures_are_below_the_task_that_they_concern():
    found = parts(by_task.failures(two_tasks()))
    assert list(found) == [SLOW]
    assert "no &lt;room&gt;" in found[SLOW]
    assert str(by_task.failures(two_tasks().head(4))) == "<p>None: all runs succeeded.</p>"


def test_remarks_and_unusual_runs_are_below_their_task():
    noted = two_tasks().assign(note=["odd", None, None, None, None])
    assert list(parts(by_task.remarks(noted), "h4")) == [FAST]
    found = parts(by_task.runs_to_look_at(two_tasks()), "h4")
    assert list(found) == [SLOW]
    assert "first loss +5.0 %" in found[SLOW]
