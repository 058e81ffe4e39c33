"""The text of logs: relevant lines, in constant memory."""

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from pyarrow import compute

MAX_LINE = 64 * 1024
"""Characters; the rest of a longer line is ignored (binary garbage has lines of any length)."""
BLOCK_SIZE = 4 * 2**20
# Colours, character sets, window titles, and what network file systems leave where two processes
# wrote.
_ESCAPES = re.compile(
    r"\x00|\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|\][^\x07\x1b]{0,999}(?:\x07|\x1b\\))"
)
# The prefixes of torchrun (`[default0]:`), torch (`[rank0]: `), mpirun, Ray, kubectl and docker
# compose.
_TAG = re.compile(
    r"\[[\w.,:-]{1,250}\](?:<std(?:out|err)>)?: ?|\(\w{1,99} pid=\d{1,9}[^)]{0,99}\) "
    r"|20\d\d-\d\d-\d\dT[\d:.]{8,20}Z (?:std(?:out|err) F )?|[\w.-]{1,250} +\| ",
    re.ASCII,
)
# The prefixes of pdsh and srun, `host: ` and ` 0: `, if a time stamp or Megatron's `iteration`
# follows.
_PREFIX = re.compile(
    r" {0,6}([A-Za-z0-9][\w.-]{0,250}): {0,2}(?=\[?20\d\d-\d\d-\d\d| iteration )", re.ASCII
)
_ALWAYS = (r"[\x00\x1b]", r": {0,2}(\[?20\d\d-\d\d-\d\d| iteration )")
"""Always yielded: an escape code may split a search string, and hosts are learned from their
prefixes."""


def open_text(path: Path) -> TextIO:
    """Open a file as text: UTF-8, or UTF-16 as Windows PowerShell writes it; invalid bytes become U+FFFD."""
    with open(path, "rb") as file:
        begin = file.read(2)
    encoding = "utf-8-sig"
    if begin in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        encoding = "utf-16"
    return open(path, encoding=encoding, errors="replace")


def relevant_lines(path: Path, needles: Iterable[str]) -> Iterator[str]:
    """Yield every line with a search string (plain ASCII), without colours and prefix; a few others may be included.

    A carriage return also ends a line, as in progress bars. A complete line ends with a line feed.
    """
    pattern = "|".join([*map(re.escape, needles), *_ALWAYS])
    hosts: set[str] = set()
    with open_text(path) as file:
        while block := file.readlines(BLOCK_SIZE):
            lines = pa.array([line[:MAX_LINE] for line in block])
            for line in lines.filter(compute.match_substring_regex(lines, pattern)).to_pylist():
                yield _without_prefix(_ESCAPES.sub("", line), hosts)


def _without_prefix(line: str, hosts: set[str]) -> str:
    if tag := _TAG.match(line):
        return line[tag.end() :]
    host, _, rest = line.partition(": ")
    if host.lstrip(" ") in hosts:
        return rest
    if prefix := _PREFIX.match(line):
        hosts.add(prefix[1])
        return line[prefix.end() :]
    return line
