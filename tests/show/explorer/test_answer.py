"""The answer in the page: what it says to any question is what Python says."""

import random

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.results.answers import decide
from dsnb.results.answers.card import card
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import significant
from dsnb.results.statistics.tasks import tasks
from dsnb.show.explorer.payload import answered
from dsnb.show.explorer.state import question
from tests.support import made_up
from tests.support.browser import OPEN, ROOT, Tabs, violations, write_page


@pytest.fixture(scope="module")
def runs():
    """Give tasks of all kinds: published ones, repeated runs on one host or several, a CPU, failed runs."""
    table = made_up.on_hosts(repeats=5, micro_batch_size=[8], model=["bloom-560m"])
    kinds = {1: None, 2: "NVIDIA A100", 4: "NVIDIA H200", 8: "NVIDIA H200"}
    table = table.assign(gpu_name=table["gpus"].map(kinds), gpu_memory_gib=80.0)
    close = table.assign(
        model="close", sweep="close", tokens_per_s=1e4 * np.exp(np.linspace(0, 0.02, len(table)))
    )
    cpu = (
        made_up.runs(12, gpus=[1, 2])
        .assign(model="cpu", device="cpu", sweep="cpu")
        .rename(columns=str)
    )
    failed = made_up.runs(6).assign(
        model="failed", status="oom", oom_allocated_gib=79.5, sweep="failed"
    )
    # the next best setting recomputes no block, so which ones it would recompute is no difference
    one = {
        "zero_stage": [1],
        "precision": ["bf16"],
        "grad_accum": [1],
        "micro_batch_size": [8],
        "gpus": [1],
    }
    blocks = made_up.runs(2, activation_checkpointing=[False, True], **one).assign(
        model="blocks", sweep="blocks", status="ok", activation_checkpointing=[True, False], checkpoint_every=[2, 1],
        tokens_per_s=[2000.0, 1000.0], experiment=["every-second", "none"],
    )  # fmt: skip
    # the best setting ran once, the next one four times
    doubted = made_up.runs(5, repeats=1, **{**one, "zero_stage": [1, 2, 3], "gpus": [1, 2]}).assign(
        model="doubted", sweep="doubted", status="ok", experiment=["single", *["repeated"] * 4],
        zero_stage=[1, 2, 2, 2, 2], gpus=1, repeat=[1, 1, 2, 3, 4], tokens_per_s=[1200.0, *[1000.0] * 4],
    )  # fmt: skip
    published = [
        dsnb.published(name) for name in ("lambda_1cc_opt", "h200_memory", "bigscience_1b3")
    ]
    every = pd.concat([table, close, cpu, failed, blocks, doubted, *published], ignore_index=True)
    return every.assign(
        lora_rank=every["lora_rank"].fillna(0)
    )  # unknown would be a task of its own


@pytest.fixture(scope="module")
def explorer(runs):
    return dsnb.explore(runs)


@pytest.fixture(scope="module")
def by_task(explorer):
    """Give the runs of each task by its title."""
    known = answered(explorer.data).dropna(axis="columns", how="all")
    return {task.title: task.runs for task in tasks(known)}


@pytest.fixture(scope="module")
def opened(explorer, chromium, tmp_path_factory):
    return Tabs(chromium).open(write_page(tmp_path_factory.mktemp("page") / "page.html", explorer))


@pytest.fixture
def tab(opened):
    """Give the page in its usual state."""
    opened.tab.evaluate(f"{OPEN}, {ROOT}.set({ROOT}.model.state)")
    yield opened.tab
    assert (opened.said, opened.outside) == ([], [])


