"""Numbers as text, each rounded once, halves away from zero; `web/rounding.js` does the same."""

from decimal import ROUND_HALF_UP, Context, Decimal

_EXACT = Context(prec=700, rounding=ROUND_HALF_UP)
"""Holds every float exactly, so that a value is rounded as it is and not as it was shortened before."""


def significant(value: float, digits: int = 3) -> str:
    """Return a number with as many significant digits, or all before the point: 0.0457, 1.91, 26, 408,529."""
    number = Decimal(value)
    places = max(digits - 1 - number.adjusted(), 0) if number else 0
    text = fixed(value, places)
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value: float, places: int) -> str:
    """Return a number with a fixed number of decimal places and thousands separators."""
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-places), context=_EXACT)
    return f"{rounded:,f}"
