"""Predicted settings in the explorer: hollow marks and a table of their own, never in what is said of runs."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from dsnb.analysis import parity as of_parity
from dsnb.analysis.unmeasured import unmeasured
from dsnb.explorer.explore import Explorer
from dsnb.explorer.payload import payload
from dsnb.runs.labels import span
from tests.analysis.test_parity import runs
from tests.prediction.made_up import TRACE
from tests.support.browser import SETTLED, violations

ROOT = "document.querySelector('.dsnb-explorer').dsnb"
MEASURED = [{"zero_stage": stage, "micro_batch_size": size} for stage in (0, 1) for size in (4, 8)]
HOSTILE = ["</script><script>window.hacked = 1</script>", "<img src=x onerror='window.hacked = 1'>", "a & b \u2028 'c'"]
SAID_OF_RUNS = f"""(() => {{
  const explorer = {ROOT};
  const text = (part) => [...document.querySelectorAll(part)].map((node) => node.textContent).join(" ");
  return {{
    count: explorer.count.textContent, front: explorer.frontier, selected: explorer.selected,
    card: ["kicker", "headline", "costs", "following", "basis"].map((part) => text(`.dsnb-${{part}}`)),
    rows: explorer.table.lines(), base: explorer.base.value, effects: explorer.effects,
    medians: explorer.medians.picture.data.medians, points: explorer.scatter.picture.data.points.length,
  }};
}})()"""


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Give every model the same made-up trace, without torch."""
    monkeypatch.setattr(of_parity.traces, "attempts", lambda experiments: [TRACE] * len(experiments))
    monkeypatch.setattr(of_parity.traces, "kept", lambda experiments: [TRACE] * len(experiments))


def measured():
    table = runs(*MEASURED)
    table["tokens_per_s"] = table["micro_batch_size"] * table["seq_len"] / table["step_time_s"]
    return table.assign(tokens_per_s_per_gpu=table["tokens_per_s"])


def asked(*settings):
    common = {"model": "opt-1.3b", "precision": "bf16", "seq_len": 512, "device": "cuda", "micro_batch_size": 8}
    return [dsnb.Experiment(**{**common, **one}) for one in settings]


OTHERS = asked(
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"zero_stage": 1, "compile": "default"},
    {"zero_stage": 0, "micro_batch_size": 16, "memory_limit_gib": 5.0},  # does not fit
)


def said_of(page):
    page.tab.evaluate(SETTLED)
    return page.tab.evaluate(SAID_OF_RUNS)


def test_nothing_that_is_said_of_runs_includes_predictions(tmp_path, watched):
    table = measured()
    plain = watched(dsnb.explore(table).save(tmp_path / "plain.html"))
    before = said_of(plain)
    page = watched(dsnb.explore(table, predict=OTHERS).save(tmp_path / "page.html"))
    page.tab.evaluate(f"{ROOT}.set({{ colour: 'micro_batch_size', along: 'micro_batch_size' }})")
    plain.tab.evaluate(f"{ROOT}.set({{ colour: 'micro_batch_size', along: 'micro_batch_size' }})")
    before, after = said_of(plain), said_of(page)
    for name in ("count", "front", "selected", "card", "base", "points"):
        assert after[name] == before[name], name
    assert [one["y"] for one in after["medians"]] == [one["y"] for one in before["medians"]]
    assert len(after["rows"]) == len(before["rows"]) == 1 + len(table)
    assert dsnb.explore(table, predict=OTHERS).selection.equals(table)
    assert page.said == []


