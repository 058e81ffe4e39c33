"""The lines of a log that may say something, as a stream, whatever the log's size.

Most lines say nothing that any reader knows. So blocks of many lines are searched for all needles at once, by pyarrow's
regular expressions, and only the lines with one of them become text. Without pyarrow every line does: slower, and with
the same result.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from dsnb.runs.logs.encoding import utf8_pieces

LONGEST_LINE = 64 * 1024
"""Characters; what a longer line holds beyond them is passed over (binary garbage has lines of any length)."""
BLOCK_BYTES = 4 * 2**20
WORTH_BYTES = 16 * 2**10
"""A block smaller than this is searched more quickly line by line."""
_LONGEST_BYTES = 4 * LONGEST_LINE + 4
"""At least `LONGEST_LINE` characters, however many bytes each has."""
_LINE_FEED, _CARRIAGE_RETURN = 10, 13

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# pdsh's and srun's prefix, `host: ` and `0: `, is one where a time stamp or Megatron's `iteration` follows.
_PREFIX = re.compile(r"([A-Za-z0-9][\w.-]{0,250}): {0,2}(?=\[?20\d\d-\d\d-\d\d| iteration )", re.ASCII)
_ALWAYS = (r"\x1b\[[0-9;?]*[A-Za-z]", r": {0,2}(\[?20\d\d-\d\d-\d\d| iteration )")
"""A colour may stand inside a needle; a line that shows a host's prefix teaches it, whatever else is in it."""

Mask = Callable[[bytes, "np.ndarray"], "np.ndarray"]


def telling_lines(path: Path, needles: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield every line that holds a needle, and where it begins; some other lines may be among them.

    A carriage return ends a line as well: progress bars are written so. A line that is whole ends with a line feed.
    Colours are left out, and so is the prefix that says from which host a line came.

    Parameters
    ----------
    path
        The log.
    needles
        Plain texts in ASCII.

    Yields
    ------
    tuple of int and str
        The place of the line in bytes of UTF-8, for `line_number`, and the line.
    """
    mask = _searcher([*map(re.escape, needles), *_ALWAYS])
    hosts: set[str] = set()
    for place, block in _blocks(path):
        codes = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero((codes == _LINE_FEED) | (codes == _CARRIAGE_RETURN)) + 1
        bounds = np.concatenate(([0], ends, [len(block)] if not len(ends) or ends[-1] != len(block) else []))
        bounds = bounds.astype(np.int32)
        found = np.flatnonzero(mask(block, bounds))
        for first, last in zip(bounds[found].tolist(), bounds[found + 1].tolist(), strict=True):
            yield place + first, _bare(_text(block[first:last]), hosts)


def line_number(path: Path, place: int) -> int:
    """Return the number of the line, from 1, at a place that `telling_lines` gave; as editors count, by line feeds."""
    number = 1
    for piece in utf8_pieces(path, BLOCK_BYTES):
        number += piece.count(b"\n", 0, max(0, place))
        place -= len(piece)
        if place <= 0:
            break
    return number


def _searcher(patterns: list[str]) -> Mask:
    """Return what tells which lines of a block match one of the patterns, or may do so."""
    try:
        import pyarrow as pa
        from pyarrow import compute
    except ImportError:  # a GPU host may lack it
        return _every_line
    pattern = "|".join(patterns)

    def mask(block: bytes, bounds: np.ndarray) -> np.ndarray:
        if len(block) < WORTH_BYTES:
            return _every_line(block, bounds)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(block)]
        lines = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
        return compute.match_substring_regex(lines, pattern).to_numpy(zero_copy_only=False)

    return mask


def _every_line(_block: bytes, bounds: np.ndarray) -> np.ndarray:
    return np.ones(len(bounds) - 1, dtype=bool)


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, about `BLOCK_BYTES` at a time, and where they begin; of a line too long its beginning only."""
    rest, place, skips = b"", 0, False
    for piece in utf8_pieces(path, BLOCK_BYTES):
        block = rest + piece
        if skips:  # the rest of a line too long
            ends = [end for end in (block.find(b"\n"), block.find(b"\r")) if end >= 0]
            skipped = min(ends) if ends else len(block)
            place, block, skips = place + skipped, block[skipped:], not ends
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if end:
            yield place, block[:end]
        rest, place = block[end:], place + end
        if len(rest) > _LONGEST_BYTES:
            yield place, rest
            rest, place, skips = b"", place + len(rest), True
    if rest:
        yield place, rest


def _text(raw: bytes) -> str:
    if len(raw) <= _LONGEST_BYTES:
        text = raw.decode("utf-8", "replace")
        return f"{text[:-1]}\n"[:LONGEST_LINE] if text.endswith("\r") else text[:LONGEST_LINE]
    return raw[:_LONGEST_BYTES].decode("utf-8", "replace")[:LONGEST_LINE]


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
