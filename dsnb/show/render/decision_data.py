"""Data for the page's decisions: the candidates of each task, and the intervals of pairs of settings.

The page does the arithmetic of tokens, prices and GPUs at hand, and sorts; all statistics are
computed here.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.files import plain_yaml
from dsnb.base.formulas.planning import GOAL_DAYS, MAX_DAYS
from dsnb.prediction.predicted import REQUIRED_IF_COLUMNS, experiment_of, unknown_columns
from dsnb.results.answers import card, decide
from dsnb.results.answers.decide import candidates, first_runs, may_be_best, memory_figure
from dsnb.results.answers.evidence import TRAINING, evidence
from dsnb.results.answers.sentences import CARD, LIMITS, PHRASES, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import HOURS, SIZES
from dsnb.results.runs.table import json_numbers
from dsnb.results.runs.templates import fill
from dsnb.results.statistics import intervals
from dsnb.results.statistics.comparisons import TOGETHER, VALUES, compared, rules_of
from dsnb.results.statistics.intervals import CLEAR, CONFIDENCE, MIN_RUNS
from dsnb.results.statistics.setting_axes import with_setting_axes
from dsnb.results.statistics.tasks import FEWEST_SETTINGS
from dsnb.settings.exchange import files
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import SETTINGS
from dsnb.show.render.tables import ends

MAX_PAIRS, CHOSEN_PAIRS = 2000, 1000
"""A task with more than `MAX_PAIRS` pairs of settings sends the intervals of `CHOSEN_PAIRS`."""
MAX_INTERVALS = 12_000
"""Intervals of a task; with many pairs, only those of the first figures, speed and memory, are
sent."""
VALUE_DIGITS = 7
DIGITS = 9
"""Significant digits of medians in the page."""
FACTOR_DIGITS, SPREAD_DIGITS = 6, 4
NUMBERS = {
    "rate": "tokens_per_s",
    "power": "power_w",
    "memory": "memory_gib",
    "capacity": "gpu_memory_gib",
    "global_batch": "global_batch",
}
MAY_BE_ASSUMED = frozenset({"precision", *REQUIRED_IF_COLUMNS})
"""Settings that files for other programs have the defaults of where they are unknown."""
NAME = "\x1a"
"""Stands for a name in texts: a control character, which YAML and JSON escape."""
EVIDENCE = ("rests", "short", "gain", "edge", "batch")
TEXTS = ("model", "setting", "place", "unit", "origin", "kind", "basis")
_PHRASES = PHRASES["page"]
_METHOD = {
    "confidence": f"{100 * CONFIDENCE:g}",
    "together": TOGETHER,
    "relevance": "{relevance}",  # for the page to fill
}
PAGE: dict[str, Any] = {
    "templates": CARD,
    "words": {
        "best": PHRASES["best"],
        "worse": PHRASES["worse"],
        "byMean": PHRASES["by_mean"],
        "place": card.PLACE,
        "training": TRAINING,
        "sizes": SIZES,
        "hours": HOURS,
        "values": VALUES,
        "noRuns": PHRASES["no_runs"],
        "assumed": PHRASES["assumed"],
        "unrecorded": PHRASES["unrecorded"],
        "tiles": PHRASES["tiles"],
        "name": NAME,
        **_PHRASES,
        "method": fill(_PHRASES["method"], LIMITS | _METHOD),
        "few": fill(_PHRASES["few"], {"needed": FEWEST_SETTINGS}),
    },
    "limits": {
        "maxDays": MAX_DAYS,
        "goalDays": GOAL_DAYS,
        "shownGib": card.SHOWN_GIB,
        "equalPct": card.EQUAL_PCT,
        "fewestRuns": MIN_RUNS,
        "fewestSettings": FEWEST_SETTINGS,
        "assumedPrice": decide.ASSUMED_PRICE,
        "worthRoom": decide.WORTH_ROOM,
        "clear": CLEAR,
    },
    "facts": LIMITS | {"needed": MIN_RUNS},
    "textColumns": (*TEXTS, *EVIDENCE),
}
"""Templates, words and limits of the page's decisions, ready for JSON."""