def test_hollow_marks_are_what_was_predicted(tmp_path, watched):
    explorer = dsnb.explore(measured(), predict=OTHERS)
    page = watched(explorer.save(tmp_path / "page.html"))
    page.tab.evaluate(f"{ROOT}.set({{ x: 'peak_allocated_gib', y: 'tokens_per_s' }})")
    marks = page.tab.evaluate(f"{ROOT}.scatter.picture.data.predicted")
    drawn = explorer.data.predicted[explorer.data.predicted["fits"].astype(bool)]
    assert [mark["x"] for mark in marks] == pytest.approx(drawn["peak_allocated_gib"].tolist(), rel=1e-5)
    assert [mark["y"] for mark in marks] == pytest.approx(drawn["tokens_per_s"].tolist(), rel=1e-5)
    errors = drawn["tokens_per_s_error_pct"] / 100
    assert [mark["high"] for mark in marks] == pytest.approx((drawn["tokens_per_s"] * (1 + errors)).tolist(), rel=1e-5)
    assert [mark["low"] for mark in marks] == pytest.approx((drawn["tokens_per_s"] / (1 + errors)).tolist(), rel=1e-5)
    note = page.tab.evaluate(f"{ROOT}.laneNote.textContent")
    assert "Hollow marks are predicted, not run" in note
    assert "1 predicted setting would not fit and is not drawn." in note
    lines = page.tab.evaluate(f"{ROOT}.describe({{ id: 1, isPredicted: true }})")
    assert lines[1] == "predicted, not run"
    assert " ± " in " ".join(lines)
    days = page.tab.evaluate(f"{ROOT}.model.predictions.value('days', 0, {{ train_tokens: 86400e6 }})")
    assert days == pytest.approx(1e6 / explorer.data.predicted["tokens_per_s"][0], rel=1e-5)
    legend = page.tab.locator(".dsnb-legend").first.inner_text()
    assert "predicted, not run" in legend
    assert "ZeRO 3" in legend  # a value that no run has
    at = page.tab.evaluate(
        f"(({{ view, picture }}) => {{ const {{ x, y }} = picture.data.predicted[2];"
        " const { left, top } = view.padding(); const [across, down] = view.origin();"
        f" return {{ x: left + across + view.scale('x')(x), y: top + down + view.scale('y')(y) }}; }})({ROOT}.scatter)"
    )
    page.tab.locator(".dsnb-chart canvas").first.hover(position=at)
    assert "predicted, not run" in page.tab.locator(".dsnb-tip").first.inner_text()
    page.tab.evaluate(f"{ROOT}.clicked({{ id: 1, isPredicted: true }})")
    assert page.tab.evaluate(f"{ROOT}.state.run") is None


def test_predicted_days_are_the_range_that_python_writes(tmp_path, watched):
    table = measured()
    table["step_time_s"] *= [1.0, 1.3, 0.8, 1.1]  # so that predictions are wrong
    table["tokens_per_s"] = table["micro_batch_size"] * table["seq_len"] / table["step_time_s"]
    explorer = dsnb.explore(table, predict=OTHERS)
    page = watched(explorer.save(tmp_path / "page.html"))
    row = explorer.data.predicted.iloc[0]
    factor = 1 + row["tokens_per_s_error_pct"] / 100
    assert factor > 1.05
    for tokens in (1e9, 1e11, 3.7e13):
        days = tokens / row["tokens_per_s"] / 86400
        text = page.tab.evaluate(f"{ROOT}.model.predictions.text('days', 0, {{ train_tokens: {tokens} }})")
        assert text == span(days / factor, days * factor)
    assert " to " in text


def test_filters_the_table_and_its_file(tmp_path, watched):
    explorer = dsnb.explore(measured(), predict=OTHERS)
    page = watched(explorer.save(tmp_path / "page.html"))
    table = page.tab.locator(".dsnb-predicted table")
    rows = table.locator("tbody tr")
    assert rows.count() == 4
    assert [cell.inner_text() for cell in rows.locator("td:nth-child(2)").all()] == ["predicted"] * 4
    assert [cell.inner_text() for cell in rows.locator("td:nth-child(3)").all()] == ["yes", "yes", "yes", "no"]
    assert "±" in rows.first.inner_text()
    page.tab.evaluate(f"{ROOT}.set({{ strategy: ['ZeRO 3'] }})")
    assert rows.count() == 1
    assert "0 of 4 runs" in page.tab.locator(".dsnb-count").inner_text()
    assert len(page.tab.evaluate(f"{ROOT}.scatter.picture.data.predicted")) == 1
    assert page.tab.evaluate(f"{ROOT}.scatter.empty.hidden")
    page.tab.evaluate(f"{ROOT}.set({{ strategy: ['ZeRO 1'], compile: ['off'] }})")
    assert rows.count() == 0
    assert "No predicted setting of this task matches the filters." in page.tab.locator(".dsnb-predicted").inner_text()
    page.tab.evaluate(f"{ROOT}.set({{ strategy: [], compile: [], along: 'compile', y: 'step_time_s' }})")
    assert sorted(round(one["x"]) for one in page.tab.evaluate(f"{ROOT}.medians.picture.data.predicted")) == [0, 0, 1]
    with page.tab.expect_download() as download:
        page.tab.locator(".dsnb-predicted button", has_text="Save as CSV").click()
    saved = pd.read_csv(download.value.path()).set_index("experiment")
    wanted = explorer.data.predicted.set_index("experiment").loc[saved.index]
    assert download.value.suggested_filename.endswith("predicted.csv")
    assert set(saved["status"]) == {"predicted"}
    assert list(saved["would fit"]) == ["yes", "yes", "yes", "no"]
    assert list(saved["tokens/s"]) == pytest.approx(list(wanted["tokens_per_s"]), rel=1e-5)
    assert list(saved["tokens/s, mean error (%)"]) == pytest.approx(list(wanted["tokens_per_s_error_pct"]), rel=1e-5)
    assert list(saved["micro-batch"]) == list(wanted["micro_batch_size"])
    assert page.said == []


