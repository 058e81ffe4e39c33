"""Stream of the lines of a log that a reader may understand, in constant memory.

Most lines contain nothing that a reader looks for. Blocks of many lines are searched for all search strings at once by
pyarrow's regular expressions, and only matching lines are decoded. Without pyarrow every line is decoded: the result is
the same, only slower.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from dsnb.runs.logs.encoding import utf8_pieces

LONGEST_LINE = 64 * 1024
"""Characters; the rest of a longer line is ignored (binary garbage has lines of any length)."""
BLOCK_BYTES = 4 * 2**20
WORTH_BYTES = 16 * 2**10
"""Below this size, searching line by line is faster."""
_LONGEST_BYTES = 4 * LONGEST_LINE + 4
"""At least `LONGEST_LINE` characters, however many bytes each has."""
_LINE_FEED, _CARRIAGE_RETURN = 10, 13

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# The prefixes of pdsh and srun, `host: ` and `0: `, if a time stamp or Megatron's `iteration` follows.
_PREFIX = re.compile(r"([A-Za-z0-9][\w.-]{0,250}): {0,2}(?=\[?20\d\d-\d\d-\d\d| iteration )", re.ASCII)
_ALWAYS = (r"\x1b\[[0-9;?]*[A-Za-z]", r": {0,2}(\[?20\d\d-\d\d-\d\d| iteration )")
"""Always decoded: a colour code may split a search string, and a host's prefix is learned from any line that has it."""

Mask = Callable[[bytes, "np.ndarray"], "np.ndarray"]


def relevant_lines(path: Path, needles: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield every line that contains a search string, with its position; a few other lines may be included.

    A carriage return also ends a line, as in progress bars. A complete line ends with a line feed. Colour codes and
    the prefix that names the host of a line are removed.

    Parameters
    ----------
    path
        The log.
    needles
        Search strings, plain ASCII.

    Yields
    ------
    tuple of int and str
        Position of the line in bytes of UTF-8, for `line_number`, and the line.
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
    """Return the line number, from 1, at a position from `relevant_lines`; counted by line feeds, as editors do."""
    number = 1
    for piece in utf8_pieces(path, BLOCK_BYTES):
        number += piece.count(b"\n", 0, max(0, place))
        place -= len(piece)
        if place <= 0:
            break
    return number


def _searcher(patterns: list[str]) -> Mask:
    """Return a function that marks the lines of a block that match, or may match, one of the patterns."""
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
    """Yield blocks of whole lines, about `BLOCK_BYTES` each, with their positions; an overlong line is cut."""
    rest, place, skips = b"", 0, False
    for piece in utf8_pieces(path, BLOCK_BYTES):
        block = rest + piece
        if skips:  # the rest of an overlong line
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
