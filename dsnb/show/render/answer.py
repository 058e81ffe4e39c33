"""Answers as HTML: a card for each task with the setting to train it with and remarks on its runs; and plans."""

import html
from collections.abc import Iterable, Sequence

import pandas as pd

from dsnb.results.answers import lengths
from dsnb.results.answers.answer import Answer
from dsnb.results.answers.decide import CPU, Decision, Question, without_probes
from dsnb.results.answers.lines import as_html
from dsnb.results.answers.measured import decisions, lines
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.names import short_names
from dsnb.results.runs.number_text import fixed, supported
from dsnb.results.runs.table import as_runs, named_runs, numbers
from dsnb.results.runs.templates import fill
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.summary import unstable, varies
from dsnb.results.statistics.tasks import Task, tasks
from dsnb.show.render.predictions import predicted_figures
from dsnb.show.render.tables import Html, bullet_list, first_of, number_table, subheading, to_html

MAX_CARDS = 6
"""Maximum number of cards."""
MAX_NAMED = 3
"""Maximum number of settings that a remark names."""
MAX_LENGTHS = 8
"""Maximum number of settings whose sequence lengths are compared."""
SLOW = {"strategy": "deepspeed", "mixed_precision": "native", "compile": "off"}
"""Settings that are rarely the fastest on a GPU."""


def answer(runs: pd.DataFrame, question: Question | None = None) -> Html:
    """Return the best setting of each task, its cost, and the next best setting.

    By default, the question is the least time, or the fewest GPU-hours if the runs differ in their
    number of GPUs, at the price that the runs state, or an assumed one.
    """
    runs = without_probes(as_runs(runs))
    if runs.empty:
        return Html(f'<section class="dsnb-answer"><p>{PHRASES["no_runs"]}</p></section>')
    all_tasks = tasks(runs)
    cards = [_card(task, decided) for task, decided in decisions(runs, question, MAX_CARDS)]
    hidden = _hidden(len(all_tasks) - MAX_CARDS, "more task", "; the explorer has all")
    return Html(f"{''.join(cards)}{_items(hidden)}{_lengths(runs)}")


def _lengths(runs: pd.DataFrame) -> str:
    """Return what longer sequences cost, as a comparison of work; empty if only one length was measured."""
    compared = lengths.sentences(runs)
    if not compared:
        return ""
    hidden = _hidden(len(compared) - MAX_LENGTHS, "more setting")
    intro = f"<h3>{PHRASES['lengths']}</h3><p>{PHRASES['about_lengths']}</p>"
    listed = _items([*compared[:MAX_LENGTHS], *hidden])
    return f'<section class="dsnb-lengths">{intro}{listed}</section>'


def _hidden(number: int, noun: str, where: str = "") -> list[str]:
    if number > 0:
        return [f"{labels.count(number, noun)} not shown here{where}."]
    return []


