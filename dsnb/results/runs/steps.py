"""Steps of many run folders, parsed together: valid lines of any file count, values of other types are missing."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import json as arrow

from dsnb.base.files import json_files
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.columns import STEP_COLUMNS
from dsnb.settings.records.paths import RunPaths

RUN = "run"
"""Column with the place of a step's run."""
BATCH = 2000
"""Run folders whose steps are parsed at once."""
BLOCK_BYTES = 16 * 2**20
_TYPES = {
    **dict.fromkeys(STEP_COLUMNS, pa.float64()),
    "phase": pa.string(),
    "skipped": pa.bool_(),
}
_STEPS = RunPaths(Path()).steps.name


def read_steps(folders: Sequence[str]) -> pd.DataFrame:
    """Return the steps of all run folders in one table, with `run`, the place of the folder."""
    empty = pd.DataFrame(columns=[*STEP_COLUMNS, RUN])
    tables = [table for table in _tables(folders, STEP_COLUMNS) if len(table)]
    return pd.concat(tables or [empty], ignore_index=True)


def timed_steps(folders: Sequence[str]) -> list[TimedSteps]:
    """Return what the timed steps of each run folder say together."""
    parts = []
    figures = ["step", "step_time_s", "tokens"]
    for table in _tables(folders, ["phase", *figures]):
        timed = table[table["phase"] == "timed"]
        numbers = timed[figures].apply(pd.to_numeric, errors="coerce")
        groups = numbers.groupby(timed[RUN])
        distinct = groups["step"].nunique(dropna=False)
        parts.append(groups.mean().assign(number=groups.size(), distinct=distinct))
    if not parts:
        return []
    totals = pd.concat(parts).reindex(range(len(folders)))
    totals[["number", "distinct"]] = totals[["number", "distinct"]].fillna(0)
    return [
        TimedSteps(int(run.number), int(run.distinct), run.step_time_s, run.tokens)
        for run in totals.itertuples()
    ]


def _tables(folders: Sequence[str], names: list[str]) -> Iterator[pd.DataFrame]:
    """Yield the steps of one batch of run folders after the other."""
    for first in range(0, len(folders), BATCH):
        table, lengths = _parsed(folders[first : first + BATCH], names)
        places = np.arange(len(lengths)) + first
        yield table.assign(**{RUN: np.repeat(places, lengths)})


def _parsed(folders: Sequence[str], names: list[str]) -> tuple[pd.DataFrame, list[int]]:
    """Parse files of steps at once, or, if any is damaged, line by line: complete lines are kept."""
    paths = [f"{folder}/{_STEPS}" for folder in folders]
    raws = []
    for path in paths:
        raw = json_files.read_bytes(path) or b""
        if raw and not raw.endswith(b"\n"):
            raw += b"\n"
        raws.append(raw)
    lengths = [raw.count(b"\n") for raw in raws]
    total = sum(lengths)
    joined = b"".join(raws)
    objects = joined.count(b"\n{") + joined.startswith(b"{")
    if objects == total > 0:  # pyarrow 26 crashes at a first line `null`
        schema = pa.schema([(name, _TYPES[name]) for name in names])
        fields = arrow.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        blocks = arrow.ReadOptions(block_size=BLOCK_BYTES)
        with contextlib.suppress(pa.ArrowException, ValueError):
            table = arrow.read_json(pa.BufferReader(joined), blocks, fields)
            if len(table) == total:
                return table.to_pandas(), lengths
    lines = [json_files.read_lines(Path(path)) for path in paths]
    table = pd.DataFrame([*chain.from_iterable(lines)], columns=STEP_COLUMNS)
    return table, [*map(len, lines)]