def tasks_payload(
    runs: pd.DataFrame,
    task_codes: Sequence[int],
    names: Sequence[str],
    figures: Sequence[str],
    axes: Sequence[str],
) -> dict[str, Any]:
    """Return the candidates and the pairs of settings of each task, ready for JSON.

    The index of `runs` is a place in `task_codes`; `names` are the experiments, `figures` the
    columns to compare, and `axes` the settings that distinguish experiments. Texts are sent once,
    as places in `texts`.

    `candidates` of a task: `experiment` (its number), counts of runs, medians in the units of their
    columns, texts about the setting (`dsnb.results.answers.card`), and, for candidates that may be
    the best, texts of `dsnb.results.answers.evidence` and, by place, `take` (see `_take`). Of a
    column with the same value for all, the value is sent instead.

    `pairs`: `settings` (numbers of experiments with `MIN_RUNS` ok runs), `first` and `second`
    (places in `settings`), and by figure the compared `values` of settings, their runs `n`, and for
    each pair a `factor`: the interval of the ratio second / first is ratio / factor to ratio *
    factor; of percentages, the difference less and plus the factor. `notes` has the pairs of each
    note, as `ranges`. `hosts` has the pairs whose runs on one host are counted as one (`at`), and
    their sides: `first` and `second` are places among `sides`, `[n, value]`.
    """
    texts: dict[str, int] = defaultdict(lambda: len(texts))  # each once, and its place
    numbers = {name: code for code, name in enumerate(names)}
    groups = pd.Series(list(task_codes), dtype=int).reindex(runs.index)
    sent = []
    for code in range(max(task_codes, default=-1) + 1):
        part = runs[groups == code]
        table = candidates(part)
        figure = memory_figure(part)
        is_few = 0 < len(table) < FEWEST_SETTINGS
        task = {
            "case": card.case(part) if table.empty else "",
            "runs": len(part),
            "few": card.few_settings(part, table) if is_few else "",
            "memory": card.memory_name(part) if figure else "",
            "memoryFigure": figure,
            "candidates": _candidates(table, part, numbers, texts),
            "pairs": _pairs(part, table, numbers, figures, axes, texts),
        }
        sent.append(task)
    return {"texts": list(texts), "tasks": sent}


def _candidates(
    table: pd.DataFrame, runs: pd.DataFrame, numbers: dict[str, int], texts: dict[str, int]
) -> dict[str, Any]:
    """Return the candidates of a task by column; `texts` gets what is new to it."""
    first = first_runs(runs).loc[table.index].to_dict("index")
    known = evidence(runs, table, may_be_best(table))
    columns: dict[str, Any] = {
        "experiment": [numbers[name] for name in table.index],
        "n": table["n"].tolist(),
        "failed": table["n_failed"].tolist(),
        "gpus": json_numbers(table["gpus"], DIGITS),
        "unstable": table["is_unstable"].tolist(),
        "spread": json_numbers(table["spread_pct"].where(table["n"] > 1), SPREAD_DIGITS),
    }
    for name, column in NUMBERS.items():
        columns[name] = json_numbers(table[column], DIGITS)
    described = pd.DataFrame(map(card.setting_texts, first.values()), columns=list(TEXTS))
    described[["kind", "basis"]] = table[["kind", "basis"]].to_numpy()
    for name in EVIDENCE:
        described[name] = [known.get(label, {}).get(name, "") for label in table.index]
    for name in described:
        columns[str(name)] = [texts[text] for text in described[name]]
    sent = {name: _once(column) for name, column in columns.items() if name != "experiment"}
    taken = {at: _take(run, texts) for at, (name, run) in enumerate(first.items()) if name in known}
    sent["take"] = {at: entry for at, entry in taken.items() if entry}
    return {"experiment": columns["experiment"], **sent}


def _once(column: list[Any]) -> Any:
    """Return the value of a column if it is the same for all, otherwise the column."""
    is_same = len(column) > 1 and all(value == column[0] for value in column)
    return column[0] if is_same else column


def _take(run: Mapping[str, Any], texts: dict[str, int]) -> dict[str, Any]:
    """Return what repeats a setting: `entry` of a params file, `files` for other programs, and what is `assumed`.

    All are places in `texts`: of the parts of the entry; of the names of the files, then for each
    file of the places of its lines (`ranges`), most of which other settings' files have, too.
    `NAME` stands for the experiment's name, `name` if it is not that of its runs.
    """
    unknown = unknown_columns(run)
    if not MAY_BE_ASSUMED.issuperset(unknown):
        return {}
    experiment = experiment_of({**run, **{name: DEFAULTS[name] for name in unknown}})
    if not experiment:
        return {}
    entry: dict[str, Any] = {"model": experiment.model}
    for name in SETTINGS:
        value = getattr(experiment, name)
        if value != DEFAULTS[name]:
            entry[name] = value
    if experiment.deepspeed:
        entry["deepspeed"] = experiment.deepspeed
    parts = [plain_yaml.dump({name: value}, in_one_line=True) for name, value in entry.items()]
    written = files.files(experiment)
    sent = [texts[" ".join(written)]]
    for content in written.values():
        lines = content.replace(experiment.name, NAME).splitlines()
        sent.append(texts[ranges([texts[line] for line in lines])])
    taken: dict[str, Any] = {"entry": [texts[part.strip()[1:-1]] for part in parts], "files": sent}
    if experiment.name != run["experiment"]:
        taken["name"] = experiment.name
    if unknown:
        titles = [labels.axis(name).title for name in unknown]
        taken["assumed"] = say("take.assumed", settings=", ".join(titles))
    return taken