def questions(explorer, number):
    draw = random.Random(4)
    kinds = [*explorer.data.runs["gpu_name"].dropna().unique(), "GPU", "CPU", ""]
    for _ in range(number):
        prices = {
            kind: round(draw.uniform(0, 5), 2) for kind in draw.sample(kinds, draw.randint(0, 3))
        }
        yield {
            "task": draw.choice(list(explorer.data.tasks)),
            "objective": draw.choice(["time", "gpu_hours", "cost", "memory"]),
            "train_tokens": draw.choice([0, round(10 ** draw.uniform(3, 14), draw.randint(0, 3))]),
            "gpus_at_hand": draw.choice([0, 0, 1, 3, 8, 100, 10_000]),
            "global_batch": draw.choice([0, 0, 8, 16, 192]),
            "prices": prices,
            "currency": draw.choice(["$", "€", "<b>"]),
            "relevance": draw.choice([0, 0.02, 0.2]),
        }


def test_the_page_answers_questions_as_python_does(explorer, by_task, tab):
    asked = list(questions(explorer, 40))
    large = next(title for title, table in by_task.items() if table["gpus"].min() > 1)
    any_batch = {**asked[0], "global_batch": 0}
    asked.append({**any_batch, "task": large, "gpus_at_hand": 1})
    for title in ("blocks, sequence 512", "doubted, sequence 512"):
        asked.append({**any_batch, "task": title, "gpus_at_hand": 0, "objective": "time"})
    lines = "['kicker', 'headline', 'costs', 'gain', 'note', 'following', 'edge', 'basis']"
    words_of = f"""(one) => {{
      {ROOT}.card.show({{ ...{ROOT}.state, ...one }});
      const found = {ROOT}.card.answer.words();
      const lines = Object.fromEntries({lines}.map((line) => [line, found[line] ?? ""]));
      return [lines, found.tiles ?? []];
    }}"""
    said = set()
    for one, (answer, tiles) in zip(
        asked, tab.evaluate(f"(asked) => asked.map({words_of})", asked), strict=True
    ):
        python = card(decide.of_runs(by_task[one["task"]], question(one)))
        assert answer == python, one
        assert bool(tiles) == ("tokens/s; " in python["costs"])
        for _, figure, _ in tiles:
            assert figure in f"{python['headline']} {python['costs']}"
        said |= {
            python["following"],
            python["headline"],
            python["costs"],
            python["note"],
        }
    found = " ".join(said)
    assert python["following"].startswith("Perhaps 20 % faster: ")  # of the task of the doubted
    assert "(one run)" in python["following"]
    new = (
        "in reasonable time on",
        "tokens in 30 days if each",
        "of the 10,000 GPUs at hand",
        "more than 365 days.",
    )
    for sentence in (
        *new,
        "Runner-up: nothing recomputed, ",
        "too few to be sure",
        "95 % interval",
        "all 6 runs failed",
        "No setting was measured on",
    ):
        assert sentence in found


