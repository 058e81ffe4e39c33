"""What a profiler may fail at without ending the run, or leaving its rank's collectives without their partners."""

from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


class BestEffort:
    """Does one thing after another until one fails, and then nothing any more.

    Attributes
    ----------
    why
        What failed, in one line; None as long as nothing did.
    """

    def __init__(self) -> None:
        self.why: str | None = None

    def __call__(self, action: Callable[..., Found], *arguments: Any) -> Found | None:
        """Do it, if nothing has failed yet; give what it gives, None where it was not done."""
        if self.why is not None:
            return None
        try:
            return action(*arguments)
        except Exception as error:
            self.why = one_line(error)
            return None


def one_line(error: Exception) -> str:
    """Return an error in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else 'no message'}"
