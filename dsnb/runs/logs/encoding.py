"""Detection of a log's encoding: UTF-8, or UTF-16 as written by a redirection in Windows PowerShell.

Invalid bytes become U+FFFD; a byte order mark is not part of the text.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins with the UTF-16 mark, so it is tested first
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_HEAD_BYTES = 4096


def encoding(head: bytes) -> str:
    """Return the Python codec name for a text, detected from its beginning."""
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


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a file for reading as text; `newline` as for `open`."""
    with open(path, "rb") as file:
        name = encoding(file.read(_HEAD_BYTES))
    return open(path, encoding=name, errors="replace", newline=newline)


def utf8_pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yield a file in pieces, converted to UTF-8, with line endings unchanged.

    A piece has about `size` bytes and may end inside a character.
    """
    with open(path, "rb") as file:
        name = encoding(file.read(_HEAD_BYTES))
        if name in {"utf-8", "utf-8-sig"}:
            file.seek(len(codecs.BOM_UTF8) if name == "utf-8-sig" else 0)
            while piece := file.read(size):
                yield piece
            return
    with open(path, encoding=name, errors="replace", newline="") as text:
        while characters := text.read(size):
            yield characters.encode("utf-8", "replace")
