"""Parsers of the texts of values: numbers, durations, and names such as `torch.bfloat16`.

A parser returns None for a text that it does not understand. `PARSERS` has them by the names that
`lines.toml` uses.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

DECLARED: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lines.toml").read_text("utf-8"))
"""Names and lines of programs that need no code of their own."""
# A number at the very end of the text may have lost digits, so it does not match; nor does a part
# of a number, or one whose exponent or group of thousands is incomplete.
_DIGITS = r"(?>[0-9]{1,18}(?:,[0-9]{3})*+(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?>[eE][-+]?[0-9]{1,3})?"
_END = r"(?![\d.]|[eE](?:[-+\d]|\b)|,\d{0,2}\Z|\Z)"
NUMBER = rf"([-+]?{_DIGITS}{_END}|[-+]?(?:nan|NaN|inf)\b)"
_WHOLE = re.compile(rf"[-+]?{_DIGITS}")
_TYPE = re.compile(r"'type': '(\w{1,40})'")
_SHORT = re.compile(r"([-+]?[\d.]{1,20})([KMBTPE])")
_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_CLOCK = re.compile(
    r"(?:(\d{1,4}) days?, )?(?:(\d{1,4}):)?(\d{1,2}):(\d{1,2}(?:\.\d{1,9})?)", re.ASCII
)
_UNITS = re.compile(
    r"(?:(\d{1,4})d)? ?(?:(\d{1,4})h)? ?(?:(\d{1,4})m)? ?(?:(\d{1,4}(?:\.\d{1,9})?)s)?", re.ASCII
)
Parser = Callable[[str], Any]
Names = dict[str, tuple[str, Parser]]
"""Name in a log -> what it sets, and the parser of its values."""


def number(text: str | None) -> float | None:
    """Parse a number, such as `NUMBER` matches; None if it is missing or not finite."""
    text = (text or "").strip()
    if not _WHOLE.fullmatch(text):  # float() accepts more: `1_0`, digits of any script
        return None
    value = float(text.replace(",", ""))
    if math.isfinite(value):
        return value
    return None


def number_from_0(text: str | None) -> float | None:
    """Parse a number of at least 0."""
    value = number(text)
    if value is not None and value >= 0:
        return value
    return None


def positive(text: str | None) -> float | None:
    """Parse a number above 0."""
    return number_from_0(text) or None


def amount(text: str | None) -> float | None:
    """Parse a number above 0 that may be abbreviated, such as `8.19K`."""
    match = _SHORT.fullmatch((text or "").strip())
    if not match:
        return positive(text)
    value = positive(match[1])
    return value and value * _SCALES[match[2]]


def in_units_of(parts: int) -> Callable[[str | None], float | None]:
    """Return the parser of an `amount` in a smaller unit, `parts` of which make one of ours."""

    def parse(text: str | None) -> float | None:
        value = amount(text)
        return value and value / parts

    return parse


def with_unit(unit: str) -> Parser:
    """Return the parser of a number with its unit, such as `2.00GiB`."""
    return lambda text: positive(text.removesuffix(unit))


def millions(text: str | None) -> int | None:
    """Parse a number that is given in millions."""
    value = positive(text)
    if value:
        return round(value * 1e6)
    return None


def count(text: str | None) -> int | None:
    """Parse a whole number of at least 1; DeepSpeed prints some as `2.048000e+03`."""
    value = positive(text)
    if value is not None and value.is_integer() and value < 2**53:
        return int(value)
    return None


def count_from_0(text: str) -> int | None:
    """Parse a whole number of at least 0."""
    if text.strip() == "0":
        return 0
    return count(text)


def stages(text: str) -> int | None:
    """Parse the number of pipeline stages; old versions print 0 for no pipeline."""
    if text.strip() == "0":
        return 1
    return count(text)


def model(text: str) -> str | None:
    """Parse a model name: the last part of a path or hub id; for a `config.json`, the name of its folder."""
    parts = [part for part in text.strip().removesuffix("/config.json").split("/") if part]
    name = ""
    if parts:
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", parts[-1]).strip(".-")[:80]
    if name in {"", "None", "model"}:
        return None
    return name


def first_group(pattern: re.Pattern[str], text: str, start: int = 0) -> str:
    """Return the group of the first match of a pattern; empty without a match."""
    match = pattern.search(text, start)
    if match:
        return match[1]
    return ""


def optimizer(text: str) -> str:
    """Parse an optimizer: Megatron prints its name, GPT-NeoX its type and parameters."""
    return first_group(_TYPE, text) or text


def seconds(text: str | None) -> float | None:
    """Parse a duration: `1:02:03`, `02:03`, `1 day, 0:00:30`, or `1h 2m 3s`."""
    for pattern in (_CLOCK, _UNITS):
        match = pattern.fullmatch((text or "").strip())
        if match and any(match.groups()):
            sizes = zip(match.groups("0"), (86400, 3600, 60, 1), strict=True)
            return sum(float(part) * size for part, size in sizes)
    return None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; NaN, which Python writes, is only known to the slower parser."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def one_of(words: dict[str, Any]) -> Parser:
    """Return the parser of a text that is one of these words; `else` has the value of any other but `false`."""

    def parse(text: str) -> Any:
        word = text.strip().removeprefix("torch.")
        if word.lower() == "false":
            return words.get("false")
        return words.get(word, words.get("else"))

    return parse


PARSERS: dict[str, Parser] = {
    "text": str,
    "model": model,
    "optimizer": optimizer,
    "number": number,
    "number_from_0": number_from_0,
    "positive": positive,
    "amount": amount,
    "count": count,
    "count_from_0": count_from_0,
    "stages": stages,
    "ms": in_units_of(1000),
    "mib": in_units_of(2**10),
    "gib": with_unit("GiB"),
    "tflops": with_unit("TFLOPS"),
    "bytes": in_units_of(2**30),
    **{name: one_of(words) for name, words in DECLARED["words"].items()},
}


def value_of(table: Names, name: str, text: str) -> dict[str, Any]:
    """Return what a name sets, with its parsed value."""
    setting, parse = table[name]
    return {setting: parse(text)}


def names(table: str) -> Names:
    """Return the names in a table of `lines.toml`, each with what it sets and the parser of its values."""
    return {
        name: (setting, PARSERS[parser])
        for setting, parsers in DECLARED[table].items()
        for parser, names in parsers.items()
        for name in names
    }


_FIELDS = names("fields")


def step_values(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the values in the named fields of a line about a step."""
    values: dict[str, Any] = {}
    for name, text in fields.items():
        if name in _FIELDS:
            values.update(value_of(_FIELDS, name, text))
    return values
