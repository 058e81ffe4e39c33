"""Runs -> rows of columns that may leave the machine, as a table that Parquet keeps.

A row is made of the listed columns alone; nothing is removed from a copy of everything. Names of
hosts become hashes, variables outside the list and the time of day are dropped.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dsnb.results.contribution import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import contributed

VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC", "NCCL_IB_DISABLE", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS", "NCCL_NET_GDR_LEVEL", "NCCL_NSOCKS_PERTHREAD", "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_NTHREADS",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_SYMM_MEM_DISABLE_MULTICAST",
)  # fmt: skip
"""Environment variables that leave the machine: their values are numbers and words of NCCL, CUDA and torch."""
DAY = len("2026-11-29")
SETTING = ("program", "experiment", "gpu_name", "link")
"""Columns that tell settings apart; `experiment` is the name that follows from a row's settings."""
Row = dict[str, Any]
Hash = Callable[[str], str]
_TYPES = {
    "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string(),
}  # fmt: skip
SCHEMA = pa.schema([(name, _TYPES[contributed.json_type(name)]) for name in contributed.COLUMNS])
"""Names and types of the columns in Parquet, the same in every file."""


def of_run(run: Mapping[Any, Any], hashed: Hash) -> Row:
    """Return the row of a run in the columns of `dsnb.load_runs`; it is not yet known whether it is a single one."""
    row = {name: _plain(name, checks.known(run, name)) for name in contributed.COLUMNS}
    row["model"] = checks.preset(row["model"]) or row["model"]
    row["host"] = _each_hashed(row["host"], hashed)
    row["hosts"] = _each_hashed(row["hosts"], hashed)
    if row["hosts"]:
        row["host"] = row["hosts"].partition(",")[0]
    row["date_utc"] = str(row["date_utc"])[:DAY] if row["date_utc"] else None
    row["variables"] = " ".join(split_variables(row["variables"])[0]) or None
    return row


def _plain(name: str, value: Any) -> Any:
    """Return a value with the type of its column: integers of a column with gaps are floats."""
    kind = contributed.json_type(name)
    if value is None or kind == "string":
        return value
    if kind == "boolean":
        return bool(value)
    if float(value).is_integer() and kind == "integer":
        return int(value)
    return float(value)


def _each_hashed(names: str | None, hashed: Hash) -> str | None:
    if not names:
        return None
    return ",".join(hashed(name) for name in names.split(","))


def split_variables(text: str | None) -> tuple[list[str], list[str]]:
    """Return the assignments that leave the machine, and the names of the variables that stay."""
    leaving = []
    staying = []
    for assignment in shlex.split(text or ""):  # as `dsnb.load_runs` quoted it
        name = assignment.partition("=")[0]
        if name in VARIABLES and contributed.is_valid("variables", assignment):
            leaving.append(assignment)
        else:
            staying.append(name)
    return leaving, staying


def experiment(row: Mapping[Any, Any]) -> str:
    """Return the name of a row's setting, which follows from its settings alone."""
    return Experiment.of_row(row).name_with_model


def settings_of(rows: Sequence[Row]) -> "pd.Series[Any]":
    """Return the name of each row's setting on its GPU and link, by which rows are counted."""
    named = [{**row, "experiment": experiment(row)} for row in rows]
    names = [" ".join(str(row.get(name)) for name in SETTING) for row in named]
    return pd.Series(names, dtype=object)


def number(rows: Sequence[Row], setting: "pd.Series[Any]") -> None:
    """Give the repeats of each setting numbers from 1, since two sweeps may both have a first one."""
    numbers = setting.groupby(setting, sort=False).cumcount() + 1
    for row, repeat in zip(rows, numbers, strict=True):
        row["repeat"] = int(repeat)


def table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table with every column, empty ones included."""
    columns = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def parquet(rows: Sequence[Row]) -> bytes:
    """Return rows as a Parquet file, without metadata of the program or the machine that wrote it."""
    file = BytesIO()
    pq.write_table(table(rows), file, compression="zstd", store_schema=False)
    return file.getvalue()
