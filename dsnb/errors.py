"""What dsnb raises. Every message is one sentence a user can act on.

DsnbError
  SettingsError   unknown, invalid or contradictory settings, all of them together (also a ValueError)
  LaunchError     a run that did not end as it should; carries the run's folder and log
  KernelDiedError the kernel of a notebook that ended before the notebook did
  FetchError      a model, tokenizer or text that could not be brought into the shared folder

DsnbWarning       something was left out or ignored, and the work went on
"""

from collections.abc import Sequence
from pathlib import Path


class DsnbError(Exception):
    """Base of everything that dsnb raises on purpose."""


class SettingsError(DsnbError, ValueError):
    """Settings that cannot be run; `problems` holds one sentence for each."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class NoMatchError(SettingsError):
    """A pattern that no experiment's name matches."""


class LaunchError(DsnbError):
    """A run that failed; `log` is its console log, if it got that far."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        self.log = log
        super().__init__(message)


class KernelDiedError(DsnbError):
    """A notebook's kernel that could not be started, or ended before the notebook did."""


class FetchError(DsnbError):
    """What could not be fetched; `unreachable` where the hub itself, not this one thing, is the trouble."""

    def __init__(self, message: str, unreachable: bool = False) -> None:
        self.unreachable = unreachable
        super().__init__(message)


class LogError(DsnbError):
    """A log that cannot be read; `line` counts from 1."""

    def __init__(self, path: Path | str, message: str, line: int | None = None) -> None:
        self.path, self.line = Path(path), line
        super().__init__(f"{path}{f', line {line}' if line else ''} {message}")


class PublishedError(DsnbError, KeyError):
    """The name of no published table."""

    __str__ = Exception.__str__  # KeyError's shows quotation marks around the sentence


class DsnbWarning(UserWarning):
    """Something that the user should know, after which the work goes on."""
