"""Tables as terminals, spreadsheets and Markdown get them: no digit is cut, and names are text."""

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.base.files import plain_text
from dsnb.cli import summary_table
from dsnb.cli.printing import Format, _print_table, print_summary, show, table_width
from dsnb.results.runs.names import short_names
from tests.results.statistics.test_comparisons import runs_of
from tests.support import made_up
from tests.support.formulas import CELLS, formulas

FASTEST = "* fastest of this task"
ODD = [
    "=1+1", "+2", "-3", "@x", "\t=4", "\r=5", "a|b", "<b>x</b>", "`c`", "[d](e)", "\x1b[31mf", "\u202eg", "h\ni", "j",
]  # fmt: skip


def test_csv_holds_no_formula_and_markdown_cells_stay_cells(capsys):
    index = pd.Index(ODD, name="experiment")
    table = pd.DataFrame(
        {"n": range(len(ODD)), "change": [-1.5] * len(ODD), "cause": ODD}, index=index
    )
    shown = {}
    for format_ in (Format.csv, Format.markdown):
        show(table, table.astype(str), format_)
        shown[format_] = capsys.readouterr().out
        assert all(one.isprintable() or one == "\n" for one in shown[format_])
    rows = list(csv.reader(io.StringIO(shown[Format.csv])))
    assert rows[0] == ["experiment", "n", "change", "cause"]
    for row, odd in zip(rows[1:], ODD, strict=True):
        assert row[0] == row[3]
        assert row[0].startswith("'") == odd.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert row[2] == "-1.5"  # a number, not a text
    lines = shown[Format.markdown].splitlines()
    assert len(lines) == len(ODD) + 2
    for line in lines:
        assert line.replace("\\|", "").count("|") == 5
        assert "<b>" not in line
        assert "`c`" not in line.replace("\\`", "")
    assert any("&lt;b&gt;x&lt;/b&gt;" in line for line in lines)


def test_csv_has_no_formula_behind_a_space_or_a_separator_nor_with_full_width_signs(capsys):
    table = pd.DataFrame(
        {"n": -1.5, "cause": list(CELLS)}, index=pd.Index(CELLS, name="experiment")
    )
    show(table, table.astype(str), Format.csv)
    shown = capsys.readouterr().out
    rows = list(csv.reader(io.StringIO(shown)))[1:]
    assert (
        [row[0] for row in rows]
        == [row[2] for row in rows]
        == [plain_text.line(cell) for cell in CELLS.values()]
    )
    assert {row[1] for row in rows} == {"-1.5"}  # a number
    assert formulas(shown) == []


@pytest.mark.parametrize("name", ["xterm", "dumb"])
def test_a_terminal_gets_the_columns_that_fit_and_nothing_is_cut(monkeypatch, name):
    """`rich` takes a dumb terminal for 80 columns wide, whatever it is told."""
    for key, value in {"TERM": name, "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(key, value)
    names = [f"{'x' * 40}_zs{stage}" for stage in range(2)]
    table = pd.DataFrame(
        {f"figure{place}" * 3: [f"{place},000,000"] * 2 for place in range(9)}, index=names
    )
    monkeypatch.setattr("sys.stdout", shown := io.StringIO())
    shown.isatty = lambda: True
    show(table, table, Format.table, fit=True)
    show(table, table, Format.table)
    printed = shown.getvalue().splitlines()
    fitted, left_out, whole = printed[:4], printed[4], printed[5:]
    assert (table_width(), fitted[0]) == (100, f"in every name: {'x' * 40}")
    assert [row.split() for row in fitted[2:]] == [
        [f"zs{stage}", *(f"{n},000,000" for n in range(4))] for stage in (0, 1)
    ]
    assert left_out.startswith(f"no room for {'figure4' * 3}, ")
    assert [row.split() for row in whole[1:]] == [
        [name, *(f"{n},000,000" for n in range(9))] for name in names
    ]
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert table_width() > 1000  # piped output is not cut


def test_a_line_break_in_a_cause_forges_no_line(capsys):
    forged = "  plain_fp32_gpus1_bs8_sl128      4    999,999 ± 1"
    cause = f"failed\n{forged}\r{forged}\u2028{forged}"
    run = {
        "sweep": "s",
        "experiment": "zs0_fp32_gpus1_bs1_sl16",
        "repeat": 1,
        "status": "failed",
        "cause": cause,
    }
    print_summary(
        pd.DataFrame([{**run, "model": "gpt2", "seq_len": 16, "run_dir": "s/a/run1"}]), Format.table
    )
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.strip().startswith("plain_fp32") for line in lines)
    assert any(
        "failed" in line and "999,999" in line for line in lines
    )  # it is printed, in one line


