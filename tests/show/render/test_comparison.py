"""The section of a report on what changed since an earlier sweep."""

import math
import re

import pandas as pd

import dsnb
from dsnb.show.render.comparison import compared, with_earlier
from tests.results.statistics import test_comparisons

MINUS = "\N{MINUS SIGN}"


def sweep(rates, memory=7.0, **columns):
    """Give five runs for each ZeRO stage at the given tokens/s."""
    return test_comparisons.sweep(
        rates, **{"name": "s", "peak_allocated_gib": memory, "torch": "2.0", **columns}
    )


def cells(parts):
    """Give the page, and the texts of the cells of each table row, a verdict after its class."""
    page = "".join(part.text for part in parts)
    rows = re.findall(r"<tr><th scope=\"row\"[^>]*>(.*?)</th>(.*?)</tr>", page)
    page_cells = [(name, re.findall(r"<td[^>]*>(.*?)</td>", rest)) for name, rest in rows]
    return page, [
        (name, [re.sub(r'<span class="(\w+)">(.*)</span>', r"\1: \2", cell) for cell in own])
        for name, own in page_cells
    ]


def test_what_changed_is_said_with_its_interval_and_in_words():
    before, after = (
        sweep({0: 1000, 1: 1000, 2: 1000, 3: 500}),
        sweep({0: 1100, 1: 900, 2: 1000, 9: 1}, torch="2.1<b>"),
    )
    page, rows = cells(compared(before, after, "old<i>"))
    assert "<h2>Compared with <code>old&lt;i&gt;</code></h2>" in page
    assert rows[0] == ("torch", ["2.0", "2.1&lt;b&gt;"])
    speed = dict(rows[1:4])
    known = dsnb.compare(before, after)["words"]
    assert speed["s_zs0"] == [f"better: ▲ better, {known['s_zs0']}", "1,000", "1,100", "5", "5"]
    assert speed["s_zs1"][0] == f"worse: ▼ worse, {known['s_zs1']}"
    assert known["s_zs1"].startswith(f"likely: {MINUS}10.0 % (")
    assert speed["s_zs2"][0].startswith("same: ")
    same = "no difference larger than 0 % (0 % to 0 %) (the figure is the same in every run)"
    assert dict(rows[4:])["s_zs1"] == [f"same: {same}", "7.00", "7.00", "5", "5"]
    assert "<li>Only before: s_zs3.</li><li>Only after: s_zs9.</li>" in page
    assert "of all pairs of settings of a task hold together (Games and Howell 1976)" in page
    assert "Values are means of the runs: geometric, or arithmetic for percentages" in page


def test_two_machines_are_compared_as_these_two():
    page, rows = cells(compared(sweep({0: 1000}), sweep({0: 1100}, host="other"), "old"))
    assert ("host", ["h", "other"]) in rows
    assert "The two sets ran on different hosts, so a difference may come from the hosts" in page
    assert any("▲ better, likely: +10.0 %" in cell for _, found in rows for cell in found)
    shared = pd.concat([sweep({0: 1000}), sweep({1: 1000}, host="other")])
    page, rows = cells(compared(shared, sweep({0: 1100}, host="other"), "old"))
    assert "different hosts, so a difference" not in page
    assert any("runs on one host count as one" in cell for _, found in rows for cell in found)


def test_nothing_to_compare():
    page, rows = cells(compared(sweep({0: 1000}), sweep({1: 1000}), "old"))
    assert rows == []
    assert "tokens/s: no setting is in both." in page
    assert "Games and Howell" not in page
    page, _ = cells(compared(sweep({0: math.nan}, memory=math.nan), sweep({0: 1000}), "old"))
    assert "Neither speed nor memory was measured in both." in page
    assert with_earlier(sweep({0: 1}), "") == []
