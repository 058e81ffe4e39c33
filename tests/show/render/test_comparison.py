"""The section of a report on what changed since an earlier sweep."""

import math
import re

import pandas as pd

import dsnb
from dsnb.show.render import comparison
from dsnb.show.render.comparison import compared, with_earlier, with_predictions
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


def test_failed_runs_are_counted_and_too_few_runs_have_no_direction():
    after = sweep({0: 1100}).assign(status=["ok"] * 3 + ["oom", "failed"])
    _, rows = cells(compared(sweep({0: 1000}), after, "old"))
    change, *others = dict(rows[:1])["s_zs0"]
    assert change.startswith("same: too few runs: +10.")
    assert others == [
        "1,000",
        "1,100",
        "5",
        "3,\N{NO-BREAK SPACE}2\N{NO-BREAK SPACE}not\N{NO-BREAK SPACE}ok",
    ]


def test_errors_and_false_alarms_of_predictions_are_counted(monkeypatch):
    """Of three settings that ran, one was predicted not to fit; of two that ran out of memory, both were."""
    kinds = ["ZeRO 0", "ZeRO 0", "ZeRO 3", "ZeRO 3", "ZeRO 3"]
    table = pd.DataFrame({
        "kind": kinds, "model": "gpt2", "fits": [True, True, False, False, False],
        "ran": [True, True, True, False, False], "has_rules": [True, True, True, True, False],
        "step_time_mean_s": [0.1, 0.2, 0.4, math.nan, math.nan],
        "predicted_step_time_mean_s": [0.11, 0.18, 0.4, math.nan, math.nan],
        "step_time_error_pct": [10.0, -10.0, 0.0, math.nan, math.nan],
        "peak_allocated_gib": [10.0, 20.0, 40.0, math.nan, math.nan],
        "predicted_peak_allocated_gib": [9.0, 18.0, 36.0, math.nan, math.nan],
        "peak_allocated_error_pct": [-10.0, -10.0, -10.0, math.nan, math.nan],
    })  # fmt: skip
    monkeypatch.setattr(comparison, "parity", lambda runs, link: table)
    title, by_kind, picture = with_predictions(table)
    said = title.text
    assert "Predicted not to fit: 2 of 2 settings that ran out of memory, 1 of 3 that ran." in said
    assert "The memory of 1 setting is not predicted" in said
    assert "step times are predicted with a mean error of 6.7 % and at worst 10.0 %" in said
    assert "peaks of allocated memory are predicted with a mean error of 10.0 %" in said
    head = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", by_kind.text)
    (stage_3,) = [own for kind, own in cells([by_kind])[1] if kind == "ZeRO 3"]
    shown = dict(zip(head[1:], stage_3, strict=True))
    assert (shown["memory: bias (%)"], shown["step time: bias (%)"]) == (f"{MINUS}10.0", "+0.0")
    first = picture.figure.axes[0].collections[0].get_offsets().tolist()
    assert first == [[100.0, 110.0], [200.0, 180.0]]  # ms: measured, predicted
