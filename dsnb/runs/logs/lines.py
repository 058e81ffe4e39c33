"""The text of a log: its encoding, and a stream of the lines that a reader may understand, in constant memory.

Most lines contain nothing that a reader looks for. Blocks of many lines are searched for all search strings at once by
pyarrow's regular expressions, and only matching lines are decoded. Invalid bytes become U+FFFD.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
from pyarrow import compute

LONGEST_LINE = 64 * 1024
"""Characters; the rest of a longer line is ignored (binary garbage has lines of any length)."""
BLOCK_SIZE = 4 * 2**20
_LONGEST_BYTES = 4 * LONGEST_LINE + 4
"""At least `LONGEST_LINE` characters, however many bytes each has."""
_HEAD_BYTES = 4096
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins with the UTF-16 mark, so it is tested first
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The prefixes of pdsh and srun, `host: ` and `0: `, if a time stamp or Megatron's `iteration` follows.
_PREFIX = re.compile(r"([A-Za-z0-9][\w.-]{0,250}): {0,2}(?=\[?20\d\d-\d\d-\d\d| iteration )", re.ASCII)
_ALWAYS = (r"\x1b\[[0-9;?]*[A-Za-z]", r": {0,2}(\[?20\d\d-\d\d-\d\d| iteration )")
"""Always decoded: a colour code may split a search string, and a host's prefix is learned from any line that has it."""


def encoding(head: bytes) -> str:
    """Return the Python codec of a text from its beginning: UTF-8, or UTF-16 as Windows PowerShell writes it."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    even, odd = head[:_HEAD_BYTES:2], head[1:_HEAD_BYTES:2]
    if odd.count(0) > 0.7 * len(odd) and even.count(0) < 0.1 * len(even):
        return "utf-16-le"  # without a mark: every other byte of Latin text is zero
    if even.count(0) > 0.7 * len(even) and odd.count(0) < 0.1 * len(odd):
        return "utf-16-be"
    return "utf-8"


def decode(raw: bytes) -> str:
    """Decode a text, or the beginning of one."""
    return raw.decode(encoding(raw), "replace")


def open_text(path: Path) -> TextIO:
    """Open a file for reading as text, with its line endings unchanged."""
    with open(path, "rb") as file:
        name = encoding(file.read(_HEAD_BYTES))
    return open(path, encoding=name, errors="replace", newline="")


def relevant_lines(path: Path, needles: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield every line that contains a search string, with its number; a few other lines may be included.

    A carriage return also ends a line, as in progress bars, but is not counted. A complete line ends with a line feed.
    Colour codes and the prefix that names the host of a line are removed.

    Parameters
    ----------
    path
        The log.
    needles
        Search strings, plain ASCII.

    Yields
    ------
    tuple of int and str
        The number of the line, from 1, and the line.
    """
    pattern = "|".join([*map(re.escape, needles), *_ALWAYS])
    hosts: set[str] = set()
    first = 1
    for block in _blocks(path):
        lines = block.splitlines(keepends=True)
        table = pa.array(lines, pa.binary())
        ends = np.cumsum(compute.ends_with(table, "\n").to_numpy(zero_copy_only=False))
        for place in np.flatnonzero(compute.match_substring_regex(table, pattern).to_numpy(zero_copy_only=False)):
            yield first + int(ends[place - 1] if place else 0), _bare(_text(lines[place]), hosts)
        first += int(ends[-1])


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield blocks of whole lines in UTF-8; an overlong line is cut."""
    rest = b""
    with open_text(path) as file:
        while piece := file.read(BLOCK_SIZE):
            block = rest + piece.encode("utf-8", "replace")
            end = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1  # a line feed may follow the last character
            if end:
                yield block[:end]
            rest = block[end:][:_LONGEST_BYTES]
    if rest:
        yield rest


def _text(raw: bytes) -> str:
    text = raw[:_LONGEST_BYTES].decode("utf-8", "replace")
    is_complete = text.endswith(("\r", "\n"))
    return (text.rstrip("\r\n") + "\n" * is_complete)[:LONGEST_LINE]


def _bare(line: str, hosts: set[str]) -> str:
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    if not line[:1].isalnum():
        return line
    host, colon, rest = line.partition(": ")
    if not colon:
        return line
    if host in hosts:
        return rest
    if prefix := _PREFIX.match(line):
        if len(hosts) < 100_000:
            hosts.add(prefix[1])
        return line[prefix.end() :]
    return line
