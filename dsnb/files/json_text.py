"""Parses JSON from untrusted sources: a single record, or many lines as a table.

The depth of the result is limited, so that code that works on it cannot fail because of it.
"""

import json
from collections.abc import Iterable
from typing import Any

import orjson

MAX_DEPTH = 64
"""Nesting levels of a record; deeper ones could raise RecursionError in code that walks through them."""


def parse(raw: bytes) -> Any:
    """Parse one record.

    Raises
    ------
    ValueError
        If it is no JSON, or nested too deeply.
    """
    try:
        record = orjson.loads(raw)  # stricter than the standard library, and four times as fast
    except ValueError:
        record = _with_numbers_that_are_none(raw)
    level = [record] if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH else []
    for _ in range(MAX_DEPTH if level else 0):
        level = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
    if level:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return record


def _with_numbers_that_are_none(raw: bytes) -> Any:
    """Parse JSON with NaN and infinities, which become None as when records are written."""
    try:
        return orjson.loads(json.dumps(json.loads(raw, parse_constant=lambda _: None)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def table(raw: bytes, kinds: dict[str, type]) -> Any:
    """Parse many lines of JSON at once.

    Parameters
    ----------
    raw
        Lines of JSON objects, each with its line feed.
    kinds
        Field -> `float`, `str` or `bool`; other fields are ignored.

    Returns
    -------
    pandas.DataFrame or None
        None if any line is damaged or any field has another type.
    """
    try:
        import pyarrow as pa
        from pyarrow import json as arrow
    except ImportError:  # a GPU host may lack it; the caller then reads line by line
        return None

    of_arrow = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    schema = pa.schema([(name, of_arrow[kind]) for name, kind in kinds.items()])
    if raw.count(b"\n{") + raw.startswith(b"{") != raw.count(b"\n"):
        return None  # some line is no object; if the first is `null`, pyarrow 26 crashes
    if not raw.strip():
        return pa.Table.from_pylist([], schema=schema).to_pandas()
    how = arrow.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        read = arrow.read_json(pa.BufferReader(raw), arrow.ReadOptions(block_size=16 * 2**20), how)
    except (pa.ArrowException, ValueError):
        return None
    return read.to_pandas()
