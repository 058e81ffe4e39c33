"""The section of predictions beside measurements: what it says, in words, tables and a picture."""

import html
import re

import numpy as np
import pandas as pd

from dsnb.analysis.parity import parity as compared
from dsnb.render import parity
from tests.analysis.test_parity import MANY, runs, traced

assert traced  # a fixture


def text(parts):
    return html.unescape(re.sub(r"\s*<[^>]+>\s*", " ", " ".join(part._repr_html_() for part in parts)))


def test_it_says_how_good_predictions_are_and_what_they_left_out():
    table = runs(*MANY)
    table.loc[0, "step_time_s"] /= 1.1
    table.loc[1, "peak_allocated_gib"] /= 0.9
    parts = parity.section(table)
    said = text(parts)
    assert (
        "peaks of allocated memory are predicted with a mean error of 0.8 % and at worst 10.0 % (12 settings)." in said
    )
    assert "Each step time is predicted without the runs of its own model" in said
    assert "not traced" not in said
    assert "fewer than 10 steps" not in said
    picture = parts[2]
    assert "at worst 10.0 % (12 settings)" in picture.description
    assert picture.svg.count("ZeRO 3") == 1  # in the legend
    rows = re.findall(r"<tr>.*?</tr>", parts[3].text)
    assert len(rows) == 1 + 12
    assert "+10.0" in rows[1] + rows[2]  # the largest errors come first
    assert "-10.0" in rows[1] + rows[2]


def test_what_is_missing_is_said_in_a_sentence(monkeypatch):
    table = runs({}).assign(timed_steps=3)
    monkeypatch.setattr("dsnb.analysis.parity.traces.kept", lambda experiments: [None] * len(experiments))
    monkeypatch.setattr(parity, "can_trace", lambda: False)
    said = text(parity.section(table))
    assert "The memory of 1 setting is not predicted: its model was not traced before on this machine; torch" in said
    assert "is missing." in said
    assert "1 setting was timed over fewer than 10 steps" in said
    assert "There is no other setting to fit the time model to" in said
    assert "memory: settings" not in said
    monkeypatch.setattr(parity, "can_trace", lambda: True)
    assert "dsnb predict with their params file traces them" in text(parity.section(table))


def test_all_out_of_memory_have_no_figure():
    table = runs({"gpu_memory_gib": 2.0}, {"micro_batch_size": 4}, {"micro_batch_size": 2, "gpu_memory_gib": 1.0})
    parts = parity.section(table.assign(status="oom", step_time_s=np.nan, peak_allocated_gib=np.nan))
    assert len(parts) == 1
    assert "Of 3 settings that ran out of memory, 2 are predicted not to fit." in text(parts)
    both = pd.concat([runs({}), table.iloc[:1].assign(status="oom", micro_batch_size=64, experiment="other")])
    said = text(parity.section(both))
    assert "Of 1 setting that ran out of memory, 1 is predicted not to fit; of 1 that ran, 0 are." in said


def test_runs_on_a_cpu_have_no_section():
    assert parity.section(runs({}).assign(gpu_name=None)) == []
    assert parity.section(pd.DataFrame()) == []


def test_hostile_names_stay_text():
    found = compared(runs(*MANY[:3]))
    names = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a & b \u2028"]
    shown = "".join(part._repr_html_() for part in parity.shown(type(found)(
        found.table.assign(experiment=names, kind="<b>"), found.left_out, found.starts_from_own, found.found
    )))  # fmt: skip
    assert "<script" not in shown
    assert "<img src=x" not in shown
    assert "<b>" not in shown
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in shown
