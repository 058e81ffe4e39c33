"""Numbers in logs."""

import math
import re
from functools import lru_cache

# A number at the very end of the text may have lost digits, so it does not match; nor does a part of a number, or one
# whose exponent or group of thousands is incomplete.
_DIGITS = r"(?>[0-9]{1,18}(?:,[0-9]{3})*+(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?>[eE][-+]?[0-9]{1,3})?"
_END = r"(?![\d.]|[eE](?:[-+\d]|\b)|,\d{0,2}\Z|\Z)"
NUMBER = rf"([-+]?{_DIGITS}{_END}|[-+]?(?:nan|NaN|inf)\b)"
_WHOLE = re.compile(rf"[-+]?{_DIGITS}")


LONGEST = 100
"""Characters of a number, including surrounding blanks."""


def number(text: str | None) -> float | None:
    """Parse a number matched by `NUMBER`; None if it is missing or not finite."""
    return _number(text) if text and len(text) <= LONGEST else None


@lru_cache(maxsize=4096)  # most numbers of a long log occur many times
def _number(text: str) -> float | None:
    text = text.strip()
    if not _WHOLE.fullmatch(text):  # float() accepts more: `1_0`, digits of any script
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def positive(text: str | None) -> float | None:
    """Parse a number; None unless it is above 0."""
    value = number(text)
    return value if value is not None and value > 0 else None


def count(text: str | None) -> int | None:
    """Parse a whole number of at least 1; DeepSpeed prints some as `2.048000e+03`."""
    value = positive(text)
    return int(value) if value is not None and value.is_integer() and value < 2**53 else None
