"""Data for the page's decisions: the candidates of each task, and the intervals of pairs of settings.

The page does the arithmetic of tokens, prices and GPUs at hand, and sorts; all statistics are computed here.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.files import plain_yaml
from dsnb.prediction.predicted import experiment_of
from dsnb.results.answers import words
from dsnb.results.answers.decide import candidates, may_be_best, memory_figure
from dsnb.results.answers.evidence import evidence
from dsnb.results.runs import labels
from dsnb.results.runs.table import json_numbers
from dsnb.results.statistics import intervals
from dsnb.results.statistics.comparisons import compared, rules_of
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.results.statistics.setting_axes import with_setting_axes
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import SETTINGS
from dsnb.settings.records.paths import RunPaths

MAX_PAIRS, CHOSEN_PAIRS = 2000, 1000
"""A task with more than `MAX_PAIRS` pairs of settings sends the intervals of `CHOSEN_PAIRS`."""
MAX_INTERVALS = 12_000
"""Intervals of a task; with many pairs, only those of the first figures, speed and memory, are sent."""
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
EVIDENCE = ("rests", "short", "gain", "edge", "batch")


def tasks_payload(
    runs: pd.DataFrame,
    task_codes: Sequence[int],
    names: Sequence[str],
    figures: Sequence[str],
    axes: Sequence[str],
) -> dict[str, Any]:
    """Return the candidates and the pairs of settings of each task, ready for JSON.

    The index of `runs` is a place in `task_codes`; `names` are the experiments, `figures` the columns to compare, and
    `axes` the settings that distinguish experiments. Texts are sent once, as places in `texts`.

    `candidates` of a task: `experiment` (its number), counts of runs, medians in the units of their columns, texts
    about the setting (`dsnb.results.answers.words`), and, for candidates that may be the best, texts of
    `dsnb.results.answers.evidence` and, by place, `take` (see `_take`).

    `pairs`: `settings` (numbers of experiments with `MIN_RUNS` ok runs), `first` and `second` (places in `settings`),
    and by figure the compared `values` of settings, their runs `n`, and for each pair a `factor`: the interval of the
    ratio second / first is ratio / factor to ratio * factor; of percentages, the difference less and plus the factor.
    By the place of a pair, if any: `note`, and `other`, `[n, n, value, value]` with runs on one host counted as one.
    """
    texts: dict[str, int] = defaultdict(lambda: len(texts))  # each once, and its place
    numbers = {name: code for code, name in enumerate(names)}
    groups = pd.Series(list(task_codes), dtype=int).reindex(runs.index)
    parts = [runs[groups == code] for code in range(max(task_codes, default=-1) + 1)]
    sent = []
    for part in parts:
        table, figure = candidates(part), memory_figure(part)
        task = {
            "case": words.case(part) if table.empty else "",
            "runs": len(part),
            "few": words.few_settings(part, table),
            "memory": words.memory_name(part) if figure else "",
            "memoryFigure": figure,
            "candidates": _candidates(table, part, numbers, texts),
            "pairs": _pairs(part, table, numbers, figures, axes, texts),
        }
        sent.append(task)
    return {"texts": list(texts), "tasks": sent}


def _candidates(
    table: pd.DataFrame, runs: pd.DataFrame, numbers: dict[str, int], texts: dict[str, int]
) -> dict[str, Any]:
    first = runs.drop_duplicates("experiment").set_index("experiment", drop=False)
    rows = first.loc[table.index].to_dict("records")
    described = [words.setting_texts(run) for run in rows]
    best = may_be_best(table)
    remarks = evidence(runs, table, best)
    places = {name: place for place, name in enumerate(table.index)}
    kept = [places[name] for name in may_be_best(table, ["gpus", "kind"])]
    columns: dict[str, Any] = {
        "n": table["n"].tolist(),
        "failed": table["n_failed"].tolist(),
        "gpus": json_numbers(table["gpus"], DIGITS),
        "unstable": table["is_unstable"].tolist(),
        "spread": json_numbers(table["spread_pct"].where(table["n"] > 1), SPREAD_DIGITS),
        **{name: json_numbers(table[column], DIGITS) for name, column in NUMBERS.items()},
        **{
            name: [texts[row[name]] for row in described]
            for name in (described[0] if described else ())
        },
        "kind": [texts[kind] for kind in table["kind"]],
        "basis": [texts[basis] for basis in table["basis"]],
        **{
            name: [texts[remarks.get(label, {}).get(name, "")] for label in table.index]
            for name in EVIDENCE
        },
        "take": {place: taken for place in kept if (taken := _take(rows[place]))},
    }
    return {"experiment": [numbers[name] for name in table.index], **columns}


def _take(run: Mapping[str, Any]) -> dict[str, str]:
    """Return `entry`, a params file's line that repeats a setting, and `config`, its `deepspeed.json`, where known."""
    experiment, folder = experiment_of(run), run.get("run_dir")
    if not experiment:
        return {}
    entry: dict[str, Any] = {"model": experiment.model}
    entry |= {
        name: getattr(experiment, name)
        for name in SETTINGS
        if getattr(experiment, name) != DEFAULTS[name]
    }
    entry |= {"deepspeed": experiment.deepspeed} if experiment.deepspeed else {}
    config = RunPaths(Path(folder)).deepspeed if isinstance(folder, str) else None
    text = config.read_text(encoding="utf-8") if config and config.is_file() else ""
    return {
        "entry": plain_yaml.dump(entry, in_one_line=True).strip(),
        **({"config": text} if text else {}),
    }


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
    pairs = [(places[repeated[a]], places[repeated[b]]) for a, b in pairs]
    sent = figures[: MAX_INTERVALS // len(pairs)] if pairs else ()
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return {
        "settings": [numbers[name] for name in named],
        "first": first,
        "second": second,
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
    rows = (
        runs.drop_duplicates("experiment")
        .set_index("experiment")
        .reindex(index=names, columns=list(axes))
    )
    codes = np.array([pd.factorize(rows[name].map(labels.text))[0] for name in axes]).T
    first, second = np.array(pairs).T
    changes = (codes[first] != codes[second]).sum(axis=1)
    rates = table["tokens_per_s"].reindex(names)
    ranks = [
        rate.rank(ascending=False).fillna(len(names))
        for rate in (rates, rates / table["gpus"].reindex(names))
    ]
    best = np.minimum(*(rank.to_numpy() for rank in ranks))
    order = np.lexsort((np.maximum(best[first], best[second]), changes != 1))
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
    by_name = intervals.settings_of(runs, "experiment", figure, bool(rules.percent_factor))
    settings = [by_name[name] for name in names]
    each = intervals.moments([setting.values for setting in settings])
    values = each.mean if rules.percent_factor else np.exp(each.mean)
    table = compared(
        [(settings[a], settings[b]) for a, b in pairs], intervals.repeated(by_name.values()), rules
    )
    if rules.percent_factor:
        factors = ((table["high"] - table["change"]) / rules.percent_factor).where(
            table["high_pct"].notna()
        )
    else:
        factors = (100 + table["high_pct"]) / (100 + table["change_pct"])
    by_host = table[table["counted"] == "host"]
    other = {
        at: [row["base_n"], row["n"], *json_numbers([row["base_value"], row["value"]], DIGITS)]
        for at, row in zip(by_host.index.tolist(), by_host.to_dict("records"), strict=True)
    }
    return {
        "values": json_numbers(values, VALUE_DIGITS),
        "n": [int(count) for count in each.count],
        "factor": json_numbers(factors, FACTOR_DIGITS),
        "note": {at: texts[note] for at, note in enumerate(table["note"]) if note},
        "other": other,
    }