@pytest.fixture(scope="module")
def runs():
    return dsnb.published("h200_gpt2_zero_precision")


def test_the_fastest_is_first_and_marked_and_what_names_have_in_common_stands_above(runs):
    ((title, table, _),) = summary_table.blocks(runs)
    assert title == "gpt2, sequence 128, stdlib text, on 1 NVIDIA H200, all micro-batch 32"
    assert len(set(table.index)) == 12  # four stages in three precisions
    medians = runs.groupby(["zero_stage", "precision"])["tokens_per_s"].median()
    medians.index = [f"ZeRO {stage:.0f}, {precision}" for stage, precision in medians.index]
    rates = [medians[name] for name in table.index]
    assert rates == sorted(rates, reverse=True)
    assert all(
        re.fullmatch(r"[\d,]+ to [\d,]+", text) for text in table["tokens/s"]
    )  # three runs each
    assert [mark.startswith("*") for mark in table[""]] == [True] + [False] * 11
    worst = f"{100 * (medians.min() / medians.max() - 1):+.1f} %".replace("-", "\N{MINUS SIGN}")
    assert list(table["vs best"].iloc[[0, -1]]) == ["best", worst]


def test_names_that_would_clash_stay_whole():
    assert short_names(["a_x", "a_y"], "_") == ("a", ["x", "y"])
    for names in (["a_x", "a"], ["a_b_c", "c_a_b", "a_b_c_d"], ["a_x"]):
        assert short_names(names, "_") == ("", names)


def test_settings_whose_words_are_equal_or_unknown_keep_their_names():
    runs = pd.DataFrame({"experiment": list("abcd"), "micro_batch_size": [8, 8, 4, None]})
    assert list(summary_table.in_words(runs)["experiment"]) == ["a", "b", "micro-batch 4", "d"]
    on_two = runs.assign(gpus=[1, 2, 2, 2], gpu_name="H200")
    words = ["micro-batch 8, 1 GPU", "micro-batch 8, 2 GPUs", "micro-batch 4, 2 GPUs", "d"]
    assert list(summary_table.in_words(on_two)["experiment"]) == words


def test_a_summary_wraps_its_last_column_alone(runs, capsys, monkeypatch):
    shown = {}
    for width in (100, 80):
        monkeypatch.setattr("dsnb.cli.printing.table_width", lambda width=width: width)
        print_summary(runs.assign(compile="default"), Format.table)
        shown[width] = capsys.readouterr().out.split("* fastest")[0]
        assert max(map(len, shown[width].splitlines())) <= width
    assert shown[80].split() == shown[100].split()
    assert "peak GiB" in shown[80]


def test_the_answer_of_the_only_task_comes_before_its_table(runs, capsys):
    print_summary(runs, Format.table)
    answer, table, *_ = capsys.readouterr().out.split("\n\n")
    title, warning, setting, time, speed, *_ = answer.splitlines()
    assert title.startswith("gpt2, sequence 128, stdlib text on 1 NVIDIA H200: an assumed 2.5 ")
    assert warning.startswith("Only ")
    assert setting.startswith("Train with  ZeRO ")
    assert (time.split()[0], speed.split()[0]) == ("time", "speed")
    assert re.search(r" tokens/s  ± \d+\.\d %", speed)
    assert table.startswith("gpt2, sequence 128, stdlib text, on 1 NVIDIA H200, all ")
    print_summary(pd.concat([runs, runs.assign(model="opt-125m")]), Format.table)
    assert "Train with" not in capsys.readouterr().out  # two tasks


