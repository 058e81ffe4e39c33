"""The card of the data set: the front matter that the Hugging Face Hub reads, and its counts."""

import re
from typing import Any

import pandas as pd
import yaml

from dsnb.results.runs.labels import count

SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
)
"""Numbers of rows below which a data set has a size, as the hub names it."""
COUNTS = re.compile(r"(?<=<!-- counts -->\n).*?(?=\n<!-- /counts -->)", re.DOTALL)
SIZE = re.compile(r"(?<=^size_categories:\n- ).*$", re.MULTILINE)


def front_matter(text: str) -> dict[str, Any]:
    """Return the fields at the top of a card."""
    _, fields, _ = text.split("---\n", 2)
    return dict(yaml.safe_load(fields))


def size(rows: int) -> str:
    """Return the hub's name for the size of a data set."""
    return next(name for most, name in SIZES if rows < most)


def counts(rows: pd.DataFrame) -> str:
    """Return how much there is, in a sentence."""
    if rows.empty:
        return "No rows yet."
    rows_text = count(len(rows), "row")
    folders = count(rows["sweep"].nunique(), "contribution")
    hosts = count(rows["host"].nunique(), "host")
    gpus = ", ".join(sorted(rows["gpu_name"].unique()))
    return f"{rows_text} of {folders}, measured on {hosts} with {gpus}."


def updated(text: str, rows: pd.DataFrame) -> str:
    """Return a card with the size and the counts of these rows."""
    with_size = SIZE.sub(size(len(rows)), text)
    return COUNTS.sub(lambda _: counts(rows), with_size)
