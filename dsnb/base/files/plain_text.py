"""Sanitizes text for terminals and scripts: no control characters, changed writing direction, or lone surrogates."""

import reprlib

FORMULA = r"""(^|[,;|\t\r\n])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n])"""
"""Where a spreadsheet could begin a formula, as a pattern for Python and JavaScript: at the start of a text, and behind
what separates cells in some locales. Full-width signs count as signs."""
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def line(text: object) -> str:
    """Return a text as one line for a terminal: white space is a space, what else is not printable a `?`."""
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(map(_printable, whole))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "?"


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened so that no input can flood a message."""
    return _short.repr(value)