def test_a_reader_asks_with_the_keyboard_and_the_page_answers(tab):
    tab.get_by_label("Model", exact=True).focus()
    tab.keyboard.press("Home")
    assert tab.evaluate(f"{ROOT}.state.task") == "all"
    while "opt-350m, sequence 512" not in tab.evaluate(f"{ROOT}.state.task"):
        tab.keyboard.press("ArrowDown")
    assert "8 of 8 runs of this task" in tab.locator(".dsnb-count").inner_text()
    experiments = f"[...{ROOT}.groups.keys()].map((one) => {ROOT}.model.short[one])"
    assert tab.evaluate(experiments)[:2] == ["1 GPU", "8 GPUs"]
    card = tab.locator(".dsnb-decision")
    assert "on 1 H100-SXM-80GB; " in card.locator(".dsnb-tiles").inner_text()
    card.get_by_label("Objective").select_option("cost")
    assert "Cheapest of 8 published settings" in card.inner_text()
    assert "GPU-hours at an assumed $2.50 each" in card.inner_text()
    asked = {"Price of an hour (H100-SXM-80GB)": "3", "Currency": "€", "GPUs at hand": "64"}
    for label, value in {**asked, "Smallest relevant difference (%)": "7"}.items():
        card.get_by_label(label).fill(value)
        card.get_by_label(label).press("Enter")
    assert "GPU-hours at €3.00 each" in card.inner_text()
    state = tab.evaluate(f"{ROOT}.state")
    assert (state["prices"], state["gpus_at_hand"], state["currency"]) == (
        {"H100-SXM-80GB": 3},
        64,
        "€",
    )
    assert state["relevance"] == 0.07
    assert "differences below 7 % do not count" in tab.locator(".dsnb-front").inner_text()
    card.get_by_label("Price of an hour (H100-SXM-80GB)").fill("")
    card.get_by_label("Price of an hour (H100-SXM-80GB)").press("Enter")
    assert "GPU-hours at an assumed €2.50 each" in card.inner_text()
    card.get_by_label("Price of an hour (H100-SXM-80GB)").fill("2.5")
    card.get_by_label("Price of an hour (H100-SXM-80GB)").press("Enter")
    assert tab.evaluate(f"{ROOT}.state.prices") == {}  # the assumed one is still assumed
    asked_of = card.locator(".dsnb-field", has_text="Price of an hour").locator("visible=true")
    assert asked_of.count() == 1  # the hardware of this task
    tab.evaluate(f"{ROOT}.set({{ task: 'cpu, sequence 512' }})")
    assert tab.evaluate(f"{ROOT}.state.objective") == "cost"  # as it was chosen
    tab.evaluate(f"{ROOT}.set({{ task: 'opt-350m, sequence 512' }})")
    card.get_by_label("Objective").select_option("memory")
    assert "The setting with the least memory is unknown" in card.inner_text()


REFUSED = {
    "GPUs at hand": ("0", "-1", "1.5"),
    "Training tokens (billions)": ("0", "-1", "1e12"),
    "Price of an hour (H100-SXM-80GB)": ("-1",),
    "Smallest relevant difference (%)": ("100", "-1", ""),
}


def test_an_entry_that_is_not_allowed_is_named_beside_its_field(tab):
    card = tab.locator(".dsnb-decision")
    tab.evaluate(f"{ROOT}.set({{ task: 'opt-350m, sequence 512', gpus_at_hand: 4 }})")
    before, answer = tab.evaluate(f"{ROOT}.state"), card.locator(".dsnb-answer").inner_text()
    for label, entries in REFUSED.items():
        field = card.get_by_label(label)
        problem = field.locator("xpath=..").locator(".dsnb-problem:not(:empty)")
        for entered in entries:
            field.fill(entered)
            field.press("Enter")
            assert problem.inner_text().startswith("Not used: ")
            assert field.get_attribute("aria-describedby") == problem.get_attribute("id")
            assert field.evaluate("(node) => node.matches(':invalid')")
            assert (tab.evaluate(f"{ROOT}.state"), card.locator(".dsnb-answer").inner_text()) == (
                before,
                answer,
            )
    field.fill("3")
    field.press("Enter")
    assert card.locator(".dsnb-problem:not(:empty)").count() == 0
    assert tab.evaluate(f"{ROOT}.state") == {**before, "relevance": 0.03}
    texts = f"(task) => ({ROOT}.set({{ task }}), {ROOT}.card.remarks.innerText)"
    assert tab.evaluate(texts, "failed, sequence 512") == "6 of 6 runs are not ok: 6 out of memory."
    assert tab.evaluate(texts, "opt-350m, sequence 512") == "All 8 runs succeeded."


def test_the_tokens_are_those_of_the_model_until_a_reader_enters_others(tab):
    field = tab.get_by_label("Training tokens (billions)")
    shown = []
    for entered in (None, "5", ""):
        if entered is not None:
            field.fill(entered)
            field.press("Enter")
        for task in ("bloom-560m, sequence 1024", "opt-350m, sequence 512"):
            tab.evaluate(f"(task) => {ROOT}.set({{ task }})", task)
            shown.append(field.input_value())
    assert shown == ["11", "6.6", "5", "5", "11", "6.6"]  # of 559 and 331 million parameters
    assert "an assumed 6.6 billion tokens at " in tab.locator(".dsnb-tiles").inner_text()


