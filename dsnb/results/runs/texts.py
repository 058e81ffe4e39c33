"""Numbers and sentences as text: rounding, durations, and templates that Python and the page fill alike."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pandas as pd

from dsnb.base.formulas import planning
from dsnb.results.runs import labels

MINUS = "\N{MINUS SIGN}"
SIZES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1, ""))
HOURS = ((24, "day"), (1, "hour"), (1 / 60, "minute"))
_EXACT = Context(prec=700, rounding=ROUND_HALF_UP)
"""Holds every float exactly, so that a value is rounded as it is and not as it was shortened before."""
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)(?::([^|}]*)\|([^}]*))?\}")


def fill(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template; `web/` has the same function, and the templates come with the page's data.

    `{name}` is a fact, a text or a whole number. `{name:singular|plural}` is `singular` if the fact is 1, otherwise
    `plural`. `[...]` is left out if a fact in it is missing or empty; elsewhere, such a fact empties the sentence.
    """
    texts = {name: str(fact) for name, fact in facts.items() if fact is not None and str(fact)}

    def is_full(text: str) -> bool:
        return all(match[1] in texts for match in _NAME.finditer(text))

    def filled(match: re.Match[str]) -> str:
        name, singular, plural = match.groups()
        return texts[name] if singular is None else singular if texts[name] == "1" else plural

    while match := _OPTIONAL.search(template):
        template = (
            template[: match.start()]
            + (match[1] if is_full(match[1]) else "")
            + template[match.end() :]
        )
    return _NAME.sub(filled, template) if is_full(template) else ""


def significant(value: float, digits: int = 3) -> str:
    """Return a number with as many significant digits, or all before the point: 0.0457, 1.91, 26, 408,529."""
    number = Decimal(value)
    places = max(digits - 1 - number.adjusted(), 0) if number else 0
    text = fixed(value, places)
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value: float, places: int = 0) -> str:
    """Return a number with a fixed number of decimal places and thousands separators, halves away from zero."""
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-places), context=_EXACT)
    return f"{rounded:,f}"


def signed(size: float, unit: str = "%", plus: str = "+") -> str:
    """Return a change with its sign and unit, `+9.8 %`; some texts leave out the plus or the unit."""
    digits = fixed(abs(size), 1 if abs(size) < 99.95 else 0)
    text = "0" if digits == "0.0" else f"{plus if size > 0 else MINUS}{digits}"
    return f"{text} {unit}".rstrip()


def duration(low_hours: float, high_hours: float | None = None) -> str:
    """Return hours, or a range as in "3 to 6 days", in the largest unit that its end is at least one of."""
    high = low_hours if high_hours is None else high_hours
    size, noun = next(((size, noun) for size, noun in HOURS if high >= size), HOURS[-1])
    text = (
        labels.span(low_hours / size, high / size) if low_hours < high else significant(high / size)
    )
    return f"{text} {noun}{'' if text == '1' else 's'}"


def amount(tokens: float) -> str:
    """Return a number of tokens in words, as in "100 billion"."""
    size, word = next(((size, word) for size, word in SIZES if tokens >= size), SIZES[-1])
    return f"{significant(tokens / size, 6)} {word}".strip()


def usual_tokens_words(parameters: float, fine_tuning: bool) -> str:
    """Return the tokens that are assumed if none are given, and why, as in "140 billion tokens, 20 per parameter"."""
    why = (
        f"{planning.TOKENS_PER_PARAMETER} per parameter"
        if parameters > 0
        else "as the model's size is unknown"
    )
    why = "as usual with LoRA or pretrained weights" if fine_tuning else why
    return f"{amount(planning.usual_tokens(parameters, fine_tuning))} tokens, {why}"


def fit(row: Mapping[str, Any]) -> str:
    """Return whether a setting fits: `yes`, `tight`, `no`, or `unknown`; empty if its memory is not predicted."""
    if pd.isna(row["fits"]):
        return "" if pd.isna(row.get("peak_allocated_gib")) else "unknown"
    if not row["fits"]:
        return "no"
    return "tight" if is_tight(row) else "yes"


def is_tight(row: Mapping[str, Any]) -> bool:
    """Return whether a predicted setting has too little room for what torch reserves; measured ones have shown it."""
    tight = row.get("tight")
    return not pd.isna(tight) and bool(tight)


def predicted_figures(table: pd.DataFrame, currency: str = "$") -> pd.DataFrame:
    """Return figures of `dsnb.predict` as they are read, with their errors; measured ones have none."""
    has_host, has_reserved = "host_memory_gib" in table, "peak_reserved_gib" in table

    def column(form: Callable[..., str], *names: str) -> list[str]:
        rows = zip(*(table[name] for name in names), strict=True)
        return ["" if any(map(pd.isna, row)) else form(*row) for row in rows]

    tight = [is_tight(row) for row in table.to_dict("records")]

    def bounded(word: str, texts: Sequence[str]) -> list[str]:
        return [
            f"{word} {text}" if text and close else text
            for text, close in zip(texts, tight, strict=True)
        ]

    def figure(form: Callable[..., str], name: str, error: str) -> list[str]:
        errors = ["" if pd.isna(size) else f" ± {size:.1f} %" for size in table[error]]
        return [text and text + more for text, more in zip(column(form, name), errors, strict=True)]

    shown = {
        "fits": [fit(row) for row in table.to_dict("records")],
        "GiB": figure("{:,.1f}".format, "peak_allocated_gib", "peak_allocated_error_pct"),
        "reserved": figure("{:,.1f}".format, "peak_reserved_gib", "peak_reserved_error_pct")
        if has_reserved
        else "",
        "host GiB": figure(significant, "host_memory_gib", "host_memory_error_pct")
        if has_host
        else "",
        "peak in": column(str, "moment"),
        "tokens/s": bounded(
            "up to", figure("{:,.0f}".format, "tokens_per_s", "tokens_per_s_error_pct")
        ),
        "ms a step": bounded(
            "from", column(lambda seconds: f"{1e3 * seconds:,.0f}", "step_time_s")
        ),
        "MFU": column("{:.0%}".format, "mfu") if "mfu" in table else "",
        "days": _days(table, tight),
        "cost": bounded("from", column(lambda cost: currency + significant(cost), "cost")),
    }
    return pd.DataFrame(shown, table.index)


def _days(table: pd.DataFrame, tight: Sequence[bool]) -> list[str]:
    """Return ranges of days; those of tight settings have no upper end."""
    texts = []
    for low, high, is_open in zip(table["days_low"], table["days_high"], tight, strict=True):
        if pd.isna(low):
            texts.append("")
        else:
            texts.append(f"from {significant(low)}" if is_open else labels.span(low, high))
    return texts
