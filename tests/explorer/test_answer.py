"""The answer in the page: what it says to any question is what Python says."""

import random

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.analysis import decide
from dsnb.analysis.tasks import tasks
from dsnb.analysis.words import words
from dsnb.explorer.payload import answered
from dsnb.explorer.state import default, is_measured, question
from tests.support import made_up
from tests.support.browser import SETTLED

ROOT = "document.querySelector('.dsnb-explorer').dsnb"


@pytest.fixture(scope="module")
def runs():
    """Give tasks of all kinds: published ones, repeated runs on one host or several, a CPU, failed runs."""
    few = {"seq_len": [1024], "micro_batch_size": [8], "grad_accum": [1], "model": ["bloom-560m"]}
    table = made_up.runs(240, seed=2, repeats=5, **few).sample(frac=0.8, random_state=3).sort_index()
    hosts = np.where(table["zero_stage"] == 3, table["repeat"] % 2, 0)
    kinds = {1: None, 2: "NVIDIA A100", 4: "NVIDIA H200", 8: "NVIDIA H200"}
    table = table.assign(host=[f"h{host}" for host in hosts], gpu_name=table["gpus"].map(kinds), gpu_memory_gib=80.0)
    close = table.assign(model="close", sweep="close", tokens_per_s=1e4 * np.exp(np.linspace(0, 0.02, len(table))))
    cpu = made_up.runs(12, gpus=[1, 2]).assign(model="cpu", device="cpu", sweep="cpu").rename(columns=str)
    failed = made_up.runs(6).assign(model="failed", status="oom", oom_allocated_gib=79.5, sweep="failed")
    published = [dsnb.published(name) for name in ("lambda_1cc_opt", "h200_memory", "bigscience_1b3")]
    return pd.concat([table, close, cpu, failed, *published], ignore_index=True)


@pytest.fixture(scope="module")
def saved(runs, tmp_path_factory):
    return dsnb.explore(runs).save(tmp_path_factory.mktemp("page") / "page.html")


def questions(explorer, number):
    draw = random.Random(4)
    kinds = [*explorer.data.runs["gpu_name"].dropna().unique(), "GPU", "CPU", ""]
    for _ in range(number):
        prices = {kind: round(draw.uniform(0, 5), 2) for kind in draw.sample(kinds, draw.randint(0, 3))}
        yield {
            "task": draw.choice(explorer.data.tasks),
            "objective": draw.choice(["time", "gpu_hours", "cost", "memory"]),
            "train_tokens": round(10 ** draw.uniform(3, 14), draw.randint(0, 3)),
            "gpus_at_hand": draw.choice([0, 0, 1, 3, 8, 100, 10_000]),
            "prices": prices,
            "currency": draw.choice(["$", "€", "<b>"]),
            "relevance": draw.choice([0, 0.02, 0.2]),
        }


def test_the_page_answers_sixty_questions_as_python_does(runs, saved, watched):
    explorer = dsnb.explore(runs)
    page = watched(saved)
    asked = list(questions(explorer, 60))
    lines = "['kicker', 'headline', 'costs', 'note', 'following', 'basis', 'table']"
    words_of = f"""(one) => {{
      {ROOT}.card.show({{ ...{ROOT}.state, ...one }});
      const found = {ROOT}.card.answer.words();
      return Object.fromEntries({lines}.map((line) => [line, found[line] ?? ""]));
    }}"""
    answers = page.tab.evaluate(f"(asked) => asked.map({words_of})", asked)
    known = answered(explorer.data).dropna(axis="columns", how="all")
    own = {task.title: task.runs for task in tasks(known)}
    said = set()
    for one, answer in zip(asked, answers, strict=True):
        python = words(decide.of_runs(own[one["task"]], question(one)))
        table = [[row["title"], row["from"], row["to"]] for row in answer["table"] or []]
        assert {**answer, "table": table} == python, one
        said |= {python["following"].partition("(")[2], python["headline"], python["costs"], python["note"]}
    found = " ".join(said)
    new = ("tokens within 365 days on", "30 days would need", "fewer than the 10,000 at hand", "more than 365 days.")
    for sentence in (*new, "too few to be sure", "95 % interval", "all 6 runs failed", "No setting was measured on"):
        assert sentence in found
    assert page.said == []