def test_runs_that_are_not_ok_are_counted_last_and_say_why(capsys):
    runs = made_up.runs(
        12, model=["gpt2"], seq_len=[128], gpus=[1], micro_batch_size=[8], grad_accum=[1]
    )
    worst = runs["experiment"] == runs["experiment"].iloc[0]
    runs.loc[worst, [name for name in runs if runs[name].dtype == float]] = np.nan
    runs.loc[worst, ["status", "cause"]] = ["oom", "[red]no room[/]\x1b[31m"]
    ((_, table, _),) = summary_table.blocks(runs)
    assert table["runs"].iloc[-1] == f"0, {worst.sum()} not ok"
    assert set(table.drop(columns="runs").iloc[-1]) == {""}
    bad = pd.concat(
        [runs[worst].iloc[:1].assign(experiment=f"zs{stage}", repeat=1) for stage in range(5)]
    )
    print_summary(bad, Format.table)
    shown = capsys.readouterr().out
    assert "* zs" not in shown  # nothing is best
    causes = [f"not ok: zs{stage}, run 1: oom, [red]no room[/]?[31m" for stage in range(3)]
    lines = shown.splitlines()
    place = lines.index(causes[0])
    more = "not ok: 2 more; `dsnb report` lists every cause"
    assert lines[place : place + 4] == [*causes, more]  # before the table
    assert lines[place + 4].split() == ["runs", "setting"]


def test_unusual_runs_have_a_mark_and_a_footnote(runs):
    calm = runs.assign(
        slow_steps=0,
        recompilations=0,
        sm_clock_mhz=1980,
        step_time_median_s=runs["step_time_mean_s"],
    )
    calm["tokens_per_s"] = calm.groupby("experiment")["tokens_per_s"].transform("median")
    odd = calm.assign(recompilations=[2, *[0] * 35])
    ((_, table, lines),) = summary_table.blocks(odd)
    first = odd.iloc[0]
    name = f"ZeRO {first['zero_stage']:.0f}, {first['precision']}"
    assert list(table.index[table[""].str.endswith("!")]) == [name]
    graphs = "2 graphs compiled during the timed steps"
    assert lines == [FASTEST, f"! {name}, micro-batch 32, run 1: {graphs}"]
    ((_, _, lines),) = summary_table.blocks(calm.assign(recompilations=1))
    assert lines[-1] == "! and 28 more runs: see the report"


def test_unstable_settings_are_last_not_ranked_and_explained():
    runs = runs_of(zs0=[21097.0, 2296.0], zs1=[9000.0, 9100.0], zs2=[8000.0, 8200.0])
    ((_, table, lines),) = summary_table.blocks(runs.assign(model="gpt2", gpus=1, device="cpu"))
    assert list(table.index) == ["zs1", "zs2", "zs0"]
    assert list(table[""]) == ["*", "", "!"]
    assert list(table["vs best"]) == [
        "best",
        "\N{MINUS SIGN}10.5 %",
        "unstable",
    ]  # of 9,050 and 8,100
    assert list(table["tokens/s"]) == ["9,000 to 9,100", "8,000 to 8,200", "2,296 to 21,097"]
    assert lines == [
        FASTEST,
        "1 setting is unstable and not ranked: its repeats differ by more than 1.5 times in tokens/s (zs0: 2,296 to "
        "21,097). Measure it again while nothing else uses the machine (in the documentation: "
        '"Tell differences from noise").',
    ]


def test_names_are_left_aligned_and_figures_right_aligned(capsys):
    table = pd.DataFrame(
        {"tokens/s": ["1", "200"]}, index=["\u6f22\u6f22", "bbb"]
    )  # four cells wide
    show(table, table, Format.table)
    assert capsys.readouterr().out.splitlines() == [
        "      tokens/s",
        "\u6f22\u6f22         1",
        "bbb        200",
    ]


def test_a_table_that_is_too_wide_loses_its_last_columns_but_keeps_two(capsys):
    texts = pd.DataFrame([["1", "2", "3", "4"]], ["name"], ["a", "b", "c", "d"])
    for width, columns in ((16, "abcd"), (15, "abc"), (10, "ab"), (5, "ab")):
        _print_table(texts, width)
        heading, row = capsys.readouterr().out.splitlines()
        assert heading.split() == list(columns)
        assert row.split()[0] == "name"