def _pairs(
    runs: pd.DataFrame,
    table: pd.DataFrame,
    numbers: dict[str, int],
    figures: Sequence[str],
    axes: Sequence[str],
    texts: dict[str, int],
) -> dict[str, Any]:
    ok = (runs["status"] == "ok").groupby(runs["experiment"], sort=False).sum()
    repeated = list(ok.index[ok >= MIN_RUNS])
    pairs = list(itertools.combinations(range(len(repeated)), 2))
    if len(pairs) > MAX_PAIRS:
        pairs = _most_useful(pairs, with_setting_axes(runs), table, repeated, axes)
    named = [repeated[at] for at in sorted({at for pair in pairs for at in pair})]
    places = {name: at for at, name in enumerate(named)}
    pairs = [(places[repeated[first]], places[repeated[second]]) for first, second in pairs]
    sent = figures[: MAX_INTERVALS // len(pairs)] if pairs else ()
    return {
        "settings": [numbers[name] for name in named],
        "first": [first for first, _ in pairs],
        "second": [second for _, second in pairs],
        "figures": {figure: _compared(runs, named, pairs, figure, texts) for figure in sent},
    }


def _most_useful(
    pairs: list[tuple[int, int]],
    runs: pd.DataFrame,
    table: pd.DataFrame,
    names: list[str],
    axes: Sequence[str],
) -> list[tuple[int, int]]:
    """Return the pairs that differ in one choice, then those of the best by speed and by speed per GPU."""
    rows = first_runs(runs).reindex(index=names, columns=list(axes))
    codes = np.array([pd.factorize(rows[name].map(labels.text))[0] for name in axes]).T
    first, second = np.array(pairs).T
    is_one_change = (codes[first] != codes[second]).sum(axis=1) == 1
    rates = table["tokens_per_s"].reindex(names)
    per_gpu = rates / table["gpus"].reindex(names)
    ranks = pd.DataFrame({"all": rates, "per_gpu": per_gpu}).rank(ascending=False)
    best = ranks.fillna(len(names)).min(axis=1).to_numpy()
    order = np.lexsort((np.maximum(best[first], best[second]), ~is_one_change))
    return [pairs[at] for at in sorted(order[:CHOSEN_PAIRS])]


def _compared(
    runs: pd.DataFrame,
    names: list[str],
    pairs: list[tuple[int, int]],
    figure: str,
    texts: dict[str, int],
) -> dict[str, Any]:
    """Return the values and the number of runs of each setting, and the columns of pairs."""
    rules = rules_of(runs, figure)
    is_percentage = bool(rules.percent_factor)
    by_name = intervals.settings_of(runs, "experiment", figure, is_percentage)
    settings = [by_name[name] for name in names]
    each = intervals.moments([setting.values for setting in settings])
    sides = [(settings[first], settings[second]) for first, second in pairs]
    table = compared(sides, intervals.repeated(by_name.values()), rules)
    values = each.mean
    factors = (table["high"] - table["change"]) / (rules.percent_factor or 1)
    factors = factors.where(table["high_pct"].notna())
    if not is_percentage:
        values = np.exp(values)
        factors = (100 + table["high_pct"]) / (100 + table["change_pct"])
    notes: dict[int, list[int]] = defaultdict(list)
    for at, note in enumerate(table["note"]):
        if note:
            notes[texts[note]].append(at)
    return {
        "values": json_numbers(values, VALUE_DIGITS),
        "n": [int(count) for count in each.count],
        "factor": json_numbers(factors, FACTOR_DIGITS),
        "notes": {text: ranges(places) for text, places in notes.items()},
        "hosts": _of_hosts(table),
    }


def _of_hosts(table: pd.DataFrame) -> dict[str, Any]:
    """Return the pairs whose runs on one host are counted as one, and their distinct sides, each once."""
    counted = table[table["counted"] == "host"]
    sides: dict[tuple[Any, ...], int] = defaultdict(lambda: len(sides))
    sent: dict[str, Any] = {"at": ranges([int(str(at)) for at in counted.index])}
    for name, before in {"first": "base_", "second": ""}.items():
        values = json_numbers(counted[f"{before}value"], DIGITS)
        sent[name] = [
            sides[key] for key in zip(counted[f"{before}n"].tolist(), values, strict=True)
        ]
    return sent | {"sides": list(sides)}


def ranges(places: Sequence[int]) -> str:
    """Return whole numbers as text in which those that follow each other are a range.

    >>> ranges([3, 4, 5, 9, 2, 3])
    '3-5 9 2-3'
    """
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return " ".join(ends(str(first), str(last), "-") for first, last in runs)
