"""The files that transformers reads of a model's or tokenizer's folder, by name, for local folders and the hub."""

import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from dsnb.errors import FetchError

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""One file, or several that `NAME.index.json` lists; safetensors are preferred, as in transformers."""
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.jinja",
)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def chosen(names: Iterable[str], parts: Collection[str], read: Callable[[str], Any]) -> list[str]:
    """Return the names of the files that a run reads.

    Parameters
    ----------
    names
        All files of the folder; those in subfolders and with unusual names are ignored.
    parts
        Of `config`, `weights` and `tokenizer`.
    read
        Function that reads one of the JSON files.

    Raises
    ------
    FetchError
        If a part is missing.
    """
    there = {name for name in names if _PLAIN.fullmatch(name)}
    found: set[str] = set()
    if {"config", "weights"} & set(parts):
        if CONFIG not in there:
            raise FetchError(f"there is no {CONFIG}")
        found.add(CONFIG)
    if "weights" in parts:
        found |= {*weights(there, read), *(there & {"generation_config.json"})}
    if "tokenizer" in parts:
        own = {name for name in there if any(fnmatchcase(name, pattern) for pattern in TOKENIZER)}
        if not own:
            raise FetchError("there is no tokenizer")
        found |= own | (there & {CONFIG})  # names the tokenizer's class if its own files do not
    return sorted(found)


def weights(there: Collection[str], read: Callable[[str], Any]) -> list[str]:
    """Return the names of the weight files: one, or an index and the files that it lists.

    Raises
    ------
    FetchError
        If there are none, or a part is missing.
    """
    for name in WEIGHTS:
        if name in there:
            return [name]
        if (index := f"{name}.index.json") in there:
            return [index, *_pieces(index, there, read)]
    raise FetchError(f"there are no weights that transformers could load ({', '.join(WEIGHTS)})")


def _pieces(index: str, there: Collection[str], read: Callable[[str], Any]) -> list[str]:
    try:
        listed = read(index)["weight_map"]
        pieces = sorted({str(piece) for piece in listed.values()})
    except (KeyError, TypeError, AttributeError, ValueError):
        pieces = []
    if not pieces:
        raise FetchError(f"{index} lists no files")
    if missing := [piece for piece in pieces if piece not in there]:
        raise FetchError(f"{index} lists {missing[0][:200]!r}, which is not there")
    return pieces
