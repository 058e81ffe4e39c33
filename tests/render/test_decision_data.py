"""What the page receives to decide with: the numbers that Python's own tables have."""

import json
import math

import pandas as pd
import pytest

from dsnb.analysis import words
from dsnb.analysis.comparisons import differences
from dsnb.analysis.decide import Question, of_runs
from dsnb.render import decision_data
from dsnb.render.decision_data import tasks_payload
from tests.analysis import test_words


def runs(settings, repeats=4):
    """Give ok runs of one task at about 1,000 tokens/s a GPU, 10 % less for each setting after the first."""
    stages = {"precision": ["bf16"], "zero_stage": list(range(settings))}
    table = test_words.runs(settings * repeats, repeats, **stages).assign(gpu_name="H200", gpu_memory_gib=140.0)
    return table.assign(mfu=table["tokens_per_s"] / 4000)


def sent(table, figures=("tokens_per_s", "tokens_per_s_per_gpu", "mfu", "peak_allocated_gib")):
    """Give what the page reads of a single task, and the names of experiments."""
    names = list(dict.fromkeys(table["experiment"]))
    payload = tasks_payload(table, [0] * len(table), names, figures, ["zero_stage"])
    payload = json.loads(json.dumps(payload, allow_nan=False))
    return payload["texts"], payload["tasks"][0], names


def value(column, place):
    return column[place] if isinstance(column, list) else column


def test_candidates_are_those_of_the_decision():
    table = runs(3)
    assert json.loads(json.dumps(words.PAGE))["templates"] == words.TEMPLATES
    texts, task, names = sent(table)
    known = of_runs(table, Question(prices={"H200": 2.0}))
    found = task["candidates"]
    assert (found["length"], found["experiment"], task["case"], task["memory"]) == (3, [0, 1, 2], "", "GPU memory")
    for place, name in enumerate(names):
        row = known.table.loc[name]
        assert value(found["rate"], place) == pytest.approx(row["tokens_per_s"])
        assert value(found["memory"], place) == row["memory_gib"]
        assert 1e9 / value(found["rate"], place) / 3600 == pytest.approx(row["gpu_hours"] / 100)
        assert texts[value(found["kind"], place)] == "H200"
    assert (found["n"], found["failed"], found["capacity"], found["unstable"]) == (4, 0, 140, False)
    said = {texts[value(found["setting"], place)] for place in range(3)}
    assert said == {f"ZeRO {stage}, bf16, micro-batch 8" for stage in range(3)}


def test_the_intervals_of_pairs_are_those_of_the_tables():
    table = runs(3)
    _, task, names = sent(table)
    pairs = task["pairs"]
    assert (pairs["settings"], pairs["n"]) == ([0, 1, 2], [4, 4, 4])
    assert (pairs["first"], pairs["second"]) == ([0, 0, 1], [1, 2, 2])
    known = differences(table, baseline=names[0])
    rate = pairs["figures"]["tokens_per_s"]
    for place, other in ((0, 1), (1, 2)):
        ratio = rate["values"][other] / rate["values"][0]
        row = known.loc[names[other]]
        factor = value(rate["factor"], place)
        found = [100 * (end - 1) for end in (ratio, ratio / factor, ratio * factor)]
        assert found == pytest.approx([row["change_pct"], row["low_pct"], row["high_pct"]], abs=1e-3)
    assert "n" not in rate  # as many runs as the settings have
    assert pairs["figures"]["tokens_per_s_per_gpu"]["of"] == "tokens_per_s"  # the same factors, sent once
    share, points = pairs["figures"]["mfu"], differences(table, figure="mfu", baseline=names[0]).loc[names[1]]
    difference = share["values"][1] - share["values"][0]
    low = 100 * (difference - value(share["factor"], 0)) / share["values"][0]
    assert low == pytest.approx(points["low_pct"], abs=1e-3)


def test_runs_on_other_hosts_have_numbers_of_their_own():
    table = runs(2).assign(host=["a"] * 4 + ["b"] * 4)
    texts, task, _ = sent(table, ["tokens_per_s"])
    rate = task["pairs"]["figures"]["tokens_per_s"]
    assert rate["other"]["0"][:2] == [1, 1]
    assert rate["factor"] is None
    assert texts[rate["note"]["0"]] == "the settings ran on different hosts, so runs on one host count as one"


def test_too_few_runs_have_no_pairs_and_failed_ones_no_candidate():
    assert sent(runs(3, repeats=3))[1]["pairs"] == {
        "settings": [], "n": [], "first": [], "second": [], "figures": {},
    }  # fmt: skip
    failed = sent(runs(2).assign(status="oom", tokens_per_s=math.nan))[1]
    assert (failed["case"], failed["runs"], failed["candidates"]["length"]) == ("failed", 8, 0)
    assert f"headline.{failed['case']}" in words.TEMPLATES


def test_of_many_pairs_those_of_one_change_are_sent(monkeypatch):
    monkeypatch.setattr(decision_data, "MAX_PAIRS", 4)
    monkeypatch.setattr(decision_data, "CHOSEN_PAIRS", 4)
    table = pd.concat([runs(2), runs(2).assign(zero_stage=3, precision=["bf16"] * 4 + ["fp16"] * 4)], ignore_index=True)
    table["experiment"] = [f"{a}{b}" for a, b in zip(table["zero_stage"], table["precision"], strict=True)]
    names = list(dict.fromkeys(table["experiment"]))
    payload = tasks_payload(table, [0] * len(table), names, ["tokens_per_s"], ["zero_stage", "precision"])
    pairs = payload["tasks"][0]["pairs"]
    own = [names[number] for number in pairs["settings"]]
    sent_pairs = {(own[a], own[b]) for a, b in zip(pairs["first"], pairs["second"], strict=True)}
    assert {("0bf16", "1bf16"), ("0bf16", "3bf16"), ("1bf16", "3bf16"), ("3bf16", "3fp16")} == sent_pairs
