"""Predicted settings in the explorer: hollow marks and a separate table, never included in statements on runs."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from dsnb.prediction import predicted
from dsnb.prediction.predicted import unmeasured
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import span
from dsnb.show.explorer import setting_names
from dsnb.show.explorer.explore import Explorer
from dsnb.show.explorer.payload import payload
from tests.prediction.made_up import TRACE
from tests.prediction.test_predicted import runs
from tests.support.browser import CALM, Tabs, root, violations, write_page

MEASURED = [{"zero_stage": stage, "micro_batch_size": size} for stage in (0, 1) for size in (4, 8)]
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "a & b \u2028 'c'",
]
SAID_OF_RUNS = """(explorer) => {
  const text = (part) => [...explorer.root.querySelectorAll(part)].map((node) => node.textContent).join(" ");
  return {
    count: explorer.count.textContent, front: explorer.frontier, selected: explorer.selected,
    card: ["kicker", "headline", "costs", "following", "basis"].map((part) => text(`.dsnb-${part}`)),
    rows: explorer.table.lines().length, base: explorer.base.value,
    medians: explorer.medians.picture.data.medians.map(({ y }) => y),
    points: explorer.scatter.picture.data.points.length,
  };
}"""


@pytest.fixture(autouse=True, scope="module")
def traced():
    """Give every model the same made-up trace, without torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            predicted.traces, "attempts", lambda experiments, make=True: [TRACE] * len(experiments)
        )
        yield


def measured(speed=1.0):
    """Give four runs, some of them slower than the model of their time says, so that predictions are wrong."""
    table = runs(*MEASURED)
    table["step_time_mean_s"] *= [1.0, 1.3, 0.8, 1.1]
    rate = table["micro_batch_size"] * table["seq_len"] / table["step_time_mean_s"]
    return table.assign(tokens_per_s=speed * rate, tokens_per_s_per_gpu=speed * rate)


def asked(*settings):
    common = {
        "model": "opt-1.3b",
        "precision": "bf16",
        "seq_len": 512,
        "device": "cuda",
        "micro_batch_size": 8,
    }
    return [dsnb.Experiment(**{**common, **one}) for one in settings]


OTHERS = asked(
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"zero_stage": 1, "compile": "default"},
    {"zero_stage": 0, "micro_batch_size": 16, "memory_limit_gib": 5.0},  # does not fit
)
PLAIN, BESIDE, SLOW, FAST, UNRUN, NASTY = map(root, range(6))


@pytest.fixture(scope="module")
def explorer(traced):
    return dsnb.explore(measured(), predict=OTHERS)


@pytest.fixture(scope="module")
def opened(explorer, chromium, tmp_path_factory):
    """Give a page with runs alone, with predictions beside them, with slow and fast runs, with a task without any."""
    found = unmeasured(measured(), OTHERS)
    unrun = asked({"model": "gpt2-xl", "zero_stage": 1}, {"model": "gpt2-xl", "zero_stage": 3})
    named = found.table.assign(experiment=[*HOSTILE, "x" * 5000], outside=[*HOSTILE, ""])
    explorers = [
        dsnb.explore(measured()),
        explorer,
        Explorer(measured(0.25), predicted=found),
        Explorer(measured(50), predicted=found),
        dsnb.explore(measured(), predict=unrun),
        Explorer(measured(), predicted=replace(found, table=named, notes=tuple(HOSTILE))),
    ]
    return Tabs(chromium).open(
        write_page(tmp_path_factory.mktemp("predicted") / "page.html", *explorers)
    )


@pytest.fixture
def tab(opened):
    opened.tab.evaluate(f"[{PLAIN}, {BESIDE}].forEach((one) => one.set(one.model.state))")
    yield opened.tab
    assert (opened.said, opened.outside) == ([], [])


def test_nothing_that_is_said_of_runs_includes_predictions(explorer, tab):
    along = "(one) => one.set({ colour: 'micro_batch_size', along: 'micro_batch_size' })"
    tab.evaluate(f"[{PLAIN}, {BESIDE}].forEach({along})")
    tab.evaluate(CALM)
    plain, beside = (tab.evaluate(f"({SAID_OF_RUNS})({one})") for one in (PLAIN, BESIDE))
    assert plain == beside
    assert plain["rows"] == 1 + len(MEASURED)
    assert explorer.selection.equals(explorer.data.runs)


