"""The lines of an answer: aligned columns, of which only the last wraps, and the same as HTML."""

import re

from dsnb.results.answers.lines import as_html, line, text

ASKED = {"model": "gpt2", "place": "2 H100", "tokens": "2 billion", "batch": "512", "length": "64"}
TIME = {"time": "14 hours", "times": "13 to 16", "hours": "112", "unit": "GPU"}
MEMORY = {"memory": "51.3", "room": "76.9", "memory_gib": "0.3", "left": "25.6 GiB left"}
LINES = [
    line("title", **ASKED),
    line("train", setting="ZeRO 1, bf16, compiled, micro-batch 16, 4 accumulated"),
    line("time", **TIME),
    line("memory", fewer="1 GPU has enough memory, too", **MEMORY),
    line("alternative", label="Or", changes="FSDP", difference="1 % longer", memory="49.6"),
    line("alternative", label=" ", changes="not compiled", difference="9 % longer", memory="6"),
    line("note", text="Predicted, not run: " + "a long sentence " * 5),
]


def test_columns_are_aligned_and_only_the_last_one_wraps():
    assert text(LINES, 56).splitlines() == [
        "gpt2 on 2 H100: 2 billion tokens, 512 sequences of 64 a",
        "step",
        "Train with  ZeRO 1, bf16, compiled, micro-batch 16, 4",
        "            accumulated",
        "  time      14 hours          13 to 16  112 GPU-hours",
        "  memory    51.3 of 76.9 GiB  ± 0.3     25.6 GiB left; 1",
        "                                        GPU has enough",
        "                                        memory, too",
        "Or          FSDP          1 % longer  49.6 GiB",
        "            not compiled  9 % longer     6 GiB",
        "Predicted, not run: a long sentence a long sentence a",
        "long sentence a long sentence a long sentence",
    ]


def test_no_line_is_longer_than_a_hundred_columns_however_wide_the_terminal():
    assert max(map(len, text(LINES, 140).splitlines())) <= 100
    assert text(LINES, 140) == text(LINES)


def test_a_missing_figure_leaves_its_cell_empty_and_a_column_without_any_is_left_out():
    assert line("time", **TIME | {"times": ""}).cells == (
        "  time",
        "14 hours",
        "",
        "112 GPU-hours",
    )
    assert text([line("time", **TIME | {"times": ""})]) == "  time  14 hours  112 GPU-hours"


def test_html_has_the_same_cells_escaped():
    hostile = line("title", **ASKED | {"model": "<b>\nx"})
    shown = as_html([hostile, *LINES[1:]])
    assert shown.startswith("<h3>&lt;b&gt; x on 2 H100: ")
    cells = re.sub(r"<[^>]+>", " ", as_html(LINES)).split()
    assert cells == text(LINES).split()
