"""Groups of hosts: only the slow host is suspected; 64 nodes take seconds."""

import re
import time

import pandas as pd
import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.results.answers import hosts
from dsnb.results.runs.number_text import MINUS
from dsnb.settings.records.columns import RUN_COLUMNS
from dsnb.show.render import nodes
from dsnb.show.render.tables import Html
from tests.support import made_up

HOSTS = [f"node-{number:03d}" for number in range(1, 65)]
SLOW, DEAD = HOSTS[41], HOSTS[18]


def a_group(hosts, rate, status="ok", **more):
    """A run's row; `hosts` as `a+b`, the rate in samples/s per node."""
    count = hosts.count("+") + 1
    settings = {
        "sweep": "s",
        "experiment": f"nodes{count}",
        "repeat": 1,
        "source": "dsnb",
        "model": "gpt2",
    }
    where = {
        "hosts": hosts.replace("+", ","),
        "nodes": count,
        "gpus": 8 * count,
        "run_dir": None,
        "status": status,
    }
    figures = {"samples_per_s": rate * count, "tokens_per_s": 100 * rate * count} if rate else {}
    return {**dict.fromkeys(RUN_COLUMNS), **settings, **where, **figures, **more}


def table_of(*rows):
    return hosts.groups(
        pd.DataFrame([row if isinstance(row, dict) else a_group(*row) for row in rows])
    )


def alone(*rates):
    return [(host, rate) for host, rate in zip("abcdefgh", rates, strict=False)]


def suspects(table):
    found = hosts.hosts(table)
    return list(found.index[found["is_suspect"]])


def test_64_nodes_take_seconds_and_exactly_the_slow_one_is_suspected(tmp_path):
    """In groups of 1 to 64: one is 12 % slow, one fails."""
    made_up.write_groups(tmp_path / "scaling", HOSTS, slow={SLOW: 0.12}, failing=[DEAD])
    (tmp_path / "scaling" / "params.yaml").write_text("name: scaling\nexpect_samples_per_s: 90\n")
    began = time.process_time()
    runs = dsnb.load_runs(tmp_path)
    table = hosts.groups(runs)
    parts = nodes.section(runs)
    assert time.process_time() - began < 10
    assert len(runs) == len(table) == 127
    assert suspects(table) == [SLOW]
    row = hosts.hosts(table).loc[SLOW]
    assert row["off_median_pct"] == pytest.approx(-12, abs=1.5)
    assert row["groups"] == row["slow"] == 5
    assert set(table.loc[table["failed"] > 0, "hosts"].str.contains(DEAD)) == {True}
    assert list(table["verdict"].value_counts()[["fail", "pass"]]) == [7 + 6, 127 - 13]
    said = hosts.describe(table)
    assert said[0].startswith(f"Suspect: {SLOW}, \N{MINUS SIGN}")
    assert said[0].endswith(" %: slow in 5 of 5 groups.")
    assert (
        said[1]
        == f"Failed: {DEAD} (zs0_bf16_gpus8_bs8_sl512: 1 failed): {DEAD}: no answer for 30 s."
    )
    assert said[2] == "6 of 127 groups are below the 90 samples/s per node expected of them."
    assert [type(part).__name__ for part in parts].count("Picture") == 1


PAIRS = [("a+b", 70), ("c+d", 100), ("e+f", 101), ("g+h", 99)]


@pytest.mark.parametrize(
    ("rows", "slow"),
    [
        (alone(100, 100, 101, 90), ["d"]),
        (alone(100, 70), []),  # which of two is slow is unknown
        (alone(100, 130, 70), []),  # no two are alike
        (alone(100, 110, 90, 92, 108, 96), []),  # within the spread
        (PAIRS, ["a", "b"]),
        ([*PAIRS, ("a+c", 100), ("b+d", 71), ("e+g", 100), ("f+h", 100)], ["b"]),  # a was in a fast one
        ([*PAIRS, *alone(70, 100, 100, 101, 99, 100, 100, 100)], ["a"]),  # the pair is slow by what a is
        ([*PAIRS, *alone(100, 100, 100, 101, 99, 100, 100, 100)], []),  # it is the network between a and b
        ([("a", None, "failed"), *alone(100, 100, 100)[1:]], []),
    ],
)  # fmt: skip
def test_who_is_suspected(rows, slow):
    assert suspects(table_of(*rows)) == slow


