"""What the browser needs for the answer: `web/decision.js` decides what to train with, `web/card.js` shows it."""

from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.decide import ASSUMED_PRICE, OBJECTIVES, basis, kinds, without_probes
from dsnb.analysis.summary import UNSTABLE, unstable
from dsnb.explorer import question
from dsnb.explorer.data import EVERY_TASK, Data, json_numbers
from dsnb.explorer.state import OF_A_TASK, default
from dsnb.render import answer, templates, words
from dsnb.runs import labels, setting_words
from dsnb.runs.columns import numbers
from dsnb.settings import planning

NEEDED = ("source", "gpu_name", "device", "model", "gpu_memory_gib")
FIGURES = ("tokens_per_s", "tokens_per_s_per_gpu", "power_w", *labels.MEMORY)


def payload(data: Data, names: list[str]) -> dict[str, Any]:
    """Return the tasks, each experiment's setting in words, and the words and limits of the sentences.

    Parameters
    ----------
    data
        The runs.
    names
        The experiments in the order of their numbers in the page.
    """
    runs = answered(data)
    first = runs.copy().assign(kind=kinds(runs)).drop_duplicates("experiment")
    capacity = numbers(runs, "gpu_memory_gib").groupby(runs["experiment"]).min()
    settings = {row["experiment"]: _setting(row, capacity[row["experiment"]]) for row in first.to_dict("records")}
    return {
        "tasks": [_task(data, runs, code, title) for code, title in enumerate(data.tasks)],
        "allTasks": {"title": EVERY_TASK, "controls": _controls(data, EVERY_TASK)} if len(data.tasks) > 1 else None,
        "taskCodes": data.task_codes,
        "settings": _shared([settings.get(name) for name in names]),
        "memoryFigures": labels.MEMORY,
        "assumedPrice": ASSUMED_PRICE,
        "objectives": list(OBJECTIVES),
        "best": templates.BEST,
        "worse": templates.WORSE,
        "place": sorted(templates.PLACE),
        "shownGib": templates.SHOWN_GIB,
        "equalPct": templates.EQUAL_PCT,
        "byMean": [f" {mean}" for mean in templates.BY_MEAN],
        "unstable": [names.index(name) for name in unstable(runs)],
        "unstableTimes": UNSTABLE,
        "extrapolated": "extrapolated to all tokens without restarts, checkpoints and evaluation",
        "mostDays": planning.MOST_DAYS,
        "goalDays": planning.GOAL_DAYS,
        "inputs": question.INPUTS,
        "noRuns": templates.NO_RUNS,
    }


def answered(data: Data) -> pd.DataFrame:
    """Return the runs that the answer is about, with the figures of the page, so that both say the same."""
    runs = data.runs.reset_index(drop=True)
    runs = runs.reindex(columns=[*runs, *(name for name in NEEDED if name not in runs)])
    figures = {name: data.figures[name].to_numpy() if name in data.figures else float("nan") for name in FIGURES}
    status = [labels.text(value) for value in runs["status"]]
    runs = runs.assign(**figures, experiment=data.experiments, status=status, sweep="", gpus=numbers(runs, "gpus"))
    return without_probes(runs) if len(runs) else runs


def _shared(settings: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Return every text and every kind of place once, and each setting as the numbers of its two; None stays None.

    Most settings share theirs with others, and those of thousands of experiments would take much of the page.
    """
    texts: dict[str, int] = {}
    places: dict[tuple[Any, ...], int] = {}
    codes: list[list[int] | None] = []
    for one in settings:
        if one is None:
            codes.append(None)
            continue
        place = {name: value for name, value in one.items() if name != "setting"}
        codes.append(
            [texts.setdefault(one["setting"], len(texts)), places.setdefault(tuple(place.items()), len(places))]
        )
    return {"texts": list(texts), "places": [dict(place) for place in places], "codes": codes}


def _setting(run: dict[Any, Any], capacity: float) -> dict[str, Any]:
    return {
        "model": "" if labels.text(run.get("model")) == "-" else labels.text(run["model"]),
        "setting": setting_words.setting(run),
        "place": setting_words.place(run),
        "unit": setting_words.unit(run),
        "basis": basis(run),
        "origin": words.origin(run),
        "kind": run["kind"],
        "gpus": json_numbers([run["gpus"]])[0],
        "capacity": json_numbers([capacity])[0],
    }


def _task(data: Data, answered: pd.DataFrame, code: int, title: str) -> dict[str, Any]:
    """Return a task's title, the controls that it sets, remarks on its runs, and what is known if none is ok."""
    own = np.array(data.task_codes) == code
    remarks = answer.remarks(answered[own[answered.index]]) if own[answered.index].any() else []
    failed = words.memory_of_failed(data.runs[own])
    return {"title": title, "failed": failed, "remarks": remarks, "controls": _controls(data, title)}


def _controls(data: Data, task: str) -> dict[str, Any]:
    fresh = default(data, task)
    return {name: fresh[name] for name in (*data.choices, *OF_A_TASK, "x", "y")}
