"""Answers as HTML: for each task a card that says what to train it with, with remarks on its runs; and plans."""

import html
from collections.abc import Sequence
from functools import partial

import pandas as pd

from dsnb.analysis.advice import Recommendation
from dsnb.analysis.decide import (
    ASSUMED_PRICE,
    CPU,
    Decision,
    Question,
    default_objective,
    of_runs,
    recorded_prices,
    without_probes,
)
from dsnb.analysis.flags import Flag, flags
from dsnb.analysis.summary import UNSTABLE, unstable
from dsnb.analysis.tasks import Task, tasks
from dsnb.analysis.texts import fixed
from dsnb.analysis.words import NO_RUNS, words
from dsnb.render.tables import Html, bullet_list, number_table, subheading
from dsnb.runs import labels
from dsnb.runs.table import as_runs, named_runs, numbers

MAX_CARDS = 6
"""Tasks with a card of their own."""
MAX_NAMED = 3
"""Settings that a remark names."""
PLAN = {
    "experiment": "experiment",
    "basis": "basis",
    "fits": "fits",
    "source": "source",
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_error_pct": "error of tokens/s, days and cost (%)",
    "days": "days",
    "days_low": "days, from",
    "days_high": "days, to",
    "gpu_hours": "GPU-hours",
    "power_w": "power per GPU (W)",
    "energy_kwh": "energy (kWh)",
    "cost": "cost",
}
"""Columns of a plan, and their headings."""
NOTHING = "No setting has a measured throughput: choose other runs, other tables or another model."


def answer(runs: pd.DataFrame, question: Question | None = None) -> Html:
    """State for each task what to train it with, what that costs, and what comes next.

    By default, the question is the least time, or the fewest GPU-hours where the runs differ in their GPUs, at the
    price that the runs state, or an assumed one.
    """
    runs = without_probes(as_runs(runs))
    if runs.empty:
        return Html(f'<section class="dsnb-answer"><p>{NO_RUNS}</p></section>')
    every = tasks(runs)
    usual = partial(Question, prices=recorded_prices(runs), assumed_price=ASSUMED_PRICE)
    questions = [question or usual(objective=default_objective(task.runs)) for task in every[:MAX_CARDS]]
    cards = [_card(task, of_runs(task.runs, asked)) for task, asked in zip(every[:MAX_CARDS], questions, strict=True)]
    more = labels.count(len(every) - MAX_CARDS, "more task")
    left = [f"{more} not shown here; the explorer has all."] if len(every) > MAX_CARDS else []
    return Html(f"{''.join(cards)}{_items(left)}")


def _items(sentences: list[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="dsnb-remarks">{items}</ul>' if items else ""


def _card(task: Task, decision: Decision) -> str:
    """Return the HTML of one card and its remarks; `web/card.js` makes the same card."""
    title = f"<h3>{html.escape(task.title)}</h3>" if task.title else ""
    lines = [f'<p class="dsnb-{name}">{html.escape(text)}</p>' for name, text in words(decision).items() if text]
    return f'<section class="dsnb-answer">{title}{"".join(lines)}</section>{_items(remarks(task.runs))}'


def remarks(runs: pd.DataFrame) -> list[str]:
    """Return sentences on how the runs of a task ended, on losses that differ, and on what was not tried."""
    bad = runs[runs["status"] != "ok"]
    statuses = bad["status"].replace({"oom": "out of memory"}).value_counts()
    counts = ", ".join(f"{count} {labels.text(name)}" for name, count in statuses.items())
    success = "The run succeeded." if len(runs) == 1 else f"All {len(runs)} runs succeeded."
    ended = success if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    own = [Flag.LOSS in found for found in flags(runs)["flags"]]
    names = list(dict.fromkeys(named_runs(runs)[own]["experiment"]))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    otherwise = (
        f"{labels.count(sum(own), 'run')} of {labels.count(len(names), 'setting')} had other losses than settings "
        "that compute the same, so something went wrong there: find out what before you choose such a setting. "
        f"{', '.join(names[:MAX_NAMED])}{more}."
    )
    return [ended, *unstable_settings(runs), *([otherwise] if names else []), *_not_tried(runs)]


def unstable_settings(runs: pd.DataFrame) -> list[str]:
    """Say how many settings are unstable and what to do about them; nothing if none is (`dsnb.analysis.summary`)."""
    runs = named_runs(runs)
    names = unstable(runs)
    if not names:
        return []
    rates = numbers(runs, "tokens_per_s").where(runs["status"] == "ok").groupby(runs["experiment"]).agg(["min", "max"])
    ranges = [f"{name}: {fixed(rates['min'][name], 0)} to {fixed(rates['max'][name], 0)}" for name in names[:MAX_NAMED]]
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    are, own, them = ("is", "its", "it") if len(names) == 1 else ("are", "their", "them")
    return [
        f"{labels.count(len(names), 'setting')} {are} unstable and not ranked: {own} repeats differ by more than "
        f"{UNSTABLE:g} times in tokens/s ({'; '.join(ranges)}{more}). Measure {them} again while nothing else uses the "
        "machine (see docs/how-to/noise.md)."
    ]


def _not_tried(runs: pd.DataFrame) -> list[str]:
    """Say so if only DeepSpeed's native half precision without compilation was measured on GPUs: it is rarely fast."""
    own = runs[(runs["status"] == "ok") & runs.get("gpu_name", pd.Series(index=runs.index)).notna()]
    own = own[own.get("source", pd.Series("dsnb", index=own.index)) == "dsnb"]
    slow = {"strategy": "deepspeed", "mixed_precision": "native", "compile": "off"}
    half = own["precision"].isin(["fp16", "bf16"]) if "precision" in own else pd.Series(dtype=bool)
    if own.empty or not half.all() or any(name not in own or (own[name] != slow[name]).any() for name in slow):
        return []
    return [
        "Faster settings were not tried: mixed_precision: autocast with compile: default, or compile: reduce-overhead "
        "for a small model (see params/fast_paths.yaml)."
    ]


def plan_sentences(plans: Sequence[Recommendation], notes: Sequence[str] = ()) -> Html:
    """Return the answer for each task below its title, then the notes on all of them."""
    parts = [f"{subheading(plan.task)}{bullet_list(list(plan.sentences), NOTHING)}" for plan in plans]
    parts += [str(bullet_list(list(notes)))] if notes else []
    return Html("".join(parts) or f"<p>{NOTHING}</p>")


def plan_tables(plans: Sequence[Recommendation], currency: str = "$") -> Html:
    """Return the settings of each task with their figures and errors; columns without any value are left out."""
    return Html("".join(f"{subheading(plan.task)}{_plan_table(plan, currency)}" for plan in plans))


def _plan_table(plan: Recommendation, currency: str) -> Html:
    shown = plan.table[[name for name in PLAN if name in plan.table]]
    shown = shown.dropna(axis="columns", how="all") if len(shown) else shown
    titles = {**PLAN, "cost": f"cost ({currency.strip()})"}
    if "fits" in shown:
        shown = shown.assign(fits=shown["fits"].map({True: "yes", False: "no"}))
    else:
        shown = shown.drop(columns=["days_low", "days_high"], errors="ignore")
    if "kind" in plan.table and set(plan.table["kind"]) == {CPU}:
        shown = shown.drop(columns="gpu_name", errors="ignore")
        titles = {name: title.replace("GPU", "rank") for name, title in titles.items()}
    return number_table(shown.rename(columns=titles), ("experiment", "basis", "fits", "source", "GPU"))