def test_a_setting_that_does_nothing_is_not_named(tmp_path, watched):
    """The runner-up recomputes no block, so which ones it would recompute is no difference."""
    table = made_up.runs(2, zero_stage=[1], precision=["bf16"], gpus=[1], micro_batch_size=[8], grad_accum=[1])
    table = table.assign(
        status="ok", activation_checkpointing=[True, False], checkpoint_every=[2, 1], tokens_per_s=[2000.0, 1000.0]
    ).assign(experiment=["every-second", "none"], sweep="blocks")
    explorer = dsnb.explore(table)
    page = watched(explorer.save(tmp_path / "page.html"))
    known = answered(explorer.data).dropna(axis="columns", how="all")
    said = words(decide.of_runs(known, question(explorer.state)))["following"]
    assert said.startswith("Runner-up: checkpointing off, ")
    assert "recomputed" not in said
    assert page.tab.evaluate(f"{ROOT}.card.answer.words().following") == said


def test_a_reader_asks_with_the_keyboard_and_the_page_answers(saved, watched):
    page = watched(saved)
    tab = page.tab
    tab.locator(".dsnb-tasks input").first.focus()
    while "opt-350m, sequence 512" not in tab.evaluate(f"{ROOT}.state.task"):
        tab.keyboard.press("ArrowRight")
    assert "8 of 8 runs of this task" in tab.locator(".dsnb-count").inner_text()
    experiments = f"[...{ROOT}.groups.keys()].map((one) => {ROOT}.model.short[one])"
    assert tab.evaluate(experiments)[:2] == ["GPUs 1", "GPUs 8"]
    card = tab.locator(".dsnb-decision")
    assert "on 512 H100-SXM-80GB." in card.locator(".dsnb-headline").inner_text()
    card.get_by_label("Objective").select_option("cost")
    assert "Cheapest of 8 published settings" in card.inner_text()
    assert "at an assumed $2.50 a GPU-hour" in card.inner_text()
    asked = {"Price of an hour (H100-SXM-80GB)": "3", "Currency": "€", "GPUs at hand": "64"}
    for label, value in {**asked, "Smallest relevant difference (%)": "7"}.items():
        card.get_by_label(label).fill(value)
        card.get_by_label(label).press("Enter")
    card.get_by_label("Training tokens (billions)").fill("-1")
    card.get_by_label("Training tokens (billions)").press("Enter")
    assert card.get_by_label("Training tokens (billions)").input_value() == "100"
    assert "at €3.00 a GPU-hour" in card.inner_text()
    state = tab.evaluate(f"{ROOT}.state")
    assert (state["prices"], state["gpus_at_hand"], state["currency"]) == ({"H100-SXM-80GB": 3}, 64, "€")
    assert state["relevance"] == 0.07
    assert "differences below 7 % do not count" in tab.locator(".dsnb-front").inner_text()
    card.get_by_label("Objective").select_option("memory")
    assert "The setting with the least memory is unknown" in card.inner_text()
    assert page.said == []


TOKENS, GPUS, PRICE = "Training tokens (billions)", "GPUs at hand", "Price of an hour (H100-SXM-80GB)"
REFUSED = [
    *(
        (GPUS, text, "4", "give a whole number from 1 to 1,000,000,000, or nothing")
        for text in ("0", "-1", "1.5", "two")
    ),
    *((TOKENS, text, "100", "give a number above 0") for text in ("0", "-1", "1e12", "Infinity", "<b>", "")),
    *((PRICE, text, "2.5", "give a number from 0 to 1,000,000,000") for text in ("-1", "2 €")),
    *(("Smallest relevant difference (%)", text, "2", "give a number from 0 to 99") for text in ("100", "-1", "")),
]