def test_what_is_worth_measuring_is_never_called_measured(tmp_path, watched):
    table = measured()
    slow = table.assign(tokens_per_s=table["tokens_per_s"] / 4, tokens_per_s_per_gpu=table["tokens_per_s"] / 4)
    page = watched(Explorer(slow, predicted=unmeasured(table, OTHERS)).save(tmp_path / "page.html"))
    said = page.tab.locator(".dsnb-worth").inner_text()
    best = "opt-1.3b_zs1_bf16_gpus1_bs8_sl512_compile"
    assert said.startswith(f"Worth measuring: {best}, predicted and not measured: tokens/s")
    assert "more than the mean error of such predictions" in said
    assert "compil" not in page.tab.locator(".dsnb-headline").inner_text()
    for objective, words in (("gpu_hours", "fewer GPU-hours"), ("cost", "less cost"), ("memory", "less memory")):
        page.tab.evaluate(f"{ROOT}.set({{ objective: '{objective}' }})")
        lines = page.tab.locator(".dsnb-worth").all_inner_texts()
        assert all(words in line for line in lines)
        assert lines or objective == "memory"
    page.tab.evaluate(f"{ROOT}.set({{ objective: 'time', gpus_at_hand: 1 }})")
    assert page.tab.locator(".dsnb-worth").count() == 1
    fast = table.assign(tokens_per_s=table["tokens_per_s"] * 50, tokens_per_s_per_gpu=table["tokens_per_s"] * 50)
    page = watched(Explorer(fast, predicted=unmeasured(table, OTHERS)).save(tmp_path / "fast.html"))
    assert page.tab.locator(".dsnb-worth").count() == 0


def test_a_task_without_any_run(tmp_path, watched):
    other = asked({"model": "gpt2-xl", "zero_stage": 1}, {"model": "gpt2-xl", "zero_stage": 3})
    explorer = dsnb.explore(measured(), predict=other)
    assert explorer.data.tasks[0].startswith("opt-1.3b")
    page = watched(explorer.save(tmp_path / "page.html"))
    page.tab.evaluate(f"{ROOT}.set({{ task: '{explorer.data.tasks[1]}' }})")
    assert page.tab.locator(".dsnb-headline").inner_text() == "No setting can be recommended: none was run yet."
    assert page.tab.locator(".dsnb-worth").inner_text().startswith("Worth measuring first: gpt2-xl_zs")
    assert len(page.tab.evaluate(f"{ROOT}.scatter.picture.data.predicted")) == 2
    assert page.tab.locator(".dsnb-predicted tbody tr").count() == 2
    page.tab.evaluate(f"{ROOT}.set({{ task: 'all' }})")
    page.tab.evaluate(SETTLED)
    assert page.said == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_hostile_names_stay_text_and_nobody_is_left_out(tmp_path, watched, width, scheme):
    found = unmeasured(measured(), OTHERS)
    named = found.table.assign(experiment=[*HOSTILE, "x" * 5000], outside=[*HOSTILE, ""])
    explorer = Explorer(measured(), predicted=replace(found, table=named, notes=tuple(HOSTILE)))
    page = watched(explorer.save(tmp_path / "page.html"), viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.tab.evaluate("window.hacked") is None
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert HOSTILE[0] in page.tab.locator(".dsnb-predicted").inner_text()
    assert violations(page.tab) == []
    assert (page.outside, page.said) == ([], [])


def test_runs_that_come_in_take_the_place_of_their_predictions():
    table = measured()
    explorer = dsnb.explore(table[:2], predict=asked(*MEASURED))
    assert len(explorer.data.predicted) == 2
    explorer.show(table)
    assert explorer.data.predicted.empty
    assert payload(explorer.data, explorer.state, None)["predicted"]["names"] == []
