"""The form of a number in a log."""

import re
from functools import lru_cache

# A number that ends where the text ends may have lost digits, and one with a digit after it is only a part; so is one
# whose exponent or group of thousands has just begun.
_DIGITS = r"(?>[0-9]{1,18}(?:,[0-9]{3})*+(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?>[eE][-+]?[0-9]{1,3})?"
_END = r"(?![\d.]|[eE](?:[-+\d]|\b)|,\d{0,2}\Z|\Z)"
NUMBER = rf"([-+]?{_DIGITS}{_END}|[-+]?(?:nan|NaN|inf)\b)"
_WHOLE = re.compile(rf"[-+]?{_DIGITS}")


LONGEST = 100
"""Characters of a number, blanks around it included."""


def number(text: str | None) -> float | None:
    """Read a number as `NUMBER` found it; None where there is none or it is not finite."""
    return _number(text) if text and len(text) <= LONGEST else None


@lru_cache(maxsize=4096)  # most numbers of a long log stand in it many times
def _number(text: str) -> float | None:
    text = text.strip()
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
