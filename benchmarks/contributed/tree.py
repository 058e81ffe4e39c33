"""The tree of contributed rows: reads it, and says what is wrong with each folder.

A folder holds `rows.parquet` and `manifest.json`, and nothing else. They come from strangers, so sizes
are checked before anything is unpacked, and every value is checked against the schema.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dsnb.base.files import json_files
from dsnb.base.files.plain_text import short_repr
from dsnb.results.contribution import checks, package
from dsnb.results.contribution import rows as contributed_rows
from dsnb.results.runs.table import as_runs
from dsnb.settings.records import contributed

HERE = Path(__file__).parent
CHANGES = "CHANGELOG.md"
CARD = "README.md"
SCHEMA = "schema.json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
FILES = {package.ROWS, package.MANIFEST}
MAX_BYTES = 2**24
MAX_UNPACKED = 2**28
MAX_ROWS = 100_000
SOURCE = "contributed: "
"""Begins the `source` of a contributed row, before the name of its folder."""
EXACT = ["tokens_per_s", "step_time_mean_s", "wall_s"]
"""Figures that two different runs do not share to the last digit."""
NAMES = ["sweep", "experiment", "source"]


def folders(root: Path = HERE) -> list[Path]:
    """Return the folders of contributions, sorted."""
    return sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    )


def read(folder: Path) -> list[contributed_rows.Row]:
    """Return the rows of a folder; raise ValueError if the file is too large or has other columns."""
    raw = json_files.read_file(folder / package.ROWS, MAX_BYTES)
    try:
        file = pq.ParquetFile(BytesIO(raw))
        about = file.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
        if about.num_rows > MAX_ROWS or unpacked > MAX_UNPACKED:
            raise ValueError(
                f"{package.ROWS} has {about.num_rows:,} rows of {unpacked:,} bytes: at most "
                f"{MAX_ROWS:,} rows of {MAX_UNPACKED:,} bytes are read; split it"
            )
        if not file.schema_arrow.equals(contributed_rows.SCHEMA):
            raise ValueError(_other_columns(file.schema_arrow))
        return list(file.read().to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{package.ROWS} is no Parquet file that can be read ({error})") from error


def _other_columns(schema: pa.Schema) -> str:
    expected = {(field.name, field.type) for field in contributed_rows.SCHEMA}
    found = {(field.name, field.type) for field in schema}
    differing = sorted({name for name, _ in expected ^ found})
    return (
        f"{package.ROWS} differs from {SCHEMA} in {', '.join(differing) or 'the order of columns'}: "
        "pack it again with this version of dsnb"
    )


def problems(folder: Path) -> list[str]:
    """Return what is wrong with a folder, one sentence each; each begins with its name."""
    return [f"{folder.name}: {sentence}" for sentence in _problems(folder)]


def _problems(folder: Path) -> Iterator[str]:
    if not NAME.fullmatch(folder.name):
        yield "the folder's name has other characters than a to z, digits and hyphens: rename it"
    entries = [folder, *folder.iterdir()]
    found = {path.name for path in folder.iterdir()}
    if found != FILES or any(path.is_symlink() for path in entries):
        yield f"it holds {', '.join(sorted(found)) or 'nothing'}: keep {' and '.join(sorted(FILES))} only"
        return
    try:
        made = read(folder)
        manifest = json_files.parse_json(json_files.read_file(folder / package.MANIFEST, 2**16))
    except (ValueError, OSError) as error:
        yield str(error)
        return
    values = list(dict.fromkeys(_wrong_values(made)))
    yield from values
    if values:
        return
    yield from _wrong_manifest(manifest, made, (folder / package.ROWS).read_bytes())
    yield from _failed_checks(made)


def _wrong_values(made: list[contributed_rows.Row]) -> Iterator[str]:
    if not made:
        yield "it has no rows: remove it"
    for row in made:
        yield from contributed.problems(row)


def _wrong_manifest(manifest: Any, made: list[contributed_rows.Row], raw: bytes) -> Iterator[str]:
    if not isinstance(manifest, Mapping):
        yield f"{package.MANIFEST} holds no object: pack the rows again"
        return
    contributor = str(manifest.get("contributor"))
    if not package.CONTRIBUTOR.fullmatch(contributor):
        yield f"contributor is {short_repr(contributor)}: give the name of an account"
    version = manifest.get("dsnb")
    if not isinstance(version, str) or not contributed.is_valid("dsnb", version):
        yield f"dsnb is {short_repr(version)}: give the version that packed the rows"
    expected = package.manifest(made, raw, contributor) | {"dsnb": version}
    for name in dict.fromkeys([*expected, *manifest]):
        if manifest.get(name) != expected.get(name):
            given = short_repr(manifest.get(name))
            yield f"{package.MANIFEST}: {name} is {given}: it should be {expected.get(name)!r}"


def _failed_checks(made: list[contributed_rows.Row]) -> Iterator[str]:
    runs = as_table(made, "")
    disturbed = checks.disturbances(runs)
    for row, name, disturbance in zip(made, runs["experiment"], disturbed, strict=True):
        for sentence in filter(None, [*checks.of_run(row), disturbance]):
            yield f"{name}, run {row['repeat']}: {sentence}"
    setting = contributed_rows.settings_of(made)
    short = checks.too_few(runs, setting)
    for row, name in zip(made, setting, strict=True):
        if row["single"] != (name in short):
            yield f"{name}: single is {row['single']}: it follows from the runs; pack them again"


def as_table(made: list[contributed_rows.Row], name: str) -> pd.DataFrame:
    """Return rows in the columns of `dsnb.load_runs`, as those of a sweep with the name of their folder."""
    table = contributed_rows.table(made).to_pandas()
    named = [contributed_rows.experiment(row) for row in made]
    table.insert(0, "sweep", name)
    table.insert(1, "experiment", pd.Series(named, dtype=object))
    table["source"] = SOURCE + name
    return as_runs(table)


def load(root: Path = HERE) -> pd.DataFrame:
    """Return all contributed rows; a table of the same columns without rows if there are none."""
    tables = [as_table(read(folder), folder.name) for folder in folders(root)]
    if not tables:
        return as_table([], "")
    return pd.concat(tables, ignore_index=True)


def tree_problems(root: Path = HERE) -> list[str]:
    """Return what is wrong with the tree: its folders, rows that are there twice, schema, card and changes."""
    found = [sentence for folder in folders(root) for sentence in problems(folder)]
    if not found:
        found += _repeated(load(root))
    changes = (root / CHANGES).read_text(encoding="utf-8")
    for folder in folders(root):
        if f"`{folder.name}`" not in changes:
            found.append(f"{CHANGES} does not name `{folder.name}`: add a line about it")
    if (root / SCHEMA).read_bytes() != schema_bytes():
        found.append(f"{SCHEMA} is not that of the columns: {WRITE}")
    if schema_digest() not in changes:
        found.append(f"{CHANGES} does not name the schema {schema_digest()}: {WRITE}")
    return found


WRITE = "run `python -m benchmarks.contributed --write`"


def _repeated(table: pd.DataFrame) -> Iterator[str]:
    measured = table[table["status"] == "ok"]
    again = measured[measured.duplicated(EXACT)]
    for row in again.to_dict("records"):
        yield (
            f"{row['sweep']}: {row['experiment']}, run {row['repeat']} has the figures of another row: "
            "contribute each run once"
        )


def schema_bytes() -> bytes:
    """Return the content of `schema.json`."""
    return orjson.dumps(
        contributed.schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


def schema_digest() -> str:
    """Return the beginning of the schema's digest, by which the changelog names it."""
    return hashlib.sha256(schema_bytes()).hexdigest()[:12]
