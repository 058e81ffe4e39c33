"""The plan beside the form, as HTML in the colours of JupyterLab; everything in it is escaped."""

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dsnb.analysis.texts import significant
from dsnb.designer.plan import Plan
from dsnb.designer.predicted import BEST
from dsnb.runs.labels import count, text

MOST_SHOWN = 20
"""Reasons, combinations and experiments of a list."""
TITLES = {"time": "time", "gpu_hours": "GPU-hours", "cost": "cost", "memory": "memory"}
"""Objective of `dsnb.analysis.decide` -> its name in the form."""


def plan_html(plan: Plan, start_s: float, objective: str, gpu: str) -> str:
    """Return what a draft comes to.

    Parameters
    ----------
    start_s
        What the estimate assumes of a run outside its steps.
    gpu
        What it is predicted for; empty if that is not known.
    """
    if plan.sweep is None:
        parts = [_list("This cannot be run", plan.problems)]
    else:
        experiments = len({run.name for run in plan.sweep.runs})
        runs = f"{count(len(plan.sweep.runs), 'run')}: {count(experiments, 'experiment')} x {plan.repeats}"
        parts = [
            f"<p><strong>{_escape(runs)}</strong></p>",
            _paragraphs(_time(plan, start_s, gpu), *_best(plan, objective), plan.note),
            _list("This machine cannot run it", plan.unsupported),
        ]
    parts += [_unfit(plan.unfit), _refused(plan.refused)]
    return f'<div role="status" style="overflow-wrap: anywhere; line-height: normal">{"".join(parts)}</div>'


def sentence(said: str) -> str:
    """Return one sentence."""
    return f'<p role="status">{_escape(said)}</p>' if said else ""


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{significant(seconds / length, 2)} {unit}"
    return f"{significant(seconds, 2)} s"


def _time(plan: Plan, start_s: float, gpu: str) -> str:
    known = len(plan.sweep.runs) - plan.unknown_runs if plan.sweep else 0
    if not known:
        return ""
    least = "at least " if plan.unknown_runs else ""
    said = f"Predicted on {gpu}: " if gpu else "Predicted: "
    said += f"{least}{duration(plan.seconds)}, {significant(plan.gpu_hours, 2)} GPU-hours"
    said += f", cost {significant(plan.cost)}" if plan.cost else ""
    said += f", with {significant(start_s)} s to start and end each run."
    unknown = f" {count(plan.unknown_runs, 'run')} of unknown time not counted." if plan.unknown_runs else ""
    return said + unknown


def _best(plan: Plan, objective: str) -> list[str]:
    """Return the best predicted experiment of each task; the task is named where there are several."""
    figures = {"tokens/s": "tokens_per_s", "GiB": "peak_allocated_gib"}
    found = plan.best(objective)
    said = []
    for title, best in found.items():
        known = [_figure(best, *one) for one in figures.items() if not math.isnan(best[one[1]])]
        of_task = f" of {title}" if plan.predicted["task"].nunique() > 1 else ""
        said.append(f"Predicted {BEST[objective][1]}{of_task}: {best['experiment']} ({', '.join(known)}).")
    rest = len(said) - MOST_SHOWN
    return [*said[:MOST_SHOWN], *([f"and {count(rest, 'task')} more"] if rest > 0 else [])]


def _figure(row: Any, unit: str, column: str) -> str:
    """Return a predicted figure with the mean error of such predictions, if that is known."""
    error_pct = row[f"{column.removesuffix('_gib')}_error_pct"]
    error = "" if math.isnan(error_pct) else f" ± {significant(error_pct, 2)} %"
    return f"{significant(row[column])} {unit}{error}"


def _unfit(names: list[str]) -> str:
    head = f"<h4>Predicted not to fit: {len(names):,}</h4>"
    return f"{head}{_disclosed('experiment', names)}" if names else ""


def _refused(refused: Mapping[str, list[dict[str, Any]]]) -> str:
    if not refused:
        return ""
    combinations = {_combination(one) for several in refused.values() for one in several} - {""}
    items = [
        f"<li>{_escape(reason)}{_combinations([_combination(one) for one in several])}</li>"
        for reason, several in list(refused.items())[:MOST_SHOWN]
    ]
    rest = len(refused) - MOST_SHOWN
    more = f"<p>and {count(rest, 'reason')} more</p>" if rest > 0 else ""
    head = f"Refused and left out: {count(len(combinations), 'combination')}" if combinations else "Refused"
    return f"<h4>{head}</h4><ul>{''.join(items)}</ul>{more}"


def _combinations(named: list[str]) -> str:
    """Return combinations behind a disclosure; nothing where there are no axes."""
    return _disclosed("combination", named) if any(named) else ""


def _disclosed(noun: str, names: list[str]) -> str:
    rest = [f"and {len(names) - MOST_SHOWN:,} more"] if len(names) > MOST_SHOWN else []
    lines = "".join(f"<li>{_escape(one)}</li>" for one in [*names[:MOST_SHOWN], *rest])
    return f"<details><summary>{count(len(names), noun)}</summary><ul>{lines}</ul></details>"


def _combination(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in settings.items())


def _list(head: str, lines: Iterable[str]) -> str:
    lines = list(lines)
    rest = [f"and {len(lines) - MOST_SHOWN:,} more"] if len(lines) > MOST_SHOWN else []
    items = "".join(f"<li>{_escape(line)}</li>" for line in [*lines[:MOST_SHOWN], *rest])
    return f"<h4>{_escape(head)}</h4><ul>{items}</ul>" if lines else ""


def _paragraphs(*said: str) -> str:
    return "".join(f"<p>{_escape(one)}</p>" for one in said if one)


def _escape(said: str) -> str:
    return html.escape(said.replace("\n", " "))