def test_an_entry_that_is_not_allowed_is_named_beside_its_field(saved, watched):
    page = watched(saved)
    tab, card = page.tab, page.tab.locator(".dsnb-decision")
    tab.evaluate(f"{ROOT}.set({{ task: 'opt-350m, sequence 512', gpus_at_hand: 4 }})")
    before, answer = tab.evaluate(f"{ROOT}.state"), card.locator(".dsnb-answer").inner_text()
    for label, entered, kept, allowed in REFUSED:
        field = card.get_by_label(label)
        problem = field.locator("xpath=..").locator(".dsnb-problem:not(:empty)")
        field.fill(entered)
        field.press("Enter")
        field.blur()
        named = f"“{entered}”" if entered else "An empty field"
        assert problem.inner_text().startswith(f"{named} was not used: {allowed}")
        assert field.get_attribute("aria-describedby") == problem.get_attribute("id")
        assert (field.input_value(), field.get_attribute("aria-invalid")) == (kept, "true")
        assert (tab.evaluate(f"{ROOT}.state"), card.locator(".dsnb-answer").inner_text()) == (before, answer)
    field.fill("3")
    field.press("Enter")
    assert (problem.count(), field.get_attribute("aria-invalid"), field.input_value()) == (0, "false", "3")
    assert page.said == []


def test_the_remarks_in_the_page_are_those_of_the_task(saved, watched):
    page = watched(saved)
    texts = f"(task) => ({ROOT}.set({{ task }}), {ROOT}.card.remarks.innerText)"
    assert page.tab.evaluate(texts, "failed, sequence 512") == "6 of 6 runs are not ok: 6 out of memory."
    assert page.tab.evaluate(texts, "opt-350m, sequence 512") == "All 8 runs succeeded."
    assert page.tab.evaluate(texts, "all") == ""
    panel = page.tab.locator(".dsnb-panel", has_text="opt-350m, sequence 512")
    assert panel.locator(".dsnb-remarks").inner_text() == "All 8 runs succeeded."


def test_all_tasks_stand_side_by_side_each_with_its_own_front_and_answer(runs, saved, watched):
    page = watched(saved)
    tab = page.tab
    explorer = dsnb.explore(runs).set(task="all", objective="cost", relevance=0.05, precision=["bf16", "fp16"])
    tab.get_by_label("All tasks", exact=True).check()
    tab.evaluate(f"(state) => {ROOT}.set(state)", explorer.state)
    tab.evaluate(SETTLED)
    shown = runs.iloc[tab.evaluate(f"{ROOT}.selected")]
    assert shown.index.equals(explorer.selection.index)
    panels = tab.evaluate(
        f"""{ROOT}.overview.panels.map(({{ task, model, node, chart }}) => {{
          const {{ front, best, points }} = chart.picture?.data ?? {{ front: [], best: [], points: [] }};
          const names = front.map((point) => model.experiments.names[point.experiment]);
          return {{ title: task.title, text: node.textContent, front: names, best, points: points.length }};
        }})"""
    )
    known = answered(explorer.data).dropna(axis="columns", how="all")
    own = {task.title: task.runs for task in tasks(known)}
    assert [panel["title"] for panel in panels] == list(own)[:12]
    y = explorer.state["y"]
    against = set()
    for panel in panels:
        decision = decide.of_runs(own[panel["title"]], question(explorer.state))
        assert words(decision)["headline"] in panel["text"]
        measured = is_measured(explorer.data, explorer.state["x"], panel["title"])
        x = explorer.state["x"] if measured else default(explorer.data, panel["title"])["x"]
        against.add(x)
        selected = explorer.selection.index.intersection(own[panel["title"]].index)
        figures = known.loc[selected].groupby("experiment", sort=False)[[x, y]].median().dropna()
        if x == "gpus":
            assert panel["front"] == []
            continue
        assert panel["front"]
        assert set(panel["front"]) <= set(figures.index)
        is_drawn = not decision.options.empty and decision.options.index[0] in figures.index
        expected = [dict(zip("xy", figures.loc[decision.options.index[0]], strict=True))] if is_drawn else []
        assert panel["best"] == [pytest.approx(one) for one in expected]
    assert sum(bool(panel["best"]) for panel in panels) > 2
    assert {"gpus", "peak_allocated_gib"} < against
    tab.locator(".dsnb-panel").nth(2).click(position={"x": 100, "y": 150})
    assert tab.evaluate(f"[{ROOT}.state.task, {ROOT}.overview.node.hidden]") == [list(own)[2], True]
    assert tab.evaluate("document.activeElement.checked")
    assert page.said == []
