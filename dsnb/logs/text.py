"""The lines of a log as a stream, whatever its size, and the form of a number in them."""

import re
from collections.abc import Iterator
from pathlib import Path

LONGEST_LINE = 64 * 1024
"""Characters; what a longer line holds beyond them is passed over (binary garbage has lines of any length)."""

# A number that ends where the text ends may have lost digits, and one with a digit after it is only a part; so is one
# whose exponent or group of thousands has just begun.
_DIGITS = r"(?>[0-9]{1,18}(?:,[0-9]{3})*+(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?>[eE][-+]?[0-9]{1,3})?"
_END = r"(?![\d.]|[eE](?:[-+\d]|\b)|,\d{0,2}\Z|\Z)"
NUMBER = rf"([-+]?{_DIGITS}{_END}|[-+]?(?:nan|NaN|inf)\b)"
_WHOLE = re.compile(rf"[-+]?{_DIGITS}")

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# pdsh's and srun's prefix, `host: ` and `0: `, is one where a time stamp or Megatron's `iteration` follows.
_PREFIX = re.compile(r"([A-Za-z0-9][\w.-]{0,250}): {0,2}(?=\[?20\d\d-\d\d-\d\d| iteration )")


def lines(path: Path) -> Iterator[str]:
    """Give the lines of a log, without colours and without the prefix that says from which host they came.

    A carriage return ends a line as well: progress bars are written so. A line that is whole ends with a line feed.
    """
    hosts: set[str] = set()
    with open(path, encoding="utf-8", errors="replace") as file:
        inside_a_long_one = False
        while piece := file.readline(LONGEST_LINE):
            if not inside_a_long_one:
                yield _bare(piece, hosts)
            inside_a_long_one = not piece.endswith("\n")


def _bare(line: str, hosts: set[str]) -> str:
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
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


def number(text: str | None) -> float | None:
    """Read a number as `NUMBER` found it; None where there is none or it is not finite."""
    text = (text or "").strip()
    if not _WHOLE.fullmatch(text):  # Python's own float takes more: `1_0`, digits of any script
        return None
    value = float(text.replace(",", ""))
    return value if value - value == 0 else None


def positive(text: str | None) -> float | None:
    """Read a number that makes sense above 0 only."""
    value = number(text)
    return value if value is not None and value > 0 else None


def count(text: str | None) -> int | None:
    """Read a whole number of things, at least one; DeepSpeed prints some as `2.048000e+03`."""
    value = positive(text)
    return int(value) if value is not None and value.is_integer() and value < 2**53 else None
