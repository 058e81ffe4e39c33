"""Texts that a spreadsheet would evaluate, and what an exported cell holds instead."""

import csv
import io
import re

CELLS = {
    "=1+2": "'=1+2",
    " =1+2": "' =1+2",
    "\u3000@x": "'\u3000@x",  # an ideographic space
    "a;=cmd": "a;'=cmd",
    'a; "=cmd': "a;' \"=cmd",
    "a|-1": "a|'-1",
    "a,+1;@x": "a,'+1;'@x",
    "\uff1d1+2": "'\uff1d1+2",
    "\uff0b1": "'\uff0b1",
    "\uff0d1": "'\uff0d1",
    "a;\uff20x": "a;'\uff20x",
    "a=b;c-d": "a=b;c-d",
    "zs0_bf16-x": "zs0_bf16-x",
    "'=1": "'=1",
}
"""Text -> cell. Signs inside of a text stay as they are."""


def formulas(text: str) -> list[str]:
    """Return the cells that would be formulas, with whatever separates cells in the reader's locale."""
    cells = [
        cell
        for separator in ",;\t|"
        for row in csv.reader(io.StringIO(text), delimiter=separator, strict=False)
        for cell in row
    ]
    return [
        cell for cell in cells if re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20](?![\d.]+$)", cell)
    ]
