"""The answer as HTML: a card for each task that says what to train it with, with remarks on its runs."""

import html

import pandas as pd

from dsnb.analysis.choices import single_changes
from dsnb.analysis.comparisons import differences
from dsnb.analysis.decide import (
    ASSUMED_PRICE,
    Decision,
    Question,
    memory_figure,
    of_runs,
    rate,
    recorded_prices,
    without_probes,
)
from dsnb.analysis.flags import Flag, flags
from dsnb.analysis.summary import UNSTABLE, unstable
from dsnb.analysis.tasks import Task, tasks
from dsnb.analysis.texts import fixed
from dsnb.analysis.words import NO_RUNS, axis_title, words
from dsnb.render.tables import Html
from dsnb.runs import labels
from dsnb.runs.table import as_runs, named_runs, numbers

MAX_CARDS = 6
"""Tasks with a card of their own."""
MAX_NAMED = 3
"""Settings that a remark names."""


def answer(runs: pd.DataFrame, question: Question | None = None) -> Html:
    """State for each task what to train it with, what that costs, and what comes next.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    question
        What is to be least, for how many tokens, at which price, on how many GPUs; by default the least time, at the
        price that the runs state, or an assumed one.
    """
    runs = without_probes(as_runs(runs))
    if runs.empty:
        return Html(f'<section class="dsnb-answer"><p>{NO_RUNS}</p></section>')
    question = question or Question(prices=recorded_prices(runs), assumed_price=ASSUMED_PRICE)
    every = tasks(runs)
    cards = [_card(task, of_runs(task.runs, question)) for task in every[:MAX_CARDS]]
    more = labels.count(len(every) - MAX_CARDS, "more task")
    left = [f"{more} not shown here; the explorer has all."] if len(every) > MAX_CARDS else []
    return Html(f"{''.join(cards)}{_items(left)}")


def _items(sentences: list[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="dsnb-remarks">{items}</ul>' if items else ""


def _card(task: Task, decision: Decision) -> str:
    """Return the HTML of one card, what one change costs, and remarks; `web/card.js` makes the same card."""
    said = words(decision)
    title = f"<h3>{html.escape(task.title)}</h3>" if task.title else ""
    rows = said.pop("table")
    lines = {name: f'<p class="dsnb-{name}">{html.escape(text)}</p>' if text else "" for name, text in said.items()}
    basis = lines.pop("basis")
    table = _table(["differs in", "best", "runner-up"], rows)
    card = f'<section class="dsnb-answer">{title}{"".join(lines.values())}{table}{basis}</section>'
    one_change = "" if decision.options.empty else _one_change(decision)
    return f"{card}{one_change}{_items(remarks(task.runs))}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table whose rows begin with a heading; nothing without rows."""
    head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{html.escape(text)}</td>" for text in texts)}</tr>'
        for name, *texts in rows
    )
    return f'<table class="dsnb-differs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>' if rows else ""


def _one_change(decision: Decision) -> str:
    """Return what the settings cost that differ from the best one in a single choice, as a table."""
    runs, base = decision.runs, decision.options.index[0]
    figures = [name for name in (rate(runs), memory_figure(runs)) if name and name in runs]
    unit = labels.unit(decision.settings.loc[base].to_dict())
    relevance = decision.question.relevance
    words_of = [differences(runs, figure=name, baseline=base, relevance=relevance)["words"] for name in figures]
    counts = (runs["status"] == "ok").groupby(runs["experiment"]).agg(["sum", "size"])
    rows = []
    for row in single_changes(runs, base):
        n_ok, n = (int(count) for count in counts.loc[row["experiment"]])
        change = f"{axis_title(row['axis'], unit)}: {labels.text(row['before'])} → {labels.text(row['after'])}"
        if n_ok < n:
            change += f" ({n - n_ok} of {labels.count(n, 'run')} not ok)"
        rows.append([change, *(texts[row["experiment"]] if n_ok else "" for texts in words_of)])
    return _table(["one change", *(labels.METRIC_LABELS[name].title.replace("GPU", unit) for name in figures)], rows)


def remarks(runs: pd.DataFrame) -> list[str]:
    """Return sentences on how the runs of a task ended, on losses that differ, and on what was not tried."""
    bad = runs[runs["status"] != "ok"]
    statuses = bad["status"].replace({"oom": "out of memory"}).value_counts()
    counts = ", ".join(f"{count} {labels.text(name)}" for name, count in statuses.items())
    success = "The run succeeded." if len(runs) == 1 else f"All {len(runs)} runs succeeded."
    ended = success if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    return [ended, *unstable_settings(runs), *_otherwise(runs), *_not_tried(runs)]


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


def _otherwise(runs: pd.DataFrame) -> list[str]:
    """Name the settings whose losses say that they compute something else: a figure of theirs answers nothing."""
    own = [Flag.LOSS in found for found in flags(runs)["flags"]]
    names = list(dict.fromkeys(named_runs(runs)[own]["experiment"]))
    if not names:
        return []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return [
        f"{labels.count(sum(own), 'run')} of {labels.count(len(names), 'setting')} had other losses than settings "
        "that compute the same, so something went wrong there: find out what before you choose such a setting. "
        f"{', '.join(names[:MAX_NAMED])}{more}."
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
