"""The exceptions of dsnb. Every message is one sentence that a user can act on.

DsnbError
  SettingsError     unknown, invalid or contradictory settings, all of them together (also a ValueError)
  LaunchError       a run that failed; carries its log
  KernelDiedError   a notebook's kernel that could not be started, or ended before the notebook
  LogError          a log that cannot be read; names the line
  PublishedError    an unknown name of a published table (also a KeyError)
DsnbWarning         something was left out or ignored (a UserWarning)
"""

from collections.abc import Sequence
from pathlib import Path


class DsnbError(Exception):
    """Base of all exceptions of dsnb.

    Examples
    --------
    >>> try:
    ...     dsnb.predict([dsnb.Experiment()], "H21")
    ... except dsnb.DsnbError as error:
    ...     print(error)
    unknown GPU 'H21': the nearest are H20; ...
    """

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback: the message says what is wrong."""
        return [f"{type(self).__name__}: {self}"]


class SettingsError(DsnbError, ValueError):
    r"""Invalid settings; `problems` has one sentence for each.

    Examples
    --------
    >>> try:
    ...     dsnb.Experiment(zero_stage=4, steps=0)
    ... except dsnb.SettingsError as error:
    ...     print(*error.problems, sep="\n")
    zero_stage is 4: allowed are 0, 1, 2 or 3
    steps is 0: it must be at least 1
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class LaunchError(DsnbError):
    """A run that failed; `log` is its console log, if it got that far."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        self.log = log
        super().__init__(message)


class KernelDiedError(DsnbError):
    """A notebook's kernel that could not be started, or ended before the notebook."""


class LogError(DsnbError):
    """A log that cannot be read; `line` counts from 1."""

    def __init__(self, path: Path | str, message: str, line: int | None = None) -> None:
        self.path, self.line = Path(path), line
        super().__init__(f"{path}{f', line {line}' if line else ''} {message}")


class PublishedError(DsnbError, KeyError):
    """An unknown name of a published table."""

    __str__ = Exception.__str__  # KeyError's shows quotation marks around the sentence


class DsnbWarning(UserWarning):
    """Something that was left out or ignored while the work continues."""