def test_a_host_is_as_far_off_as_its_smallest_group():
    """The pair with host a is 29.6 % below 99.5, a alone 40 % below 100."""
    table = table_of(*PAIRS, *alone(60, 100, 100, 101, 99, 100, 100, 100))
    assert list(table["nodes"]) == [1] * 8 + [2] * 4  # smallest groups first
    assert list(table["samples_per_s"].tail(4)) == [140, 200, 202, 198]  # of both nodes
    found = hosts.hosts(table)
    assert found.index[0] == "a"
    assert found["off_median_pct"]["a"] == pytest.approx(-40)
    assert list(hosts.describe(table)) == [f"Suspect: a, {MINUS}40.0 %: slow in 2 of 2 groups."]


def test_runs_that_are_not_ok_have_no_rate_and_only_the_smallest_failed_group_is_named():
    table = table_of(("a", 100), ("a", 50, "interrupted"), ("b", 90))
    assert table[["per_node", "n", "failed"]].to_numpy().tolist() == [[100, 1, 0], [90, 1, 0]]
    assert table["samples_per_s"].tolist() == [100, 90]
    failed = table_of(("a+b", None, "failed"), ("a", None, "failed"), ("c+d", 100))
    assert [text for text in hosts.describe(failed) if "Failed" in text] == [
        "Failed: a (nodes1: 1 failed): -."
    ]


def test_the_words_about_hosts():
    network = table_of(*PAIRS, *alone(100, 100, 100, 101, 99, 100, 100, 100))
    assert hosts.describe(network)[0] == (
        "The group a, b is 29.6 % below the median, but each of its hosts was in a group of full speed: check the "
        "network between them."
    )
    suspect = "Suspect: d, \N{MINUS SIGN}10.0 %: slow in 1 of 1 groups."
    assert hosts.describe(table_of(*alone(100, 100, 101, 90)))[0] == suspect
    assert hosts.describe(table_of(*alone(100, 101, 99)))[:1] == [
        "No host is slow: none is 3 % below its median and outside the spread of the others."
    ]
    assert hosts.describe(table_of(*alone(100, 70))) == [
        "Fewer than 3 groups of one size were measured: too few to call a host slow."
    ]
    lost = {**a_group("a", None, "failed"), "hosts": None, "cause": "no route\x1b[2J to host c"}
    (sentence,) = [
        text for text in hosts.describe(table_of(*alone(100, 100), lost)) if "Failed" in text
    ]
    assert sentence == "Failed: unknown hosts (nodes1: 1 failed): no route?[2J to host c."


@pytest.mark.parametrize(
    ("expected", "rows", "verdicts"),
    [
        ({}, alone(100, 100), ["-", "-"]),
        ({"s": 95}, alone(100, 90), ["pass", "fail"]),
        ({"s": 95}, [("a+b", 100), ("c+d", 90)], ["pass", "fail"]),  # per node, whatever the size
        ({"s": 95}, [("a", 100), ("a", None, "oom")], ["fail"]),
        ({"s": 95}, [("a", 100), ("a", None, "interrupted")], ["-"]),  # not over yet
    ],
)
def test_pass_and_fail(monkeypatch, expected, rows, verdicts):
    monkeypatch.setattr(hosts, "expectations", lambda _: expected)
    assert list(table_of(*rows)["verdict"]) == verdicts


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "$\\frac{",
    "n\x1b[2J\u202egpj.exe",
    "x" * 3000,
    "=cmd()",
    "a,b",
]


def test_hostile_names_are_only_shown(tmp_path):
    made_up.write_groups(
        tmp_path / "s", HOSTILE, slow={HOSTILE[1]: 0.5}, failing=HOSTILE[:1], sizes=(1, 2)
    )
    (tmp_path / "s" / "params.yaml").write_text("name: s\nexpect_samples_per_s: 80\n")
    path = next(tmp_path.rglob("nodes.json"))
    record = json_files.read_json(path)
    record["nodes"][0]["environment"]["torch"] = "<script>alert(1)</script>"
    json_files.write_json(path, record)
    runs = dsnb.load_runs(tmp_path)
    assert max(len(name) for one in runs["hosts"] for name in one.split(",")) == 253
    text = "".join(str(part) for part in nodes.section(runs) if isinstance(part, Html))
    assert "&lt;script&gt;" in text
    assert "&lt;img src=x" in text
    assert not re.search(r"<(script|img|b)\b", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a?b" in text


def test_the_section_is_there_only_for_several_nodes_or_groups():
    for runs in (
        made_up.runs(6).reindex(columns=RUN_COLUMNS), dsnb.published("lambda_1cc_opt"),
        pd.DataFrame([a_group("a", 100)]),
    ):  # fmt: skip
        assert nodes.section(runs) == []
    failed = [
        {**a_group("a+b", None, "failed"), "hosts": None},
        a_group("c+d", None, "failed", cause="x"),
    ]
    assert "Failed: c, d (nodes2: 1 failed): x." in "".join(
        map(str, nodes.section(pd.DataFrame(failed)))
    )
