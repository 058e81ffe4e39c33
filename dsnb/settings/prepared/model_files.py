"""Which files of a model's or tokenizer's folder transformers reads, by their names: here or on the hub."""

import re
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from dsnb.errors import FetchError

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Whole, or in parts that `NAME.index.json` lists; safetensors are taken first, as transformers does."""
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
    """Choose the files that a run reads.

    Parameters
    ----------
    names
        All files there, of which those in subfolders and with odd names are passed over.
    parts
        Of `config`, `weights` and `tokenizer`.
    read
        Reads one of the JSON files.

    Raises
    ------
    FetchError
        If a part is not among them.
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
        found |= own | (there & {CONFIG})  # which says of what class it is, where the tokenizer's own files do not
    return sorted(found)


def weights(there: Collection[str], read: Callable[[str], Any]) -> list[str]:
    """Choose the files of the weights: one, or an index and the parts that it lists.

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
