"""The answer for one task: what to train with and why, as data that text, HTML and the page show."""

import html
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dsnb.results.answers.sentences import PHRASES, Sentence
from dsnb.settings.experiment import Experiment


@dataclass(frozen=True)
class Answer:
    """The choice among the settings of one task."""

    task: str
    """What is trained, as in "opt-1.3b, sequence 2048"."""
    table: pd.DataFrame
    """Settings with their figures."""
    sentences: tuple[Sentence, ...]
    """What to train with, why, how sure that is, and what would decide it; or why nothing fits."""
    experiments: tuple[Experiment, ...] = field(default=(), repr=False)
    """The settings of the table, then others that fit, in the order in which to try them."""
    folder: Path | None = None
    """The folder of the runs that decided, if the settings were measured."""

    def about(self, *roles: str) -> list[Sentence]:
        """Return the sentences of some roles."""
        return [sentence for sentence in self.sentences if sentence.role in roles]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        shown = f"<p>{PHRASES['no_plan']}</p>"
        items = "".join(f"<li>{sentence.html()}</li>" for sentence in self.sentences)
        if items:
            shown = f"<ul>{items}</ul>"
        if self.task:
            return f"<h3>{html.escape(self.task)}</h3>{shown}"
        return shown