def _items(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    if items:
        return f'<ul class="dsnb-remarks">{items}</ul>'
    return ""


def _card(task: Task, decision: Decision) -> str:
    """Return the HTML of one card and its remarks."""
    shown = _items(remarks(task.runs))
    return f'<section class="dsnb-answer">{as_html(lines(decision, task.title))}</section>{shown}'


def remarks(runs: pd.DataFrame) -> list[str]:
    """Return sentences on failed runs of a task, differing losses, unstable and mixed settings, and untried ones."""
    found = [_ended(runs), *unstable_settings(runs), *mixed_settings(runs), _losses(runs)]
    return [sentence for sentence in (*found, _not_tried(runs)) if sentence]


def _ended(runs: pd.DataFrame) -> Sentence:
    bad = runs["status"][runs["status"] != "ok"]
    several = len(runs) if len(runs) > 1 else ""
    if bad.empty:
        return say("ended.well", runs=len(runs), several=several)
    statuses = bad.replace({"oom": "out of memory"}).value_counts()
    counts = ", ".join(f"{count} {labels.text(name)}" for name, count in statuses.items())
    return say("ended", bad=len(bad), runs=len(runs), counts=counts)


def _losses(runs: pd.DataFrame) -> Sentence:
    is_odd = [Flag.LOSS in flagged for flagged in flags(runs)["flags"]]
    names = named_runs(runs)["experiment"][is_odd].unique()
    named = first_of(names, MAX_NAMED, ", ", " and {} more")
    return say("loss", runs=fixed(sum(is_odd)), settings=fixed(len(names)), named=named)


def unstable_settings(runs: pd.DataFrame) -> list[str]:
    """Report unstable settings (`dsnb.results.statistics.summary`) and what to do about them; empty without any."""
    runs = named_runs(runs)
    rates = numbers(runs, "tokens_per_s").where(runs["status"] == "ok")
    ranges = rates.groupby(runs["experiment"]).agg(["min", "max"]).loc[unstable(runs)]
    named = [f"{row.Index}: {fixed(row.min)} to {fixed(row.max)}" for row in ranges.itertuples()]
    return _named("unstable", named)


def mixed_settings(runs: pd.DataFrame) -> list[str]:
    """Report settings whose runs are not repeats (`dsnb.results.statistics.summary.varies`); empty without any."""
    differing = varies(named_runs(runs))
    return _named(
        "mixed", [f"{name} in {columns}" for name, columns in differing.items() if columns]
    )


def _named(name: str, named: Sequence[str]) -> list[str]:
    if named:
        return [say(name, settings=fixed(len(named)), named=first_of(named, MAX_NAMED))]
    return []


def _not_tried(runs: pd.DataFrame) -> Sentence | str:
    """Report if only DeepSpeed's native half precision without compilation was measured on GPUs: it is rarely fast."""
    settings = runs.reindex(columns=["gpu_name", "precision", *SLOW])
    is_own = runs["source"] == "dsnb" if "source" in runs else True
    measured = settings[(runs["status"] == "ok") & settings["gpu_name"].notna() & is_own]
    is_slow = measured[list(SLOW)].eq(pd.Series(SLOW)).all(axis=1)
    is_half = measured["precision"].isin(["fp16", "bf16"])
    if len(measured) and (is_slow & is_half).all():
        return say("not_tried")
    return ""


def plan_sentences(plans: Sequence[Answer], notes: Sequence[Sentence] = ()) -> Html:
    """Return the answer for each task below its title, then the notes."""
    parts = [plan._repr_html_() for plan in plans]
    if notes:
        parts.append(str(bullet_list(list(notes))))
    return Html("".join(parts) or f"<p>{PHRASES['no_plan']}</p>")


def plan_tables(plans: Sequence[Answer], currency: str = "$") -> Html:
    """Return the settings of each task with their figures and errors, without empty columns."""
    return Html("".join(f"{subheading(plan.task)}{_plan_table(plan, currency)}" for plan in plans))


def _plan_table(plan: Answer, currency: str) -> str:
    if "fits" in plan.table:
        return _forecast_table(plan, currency)
    headings = PHRASES["columns"]
    shown = plan.table[[name for name in headings if name in plan.table]]
    if len(shown):
        shown = shown.dropna(axis="columns", how="all")
    unit = "GPU"
    if "kind" in plan.table and set(plan.table["kind"]) == {CPU}:
        shown = shown.drop(columns="gpu_name", errors="ignore")
        unit = "rank"
    facts = {"unit": unit, "currency": currency.strip()}
    titles = {name: fill(title, facts) for name, title in headings.items()}
    texts = ("setting", "basis", "source", "GPU")
    return str(number_table(shown.rename(columns=titles), texts))


def _forecast_table(plan: Answer, currency: str) -> str:
    """Return settings that were predicted or measured, with the digits that their errors support."""
    table = plan.table
    if table.empty:
        return ""
    shared, names = short_names(list(table["setting"]))
    figures = predicted_figures(table, currency)
    figures["GPU-hours"] = [
        supported(row.gpu_hours, row.tokens_per_s_error_pct / 100) for row in table.itertuples()
    ]
    shown = pd.DataFrame({"setting": names, "basis": table["basis"]}).join(figures)
    shown = shown.loc[:, (shown != "").any()]
    paragraph = f"<p>All: {html.escape(shared)}.</p>" if shared else ""
    return f"{paragraph}{to_html(shown, ('setting', 'basis', 'fits'), index=False)}"