def test_hollow_marks_are_what_was_predicted(explorer, tab):
    tab.evaluate(f"{BESIDE}.set({{ x: 'peak_allocated_gib', y: 'tokens_per_s' }})")
    marks = pd.DataFrame(tab.evaluate(f"{BESIDE}.scatter.picture.data.predicted"))
    drawn = explorer.data.predicted[explorer.data.predicted["fits"].astype(bool)]
    rates = drawn["tokens_per_s"]
    sides = {
        "x": drawn["peak_allocated_gib"],
        "y": rates,
        "high": drawn["tokens_per_s_high"],
        "low": drawn["tokens_per_s_low"],
    }
    for side, values in sides.items():
        assert marks[side].tolist() == pytest.approx(values.tolist(), rel=1e-5)
    note = tab.evaluate(f"{BESIDE}.laneNote.textContent")
    assert "Hollow marks are predicted, not run" in note
    assert "3 of 4 predicted settings would fit and have both figures." in note
    lines = tab.evaluate(f"{BESIDE}.describe({{ id: 1, isPredicted: true }})")
    assert lines[:2] == [
        f"{labels.setting(explorer.data.predicted.iloc[1])}, 1 NVIDIA H200",
        "predicted, not run",
    ]
    assert " ± " in " ".join(lines)
    assert any(line.startswith("nearest run: measured on H200: ") for line in lines)
    legend = tab.evaluate(f"{BESIDE}.legend.node.textContent")
    assert "predicted, not run" in legend
    assert "ZeRO 3" in legend  # a value that no run has
    tab.evaluate(f"{BESIDE}.clicked({{ id: 1, isPredicted: true }})")
    assert tab.evaluate(f"{BESIDE}.state.run") is None
    tab.evaluate(f"{BESIDE}.set({{ y: 'days', train_tokens: 1e11 }})")
    marks = pd.DataFrame(tab.evaluate(f"{BESIDE}.scatter.picture.data.predicted"))
    assert marks["y"].tolist() == pytest.approx((1e11 / rates / 86400).tolist(), rel=1e-5)


def test_filters_and_the_table(explorer, tab):
    section = tab.locator(".dsnb-explorer").nth(1).locator(".dsnb-predicted")
    rows = section.locator("tbody tr:visible")
    assert rows.locator("td:nth-child(2)").all_inner_texts() == ["yes", "yes", "yes", "no"]
    shown = rows.locator("td:nth-child(3)").all_inner_texts()
    wanted = explorer.data.predicted[["tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"]]
    assert shown == [f"{rate:,.0f} ({span(low, high)})" for rate, low, high in wanted.to_numpy()]
    assert wanted["tokens_per_s"][:3].is_monotonic_decreasing
    tab.evaluate(f"{BESIDE}.set({{ parallelism: ['ZeRO 3'] }})")
    assert rows.count() == 1
    assert "0 of 4 runs" in tab.evaluate(f"{BESIDE}.count.textContent")
    assert len(tab.evaluate(f"{BESIDE}.scatter.picture.data.predicted")) == 1
    tab.evaluate(f"{BESIDE}.set({{ parallelism: ['ZeRO 1'], compile: ['off'] }})")
    assert "No predicted setting of this task matches the filters." in section.inner_text()
    tab.evaluate(
        f"{BESIDE}.set({{ parallelism: [], compile: [], along: 'compile', y: 'step_time_mean_s' }})"
    )
    assert sorted(
        round(one["x"]) for one in tab.evaluate(f"{BESIDE}.medians.picture.data.predicted")
    ) == [0, 0, 1]


def test_predicted_settings_are_named_by_what_tells_them_apart(explorer, tab):
    sent = payload(explorer.data, explorer.state, None)["predicted"]
    assert sent["names"] == [
        "ZeRO 1, compiled, micro-batch 8",
        "ZeRO 2, micro-batch 8",
        "ZeRO 3, micro-batch 8",
        "ZeRO 0, micro-batch 16",
    ]
    assert sent["shared"] == {0: "All predicted settings of this task: bf16, 1 GPU."}
    section = tab.locator(".dsnb-explorer").nth(1).locator(".dsnb-predicted")
    assert section.locator("tbody th").all_inner_texts() == sent["names"]
    assert sent["shared"][0] in section.inner_text()


def test_predicted_settings_that_words_do_not_tell_apart_have_the_names_of_their_experiments():
    found = unmeasured(measured(), asked({"zero_stage": 2}, {"zero_stage": 3}))
    alike = found.table.assign(zero_stage=2)
    data = Explorer(measured(), predicted=replace(found, table=alike)).data
    names, _ = setting_names.predicted_names(data)
    assert names == data.predicted["experiment"].tolist()


