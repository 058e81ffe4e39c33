"""Tables and lines as terminals, spreadsheets and Markdown get them, whatever names are in them."""

import csv
import io

import pandas as pd
import pytest

from dsnb.cli.printing import Format, print_summary, show, table_width

ODD = [
    "=1+1", "+2", "-3", "@x", "\t=4", "\r=5", "a|b", "<b>x</b>", "`c`", "[d](e)", "\x1b[31mf", "\u202eg", "h\ni", "j",
]  # fmt: skip


@pytest.fixture
def table():
    return pd.DataFrame(
        {"n": range(len(ODD)), "change": [-1.5] * len(ODD), "cause": ODD}, index=pd.Index(ODD, name="experiment")
    )


def printed(capsys, table, format_):
    show(table, table.astype(str), format_)
    out = capsys.readouterr().out
    assert all(one.isprintable() or one == "\n" for one in out)
    return out


def test_csv_holds_no_formula_and_its_negative_numbers_are_numbers(capsys, table):
    rows = list(csv.reader(io.StringIO(printed(capsys, table, Format.csv))))
    assert rows[0] == ["experiment", "n", "change", "cause"]
    assert len(rows) == len(ODD) + 1
    for row, odd in zip(rows[1:], ODD, strict=True):
        assert row[0] == row[3]
        assert row[0].startswith("'") == odd.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert row[2] == "-1.5"


def test_markdown_cells_stay_cells(capsys, table):
    lines = printed(capsys, table, Format.markdown).splitlines()
    assert len(lines) == len(ODD) + 2
    for line in lines:
        assert line.replace("\\|", "").count("|") == 5
        assert "<b>" not in line
        assert "`c`" not in line.replace("\\`", "")
    assert any("&lt;b&gt;x&lt;/b&gt;" in line for line in lines)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("name", ["xterm", "dumb"])
def test_a_terminal_gets_the_columns_that_fit_and_nothing_is_cut(monkeypatch, name):
    """`rich` takes a dumb terminal for 80 columns wide, whatever it is told."""
    for key, value in {"TERM": name, "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(key, value)
    names = [f"{'x' * 40}_zs{stage}" for stage in range(2)]
    table = pd.DataFrame({f"figure{place}" * 3: [f"{place},000,000"] * 2 for place in range(9)}, index=names)
    monkeypatch.setattr("sys.stdout", shown := Terminal())
    show(table, table, Format.table, fit=True)
    show(table, table, Format.table)
    fitted, whole = shown.getvalue().splitlines()[:4], shown.getvalue().splitlines()[4:]
    assert (table_width(), fitted[0]) == (100, f"in every name: {'x' * 40}")
    assert [row.split() for row in fitted[2:]] == [
        [f"zs{stage}", *(f"{n},000,000" for n in range(4))] for stage in (0, 1)
    ]
    assert [row.split() for row in whole[1:]] == [[name, *(f"{n},000,000" for n in range(9))] for name in names]
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert table_width() > 1000  # nobody cuts what is piped


@pytest.mark.parametrize("wide", [False, True])
def test_a_line_break_in_a_cause_forges_no_line(capsys, wide):
    forged = "  plain_fp32_gpus1_bs8_sl128      4    999,999 ± 1"
    cause = f"failed\n{forged}\r{forged}\u2028{forged}"
    run = {"sweep": "s", "experiment": "zs0_fp32_gpus1_bs1_sl16", "repeat": 1, "status": "failed", "cause": cause}
    print_summary(pd.DataFrame([{**run, "model": "gpt2", "seq_len": 16, "run_dir": "s/a/run1"}]), Format.table, wide)
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.strip().startswith("plain_fp32") for line in lines)
    assert wide or any("failed" in line and "999,999" in line for line in lines)  # it is there, in one line
