"""Reader of anybody's CSV file whose columns have dsnb's names: a row for each run, or for each setting.

A column that dsnb does not know is named in a warning. A value that cannot be one of its column is refused
with its row, since a wrong unit would be compared with right ones.
"""

import csv
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsnb.base.errors import DsnbWarning, LogError, SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.results.logs.reading import LOGGED, LoggedRun
from dsnb.results.logs.text import open_text
from dsnb.settings import checks, flat_keys
from dsnb.settings.experiment import DECLARED
from dsnb.settings.records import values
from dsnb.settings.records.columns import FIGURES, RUN_COLUMNS, SETTINGS

PROGRAM = "csv"
"""The program of rows that name none."""
PROGRAMS = "program"
MISSING = {"", "nan", "NaN", "NA", "<NA>"}
MAX_ROWS = 100_000
UNIT = 20
"""A figure that differs by more than this factor from what follows from others is in another unit."""
CLOSE = 0.05
"""Difference that rounding explains."""
SIMILAR = 0.75
"""Least similarity of a column's name with the one that was probably meant."""
SHARES = ("mfu", "mfu_of_matmul")
"""Figures that are shares of 1, which many print in percent."""


def is_table(header: str) -> bool:
    """Return whether a first line names a figure of dsnb and another of its columns."""
    names = {name.strip().strip('"') for name in header.split(",")}
    return bool(names & FIGURES.keys()) and len(names & {*RUN_COLUMNS}) > 1


def read(path: Path) -> list[LoggedRun]:
    """Read the rows; raise LogError that names the first row with a wrong value."""
    with open_text(path) as file:
        rows = csv.DictReader(file)
        columns = [str(name).strip() for name in rows.fieldnames or ()]
        rows.fieldnames = columns
        doubled = [name for name, times in Counter(filter(None, columns)).items() if times > 1]
        if doubled:
            raise LogError(path, f"has the column {doubled[0]} twice: remove one", 1)
        _warn_of_unknown(path, columns)
        runs = []
        try:
            for number, row in enumerate(rows, 2):
                if number > MAX_ROWS:
                    raise LogError(path, f"has more than {MAX_ROWS:,} rows: split it", number)
                runs.append(_run(path, number, row))
        except csv.Error as error:
            raise LogError(path, f"is no CSV file: {error}", rows.line_num) from error
    _name(path, runs)
    return runs


def _is_known(name: str) -> bool:
    return name in RUN_COLUMNS or name == PROGRAMS or flat_keys.is_key(name)


def _warn_of_unknown(path: Path, names: Sequence[str]) -> None:
    unknown = [name for name in names if name and not _is_known(name) and "Unnamed" not in name]
    if not unknown:
        return
    hints = []
    for name in unknown:
        match = checks.similar(name, RUN_COLUMNS, SIMILAR)
        hints.append(f"{name} (did you mean {match[0]}?)" if match else name)
    sentence = f"{path}: columns that dsnb does not know are left out: {', '.join(hints)}"
    warnings.warn(sentence, DsnbWarning, stacklevel=2)


def _run(path: Path, number: int, row: Mapping[str, Any]) -> LoggedRun:
    known = {}
    for name, text in row.items():
        is_given = isinstance(text, str) and text.strip() not in MISSING
        if name and is_given and _is_known(name):
            try:
                known[name] = values.parse(name, text.strip())
            except SettingsError as error:
                raise LogError(path, f"is refused: {error}", number) from error
    for problem in _contradictions(known):
        raise LogError(path, f"is refused: {problem}", number)
    run = LoggedRun(program=str(known.pop(PROGRAMS, PROGRAM)), configured=True, ended=True)
    for name, value in known.items():
        if name in SETTINGS or name in {"data_parallel", "global_batch_size"}:
            run.set_used(**{name: value})
        elif name in FIGURES:
            run.record(LOGGED, **{name: value})
        else:
            run.columns[name] = value
    run.columns.setdefault("source", run.program)
    return run


def _contradictions(known: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with figures that follow from each other."""
    for name in SHARES:
        if known.get(name, 0) > 1:
            yield f"{name} is {known[name]:g}: it is a share, such as 0.41 for 41 %"
    rate = known.get("tokens_per_s")
    of_one = known.get("tokens_per_s_per_gpu")
    gpus = known.get("gpus")
    if rate and of_one and gpus and abs(rate / (of_one * gpus) - 1) > CLOSE:
        yield (
            f"tokens_per_s is {rate:g}, but tokens_per_s_per_gpu is {of_one:g} on {gpus} GPUs: "
            "tokens_per_s is that of all GPUs"
        )
    time_s = known.get("step_time_mean_s")
    sizes = [known.get(name) for name in ("micro_batch_size", "seq_len", "gpus")]
    if not rate or not time_s or None in sizes:
        return
    shared = known.get("tensor_parallel", 1) * known.get("pipeline_parallel", 1)
    tokens = math.prod(sizes) * known.get("grad_accum", 1) / shared  # type: ignore[arg-type]
    if max(rate * time_s / tokens, tokens / (rate * time_s)) > UNIT:
        yield (
            f"tokens_per_s is {rate:g} and step_time_mean_s is {time_s:g}, but a step has {tokens:,.0f} tokens: "
            "give the step time in seconds, and the tokens of all GPUs"
        )


def _name(path: Path, runs: Sequence[LoggedRun]) -> None:
    """Name the experiments by the settings that differ; rows with equal ones are repeats."""
    differing = []
    for name in DECLARED:
        if len({short_repr(run.settings[name]) for run in runs}) > 1:
            differing.append(name)
    counts: dict[str, int] = {}
    for run in runs:
        parts = [path.stem]
        for name in differing:
            if name in run.settings:
                parts.append(f"{name}-{run.settings[name]}".replace("/", "-"))
        experiment = run.columns.setdefault("experiment", "_".join(parts))
        counts[experiment] = counts.get(experiment, 0) + 1
        run.columns.setdefault("repeat", counts[experiment])
