"""Answers as HTML: a card for each task with the setting to train it with and remarks on its runs; and plans."""

import html
from collections.abc import Sequence
from functools import partial

import pandas as pd

from dsnb.prediction.advice import Recommendation
from dsnb.results.answers import lengths
from dsnb.results.answers.decide import (
    ASSUMED_PRICE,
    CPU,
    Decision,
    Question,
    default_objective,
    of_runs,
    recorded_prices,
    without_probes,
)
from dsnb.results.answers.words import NO_RUNS, words
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, named_runs, numbers
from dsnb.results.runs.texts import fit, fixed
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.summary import UNSTABLE, unstable, varies
from dsnb.results.statistics.tasks import Task, tasks
from dsnb.show.render.tables import Html, bullet_list, number_table, subheading

MAX_CARDS = 6
"""Maximum number of cards."""
MAX_NAMED = 3
"""Maximum number of settings that a remark names."""
MAX_LENGTHS = 8
"""Maximum number of settings whose sequence lengths are compared."""
PLAN = {
    "experiment": "experiment",
    "basis": "basis",
    "fits": "fits",
    "source": "source",
    "gpu_name": "GPU",
    "gpus": "GPUs",
    "peak_allocated_gib": "peak allocated (GiB)",
    "peak_allocated_error_pct": "error of it (%)",
    "peak_reserved_gib": "peak reserved (GiB)",
    "host_memory_gib": "host memory of a node (GiB)",
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
"""Columns of a plan -> headings."""
NOTHING = "No setting has a measured throughput: choose other runs, other tables or another model."


def answer(runs: pd.DataFrame, question: Question | None = None) -> Html:
    """Return the best setting of each task, its cost, and the next best setting.

    By default, the question is the least time, or the fewest GPU-hours if the runs differ in their number of GPUs, at
    the price that the runs state, or an assumed one.
    """
    runs = without_probes(as_runs(runs))
    if runs.empty:
        return Html(f'<section class="dsnb-answer"><p>{NO_RUNS}</p></section>')
    all_tasks = tasks(runs)
    default = partial(Question, prices=recorded_prices(runs), assumed_price=ASSUMED_PRICE)
    cards = [
        _card(task, of_runs(task.runs, question or default(objective=default_objective(task.runs))))
        for task in all_tasks[:MAX_CARDS]
    ]
    more = labels.count(len(all_tasks) - MAX_CARDS, "more task")
    hidden = [f"{more} not shown here; the explorer has all."] if len(all_tasks) > MAX_CARDS else []
    return Html(f"{''.join(cards)}{_items(hidden)}{_lengths(runs)}")


def _lengths(runs: pd.DataFrame) -> str:
    """Return what longer sequences cost, as a comparison of work; empty if only one length was measured."""
    compared = lengths.sentences(runs)
    if not compared:
        return ""
    more = len(compared) - MAX_LENGTHS
    hidden = [f"{labels.count(more, 'more setting')} not shown here."] if more > 0 else []
    listed = _items([*compared[:MAX_LENGTHS], *hidden])
    return f'<section class="dsnb-lengths"><h3>{lengths.TITLE}</h3><p>{lengths.ABOUT}</p>{listed}</section>'


def _items(sentences: list[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="dsnb-remarks">{items}</ul>' if items else ""


def _card(task: Task, decision: Decision) -> str:
    """Return the HTML of one card and its remarks; `web/card.js` makes the same card."""
    title = f"<h3>{html.escape(task.title)}</h3>" if task.title else ""
    lines = [
        f'<p class="dsnb-{name}">{html.escape(text)}</p>'
        for name, text in words(decision).items()
        if text
    ]
    return f'<section class="dsnb-answer">{title}{"".join(lines)}</section>{_items(remarks(task.runs))}'


def remarks(runs: pd.DataFrame) -> list[str]:
    """Return sentences on failed runs of a task, differing losses, unstable and mixed settings, and untried ones."""
    bad = runs[runs["status"] != "ok"]
    statuses = bad["status"].replace({"oom": "out of memory"}).value_counts()
    counts = ", ".join(f"{count} {labels.text(name)}" for name, count in statuses.items())
    success = "The run succeeded." if len(runs) == 1 else f"All {len(runs)} runs succeeded."
    ended = success if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    has_odd_loss = [Flag.LOSS in flagged for flagged in flags(runs)["flags"]]
    names = list(dict.fromkeys(named_runs(runs)[has_odd_loss]["experiment"]))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    odd_losses = (
        f"The losses of {labels.count(sum(has_odd_loss), 'run')} of {labels.count(len(names), 'setting')} differ from "
        "those of settings that compute the same: find the cause before you choose such a setting. "
        f"{', '.join(names[:MAX_NAMED])}{more}."
    )
    return [
        ended,
        *unstable_settings(runs),
        *mixed_settings(runs),
        *([odd_losses] if names else []),
        *_not_tried(runs),
    ]


def unstable_settings(runs: pd.DataFrame) -> list[str]:
    """Report unstable settings (`dsnb.results.statistics.summary`) and what to do about them; empty if there are none."""
    runs = named_runs(runs)
    names = unstable(runs)
    if not names:
        return []
    rates = (
        numbers(runs, "tokens_per_s")
        .where(runs["status"] == "ok")
        .groupby(runs["experiment"])
        .agg(["min", "max"])
    )
    ranges = [
        f"{name}: {fixed(rates['min'][name], 0)} to {fixed(rates['max'][name], 0)}"
        for name in names[:MAX_NAMED]
    ]
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    are, their, them = ("is", "its", "it") if len(names) == 1 else ("are", "their", "them")
    return [
        f"{labels.count(len(names), 'setting')} {are} unstable and not ranked: {their} repeats differ by more than "
        f"{UNSTABLE:g} times in tokens/s ({'; '.join(ranges)}{more}). Measure {them} again while nothing else uses the "
        "machine (see docs/how-to/noise.md)."
    ]


def mixed_settings(runs: pd.DataFrame) -> list[str]:
    """Report settings whose runs are not repeats (`dsnb.results.statistics.summary.varies`); empty if there are none."""
    differing = varies(named_runs(runs))
    differing = differing[differing != ""]
    if differing.empty:
        return []
    named = [f"{name} in {columns}" for name, columns in differing.head(MAX_NAMED).items()]
    more = f"; and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
    return [
        f"The medians of {labels.count(len(differing), 'setting')} are over runs that differ: {'; '.join(named)}{more}."
    ]


def _not_tried(runs: pd.DataFrame) -> list[str]:
    """Report if only DeepSpeed's native half precision without compilation was measured on GPUs: it is rarely fast."""
    on_gpu = runs[
        (runs["status"] == "ok") & runs.get("gpu_name", pd.Series(index=runs.index)).notna()
    ]
    on_gpu = on_gpu[on_gpu.get("source", pd.Series("dsnb", index=on_gpu.index)) == "dsnb"]
    slow = {"strategy": "deepspeed", "mixed_precision": "native", "compile": "off"}
    is_slow = on_gpu.reindex(columns=list(slow)).eq(pd.Series(slow)).all(axis=1)
    if on_gpu.empty or not (is_slow & on_gpu["precision"].isin(["fp16", "bf16"])).all():
        return []
    return [
        "Faster settings were not tried: mixed_precision: autocast with compile: default, or compile: reduce-overhead "
        "for a small model (see params/fast_paths.yaml)."
    ]


def plan_sentences(plans: Sequence[Recommendation], notes: Sequence[str] = ()) -> Html:
    """Return the answer for each task below its title, then the notes."""
    parts = [
        f"{subheading(plan.task)}{bullet_list(list(plan.sentences), NOTHING)}" for plan in plans
    ]
    parts += [str(bullet_list(list(notes)))] if notes else []
    return Html("".join(parts) or f"<p>{NOTHING}</p>")


def plan_tables(plans: Sequence[Recommendation], currency: str = "$") -> Html:
    """Return the settings of each task with their figures and errors, without empty columns."""
    return Html("".join(f"{subheading(plan.task)}{_plan_table(plan, currency)}" for plan in plans))


def _plan_table(plan: Recommendation, currency: str) -> Html:
    shown = plan.table[[name for name in PLAN if name in plan.table]]
    shown = shown.dropna(axis="columns", how="all") if len(shown) else shown
    titles = {**PLAN, "cost": f"cost ({currency.strip()})"}
    if "fits" in shown:
        shown = shown.assign(fits=[fit(row) for row in plan.table.to_dict("records")])
    else:
        shown = shown.drop(columns=["days_low", "days_high"], errors="ignore")
    if "kind" in plan.table and set(plan.table["kind"]) == {CPU}:
        shown = shown.drop(columns="gpu_name", errors="ignore")
        titles = {name: title.replace("GPU", "rank") for name, title in titles.items()}
    return number_table(
        shown.rename(columns=titles), ("experiment", "basis", "fits", "source", "GPU")
    )
