"""Numbers as text: rounding, signs, durations and amounts."""

import math
from decimal import ROUND_HALF_UP, Context, Decimal

MINUS = "\N{MINUS SIGN}"
SIZES = (
    (1e12, "trillion"),
    (1e9, "billion"),
    (1e6, "million"),
    (1, ""),
)
HOURS = (
    (24, "day"),
    (1, "hour"),
    (1 / 60, "minute"),
    (1 / 3600, "second"),
)
MOST_DIGITS = 4
CARD_DIGITS = 3
"""Digits of a number whose error is small or unknown, in a table and in a short answer."""
_EXACT = Context(prec=700, rounding=ROUND_HALF_UP)
"""Holds every float exactly, so that a value is rounded as it is and not as it was shortened
before."""


def significant(value: float, digits: int = 3) -> str:
    """Return a number with as many significant digits, or all before the point: 0.0457, 1.91, 26, 408,529.

    Empty for NaN, as in `fixed`.
    """
    if math.isnan(value):
        return ""
    number = Decimal(value)
    places = 0
    if number:
        places = max(digits - 1 - number.adjusted(), 0)
    whole, point, decimals = fixed(value, places).partition(".")
    return (whole + point + decimals.rstrip("0")).rstrip(".")


def rounded(value: float, digits: int = 3) -> str:
    """Return a number rounded to significant digits, before the point as well: 0.0457, 26, 409,000."""
    return significant(float(f"{value:.{digits}g}"), digits)


def fixed(value: float, places: int = 0) -> str:
    """Return a number with a fixed number of decimal places and thousands separators, halves away from zero."""
    if math.isnan(value):
        return ""
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-places), context=_EXACT)
    return f"{rounded:,f}"


def signed(size: float, unit: str = "%", plus: str = "+") -> str:
    """Return a change with its sign and unit, `+9.8 %`; some texts leave out the plus or the unit."""
    digits = fixed(abs(size), 1)
    if abs(size) >= 99.95:
        digits = fixed(abs(size))
    sign = MINUS
    if size > 0:
        sign = plus
    text = "0"
    if digits != "0.0":
        text = sign + digits
    return f"{text} {unit}".rstrip()


def unit_of_time(hours: float) -> tuple[float, str]:
    """Return the largest unit of time of which there is at least one: its hours and its name."""
    return next((unit for unit in HOURS if hours >= unit[0]), HOURS[-1])


def duration(low_hours: float, high_hours: float | None = None) -> str:
    """Return hours, or a range as in "3 to 6 days", in the largest unit that its end is at least one of."""
    if high_hours is None:
        high_hours = low_hours
    size, noun = unit_of_time(high_hours)
    text = significant(high_hours / size)
    if low_hours < high_hours:
        text = span(low_hours / size, high_hours / size)
    if text == "1":
        return f"{text} {noun}"
    return f"{text} {noun}s"


def duration_within(hours: float, low_hours: float, high_hours: float) -> tuple[str, str]:
    """Return hours in their largest unit, and their range in the same unit: ("14.6 hours", "13 to 16")."""
    size, noun = unit_of_time(hours)
    text = rounded(hours / size)
    if hours > 0 and high_hours < math.inf:
        text = supported(hours / size, (high_hours - low_hours) / 2 / hours, CARD_DIGITS)
    plural = "s"
    if text == "1":
        plural = ""
    within = ""
    if low_hours < high_hours:
        within = span(low_hours / size, high_hours / size)
    return f"{text} {noun}{plural}", within


def amount(tokens: float) -> str:
    """Return a number of tokens in words, as in "100 billion"."""
    size, word = next((unit for unit in SIZES if tokens >= unit[0]), SIZES[-1])
    return f"{significant(tokens / size, 6)} {word}".strip()


def span(low: float, high: float) -> str:
    """Return a range with as many digits as it supports, as in "30 to 60" for 31.2 to 56.4.

    Its ends are rounded down and up to the first digit of half the range, or of `low` if that is
    finer.
    """
    if math.isnan(high):
        return ""
    if not 0 < low < high < math.inf:
        if high >= 100:
            return f"{high:,.0f}"
        return f"{high:.3g}"
    place = math.floor(math.log10(min((high - low) / 2, low)))
    size = 10**place
    digits = max(-place, 0)
    first = math.floor(low / size) * size
    last = math.ceil(high / size) * size
    return f"{first:,.{digits}f} to {last:,.{digits}f}"


def supported(value: float, error: float, most: int = MOST_DIGITS) -> str:
    """Return a number with the digits that its relative error supports: 55 for 55.46 with 0.29, else `most`.

    Rounding to them changes a number by at most a quarter of the error.
    """
    digits = most
    if error > 0:
        digits = max(1, math.ceil(1 - math.log10(error / 2)))
    return rounded(value, min(most, digits))
