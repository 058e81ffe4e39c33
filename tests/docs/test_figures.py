"""Figures in texts are those of the data, and marks do what `docs.figures` says."""

import json
import math
import re

import pytest

from docs import asked, figures, measured
from docs.figures import FigureError
from tests import ROOT

MADE_UP = {"speed": 200.0, "n": 3.0}


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setitem(measured.SOURCES, "fast", lambda: MADE_UP)
    monkeypatch.setitem(measured.SOURCES, "slow", lambda: {"speed": 1234.5})
    monkeypatch.setitem(measured.TABLES, "two", lambda: ["| a |", "|---|", "| 1 |"])


@pytest.mark.docs
def test_every_figure_and_table_is_that_of_the_data():
    assert [line for page in figures.texts() for line in figures.differences(page)] == []


@pytest.mark.docs
@pytest.mark.timeout(900)  # models are traced, and constants fitted
def test_slow_tables_are_those_of_the_data():
    assert [line for page in figures.texts() for line in figures.differences(page, slow=True)] == []


def test_texts_say_no_more_than_the_data():
    """Words beside the figures of `docs/questions.md` that depend on them."""
    assert measured.SOURCES["h200"]()["nan"] == 0  # "no NaN"
    assert measured.SOURCES["default_allocator"]()["n"] == 0  # "out of memory in all runs"
    assert "the fastest settings with four runs" in (ROOT / "docs" / "questions.md").read_text()
    rows = "".join(measured.TABLES["results"]())
    for name in ("opt_zero1", "bloom7b"):
        assert f"| {figures.figure(f'{name}.speed')} |" in rows


def test_all_named_settings_are_used():
    texts = "".join(page.read_text() for page in figures.texts())
    named = [name for settings in measured.DATA.values() for name in settings]
    assert [name for name in named if not re.search(rf"(figure: |/ ){name}\.", texts)] == []
    written = set(re.findall(r"<!-- table: ([\w-]+) -->", texts))
    assert written == {*measured.TABLES, *measured.SLOW_TABLES}
    in_figures = {name for name in asked.COMMANDS if f"figure: {name}." in texts}
    in_tables = {name for name in asked.COMMANDS if name.replace("asked_", "answer-") in written}
    assert in_figures | in_tables == set(asked.COMMANDS)


def test_commands_of_predicted_figures_are_on_a_page():
    texts = "".join(page.read_text() for page in figures.texts())
    for command in asked.COMMANDS.values():
        assert f"dsnb recommend {command}" in texts


def test_predicted_figures_are_those_that_the_command_prints(monkeypatch):
    best = {
        **dict.fromkeys(asked.COLUMNS.values(), 2.0),
        "experiment": "opt-1.3b_zs1_bf16_gpus16_bs8",
    }
    best |= {"peak_allocated_error_pct": 5.0, "mfu": 0.5, "cost": None, "days": 3.0}
    monkeypatch.setitem(asked.COMMANDS, "made_up", "a-model --gpus 16")
    monkeypatch.setattr(asked, "app", lambda words, standalone_mode: print(json.dumps([best, {}])))
    found = asked.recommended("made_up")
    assert {name: found[name] for name in ("days", "gpus", "error", "mfu")} == {
        "days": 3.0,
        "gpus": 16.0,
        "error": 0.1,
        "mfu": 50.0,
    }
    assert math.isnan(found["cost"])
    monkeypatch.setattr(asked, "app", lambda words, standalone_mode: print(*words, sep="\n"))
    assert list(asked.lines("made_up"))[1:] == [
        "```text",
        "recommend",
        "a-model",
        "--gpus",
        "16",
        "```",
    ]


def test_figures_that_take_minutes_are_left_as_they_are(made_up, monkeypatch):
    monkeypatch.setitem(measured.SLOW_SOURCES, "traced", lambda: {"speed": 3.0})
    text = "<!--figure: fast.n-->0<!--/figure--> and <!--figure: traced.speed-->0<!--/figure-->"
    new = figures.replaced(text, lambda name: not figures.is_slow(name))
    assert re.sub("<!--.*?-->", "", new) == "3 and 0"
    assert re.sub("<!--.*?-->", "", figures.replaced(text)) == "3 and 3"


def test_marks_are_filled(made_up):
    text = "Eager <!--figure: slow.speed-->1<!--/figure--> tokens/s (n = <!--figure: fast.n-->0<!--/figure-->)."
    new = figures.replaced(text)
    assert (
        re.sub("<!--.*?-->", "", new) == "Eager 1,234 tokens/s (n = 3)."
    )  # 1234.5, rounded to even
    assert figures.replaced(new) == new
    assert figures.figure("slow.speed / fast.speed") == "6.2"  # 1234.5 / 200 = 6.17
    assert figures.figure("fast.speed:.1f") == "200.0"
    table = "<!-- table: two -->\n\n| a |\n|---|\n| 0 |\n\n<!-- /table -->\n"
    assert figures.replaced(table) == table.replace("| 0 |", "| 1 |")
    assert figures.replaced(table, lambda name: name != "two") == table


def test_a_stale_text_is_named(made_up, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "It has <!--figure: fast.n-->4<!--/figure--> runs.\n\n<!-- table: two -->\n\n| a |\n|---|\n\n<!-- /table -->\n"
    )
    assert list(figures.differences(page)) == [
        "page.md: fast.n is 4, the data has 3",
        "page.md: table two lacks | 1 |",
        "page.md: table two has 2 rows, the data has 3",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It has <!--figure: fast.n-->3 runs", "p: a mark lacks its counterpart"),
        ("It has 3<!--/figure--> runs", "p: a mark lacks its counterpart"),
        (
            "<!-- table: two -->\n| a |\n\n<!-- /table -->",
            "p: a mark lacks its counterpart, or a table's mark its empty",
        ),
        ("It has\n<!--figure: fast.n-->3<!--/figure--> runs", "p: a figure begins a line"),
    ],
)
def test_marks_that_markdown_would_show_or_that_nothing_closes_are_refused(text, problem):
    with pytest.raises(FigureError, match=re.escape(problem)):
        figures.check_marks(text, "p")


@pytest.mark.parametrize(
    ("row", "other", "slack", "expected"),
    [
        ("| a | 1.0 |", "| a | 1.0 |", 0.0, True),
        ("| a | 1.0 |", "| a | 1.1 |", 0.0, False),
        ("| a | 1.0 |", "| a | 1.1 |", 0.11, True),
        ("| a | 1.0 |", "| a | 1.2 |", 0.11, False),
        ("| a | 1.0 |", "| b | 1.0 |", 0.11, False),
        ("| a | +1.0 |", "| a | -1.0 |", 0.11, False),
    ],
)
def test_numbers_that_linear_algebra_rounds_differ_by_a_digit(row, other, slack, expected):
    assert figures.is_same(row, other, slack) is expected


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.n", "there is no source 'none' of a figure"),
        ("fast.pace", "fast has no 'pace': it has speed, n"),
    ],
)
def test_names_of_nothing_are_refused(made_up, name, problem):
    with pytest.raises(FigureError, match=problem):
        figures.figure(name)
    with pytest.raises(FigureError, match="there is no table 'none'"):
        figures.table("none")