def test_all_tasks_are_a_table_of_answers(runs, by_task, tab):
    explorer = dsnb.explore(runs).set(
        task="all", objective="cost", relevance=0.05, precision=["bf16", "fp16"]
    )
    tab.get_by_label("Model", exact=True).select_option("All tasks")
    assert not tab.get_by_label("Task", exact=True).is_visible()
    tab.evaluate(f"(state) => {ROOT}.set(state)", explorer.state)
    assert runs.iloc[tab.evaluate(f"{ROOT}.selected")].index.equals(explorer.selection.index)
    cells = "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    rows = tab.locator(".dsnb-all-tasks tbody tr")
    shown = rows.evaluate_all(cells)
    (place,) = (at for at, row in enumerate(shown) if len(row) == 1)
    assert "so there is no advice" in shown[place][0]
    titles = list(explorer.data.tasks)
    listed = [row for row in shown if len(row) > 1]
    assert len(listed) == len(titles) == len(by_task)
    for title, (model, length, setting, hardware, rate, *_, memory, n, basis) in zip(
        titles, listed, strict=True
    ):
        decision = decide.of_runs(by_task[title], question(explorer.state))
        named = [model.partition(",")[0], *model.split(", ")[1:], length.replace(",", "")]
        assert all(part in title for part in named)
        if decision.options.empty:
            assert setting == card(decision)["headline"]
            continue
        best = decision.options.iloc[0]
        assert setting == labels.setting(decision.settings.iloc[0].to_dict())
        assert hardware == labels.place(decision.settings.iloc[0].to_dict())
        assert rate == significant(best["tokens_per_s"] / best["gpus"])
        assert (memory, n, basis) == (
            significant(best["memory_gib"]),
            f"{best['n']:g}",
            best["basis"],
        )
    rows.nth(2).get_by_role("button").click()
    assert tab.evaluate(f"[{ROOT}.state.task, {ROOT}.overview.node.hidden]") == [titles[2], True]
    assert tab.evaluate(f"{ROOT}.state.precision") == []  # a task starts with all of its runs
    assert tab.evaluate("document.activeElement.tagName") == "SELECT"


def test_the_table_of_tasks_is_sorted_and_searched(tab, explorer):
    tab.evaluate(f"{ROOT}.set({{ task: 'all' }})")
    rates = f"""{ROOT}.overview.items.filter((row) => !{ROOT}.overview.isLast(row))
      .map(({{ best }}) => best.rate / best.gpus)"""
    head = tab.locator(".dsnb-all-tasks thead")
    head.get_by_role("button", name="tokens/s/GPU").click()
    found = tab.evaluate(rates)
    assert found == sorted(found, reverse=True)
    assert head.locator("th[aria-sort='descending']").inner_text() == "tokens/s/GPU"
    assert tab.evaluate("document.activeElement.textContent") == "tokens/s/GPU"
    head.get_by_role("button", name="tokens/s/GPU").click()
    assert tab.evaluate(rates) == found[::-1]
    models = (
        "[...document.querySelectorAll('.dsnb-all-tasks tbody button')].map((one) => one.innerText)"
    )
    head.get_by_role("button", name="model").click()
    measured = tab.evaluate(models)[: len(found)]
    assert measured == sorted(measured, key=str.lower)
    assert (
        tab.locator(".dsnb-all-tasks tbody tr").last.inner_text().count("\t")
    )  # a task, not the note
    tab.get_by_label("Search").fill("OPT 512")
    assert tab.evaluate(models)
    assert all("opt" in model for model in tab.evaluate(models))
    tab.get_by_label("Search").fill("nothing like it")
    assert tab.evaluate(models) == []
    assert tab.get_by_text(f"0 of {len(explorer.data.tasks)} tasks").is_visible()
    tab.get_by_label("Search").fill("")
    assert violations(tab) == []