def test_what_is_worth_measuring_is_never_called_measured(tab):
    worth = tab.locator(".dsnb-explorer").nth(2).locator(".dsnb-worth")
    said = worth.inner_text()
    assert said.startswith(
        "Worth measuring: ZeRO 1, bf16, compiled, micro-batch 8 on 1 NVIDIA H200, predicted and not measured: "
    )
    assert "more than the error of such predictions" in said
    assert (
        "compil" not in tab.locator(".dsnb-explorer").nth(2).locator(".dsnb-headline").inner_text()
    )
    for objective, words in (
        ("gpu_hours", "fewer GPU-hours"),
        ("cost", "less cost"),
        ("memory", "less memory"),
    ):
        tab.evaluate(f"{SLOW}.set({{ objective: '{objective}' }})")
        lines = worth.all_inner_texts()
        assert all(words in line for line in lines)
        assert lines or objective == "memory"
    assert tab.locator(".dsnb-explorer").nth(3).locator(".dsnb-worth").count() == 0


def test_a_setting_whose_memory_is_tight_is_not_worth_measuring_while_another_within_5_pct_has_room(
    tab,
):
    model = f"{SLOW}.model.predictions"
    column = f"{SLOW}.model.columns.get('tokens_per_s')[{SLOW}.model.runs + 1]"
    rates, named = (
        tab.evaluate(f"[...{model}.figures.tokens_per_s.values]"),
        tab.evaluate(f"{model}.settings"),
    )
    assert rates[0] > rates[1]
    worth = tab.locator(".dsnb-explorer").nth(2).locator(".dsnb-worth")
    try:
        tab.evaluate(f"{model}.fit[0] = 'tight'")
        for share, best in ((0.96, 1), (0.94, 0)):
            tab.evaluate(f"{column} = {share * rates[0]}")
            tab.evaluate(f"['memory', 'time'].forEach((objective) => {SLOW}.set({{ objective }}))")
            assert worth.inner_text().startswith(
                f"Worth measuring: {named[best]} on 1 NVIDIA H200, "
            )
        assert tab.evaluate(f"[0, 1, 3].map((place) => {model}.fit[place])") == [
            "tight",
            "yes",
            "no",
        ]
        # A gain of less than the error is said to be within it.
        assert "more than the error of such predictions" in worth.inner_text()
        errors = f"{model}.figures.tokens_per_s.errors"
        tab.evaluate(f"window.errors = {errors}; {errors} = {errors}.map(() => 1e6)")
        tab.evaluate(f"['memory', 'time'].forEach((objective) => {SLOW}.set({{ objective }}))")
        assert "within the error of such predictions" in worth.inner_text()
        tab.evaluate(f"{errors} = window.errors")
        # What needs more GPUs than are at hand, or another global batch than is held, is not suggested.
        tab.evaluate(f"window.gpus = {model}.gpus; {model}.gpus = {model}.gpus.map(() => 8)")
        for at_hand, count in ((4, 0), (8, 1)):
            tab.evaluate(f"{SLOW}.set({{ gpus_at_hand: {at_hand} }})")
            assert worth.count() == count
        tab.evaluate(f"{model}.gpus = window.gpus; {SLOW}.set({{ global_batch: 8 }})")
        assert worth.count() == 0
        tab.evaluate(f"{SLOW}.set({{ global_batch: 0, gpus_at_hand: 0 }})")
    finally:
        tab.evaluate(f"{model}.fit[0] = 'yes'; {column} = {rates[1]}")


def test_a_task_without_any_run(tab):
    here = tab.locator(".dsnb-explorer").nth(4)
    titles = tab.evaluate(f"{UNRUN}.model.tasks.map(({{ title }}) => title)")
    assert titles[0].startswith("opt-1.3b")
    tab.evaluate(f"{UNRUN}.set({{ task: '{titles[1]}' }})")
    assert (
        here.locator(".dsnb-headline").inner_text()
        == "No setting can be recommended: none was run yet."
    )
    assert here.locator(".dsnb-worth").inner_text().startswith("Worth measuring first: ZeRO ")
    assert len(tab.evaluate(f"{UNRUN}.scatter.picture.data.predicted")) == 2
    assert here.locator(".dsnb-predicted tbody tr:visible").count() == 2
    tab.evaluate(f"{UNRUN}.set({{ task: 'all' }})")


def test_hostile_names_stay_text_and_nobody_is_left_out(tab):
    tab.evaluate(
        "[...document.querySelectorAll('.dsnb-explorer')].slice(0, 5).forEach((one) => one.parentNode.remove())"
    )
    assert tab.evaluate("window.hacked") is None
    assert HOSTILE[0] in tab.locator(".dsnb-predicted").inner_text()
    for width, scheme in ((390, "dark"), (1280, "light")):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.evaluate(CALM)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(tab) == []


def test_runs_that_come_in_take_the_place_of_their_predictions():
    table = measured()
    explorer = dsnb.explore(table[:2], predict=asked(*MEASURED))
    assert len(explorer.data.predicted) == 2
    explorer.show(table)
    assert explorer.data.predicted.empty
    assert payload(explorer.data, explorer.state, None)["predicted"]["names"] == []
