"""Calls that may fail without ending the run: a rank that raised would leave the others waiting in a collective."""

from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


class BestEffort:
    """Calls functions until the first one fails; later calls do nothing.

    Attributes
    ----------
    why
        The failure in one line; None if nothing has failed.
    """

    def __init__(self) -> None:
        self.why: str | None = None

    def __call__(self, action: Callable[..., Found], *arguments: Any) -> Found | None:
        """Call `action` and return its result; None if it or an earlier call failed."""
        if self.why is not None:
            return None
        try:
            return action(*arguments)
        except Exception as error:
            self.why = one_line(error)
            return None


def one_line(error: Exception) -> str:
    """Return an error as one line of text."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else 'no message'}"
