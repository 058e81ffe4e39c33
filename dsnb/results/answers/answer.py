"""The answer for one task: what to train with and why, as data that text, HTML and the page show."""

import html
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from dsnb.results.answers.lines import WIDTH, Line, as_html, note, text
from dsnb.results.answers.sentences import PHRASES, Sentence
from dsnb.results.runs import labels
from dsnb.settings.experiment import Experiment

MARK = "* "
"""In front of what was assumed, as behind the title."""


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
    lines: tuple[Line, ...] = field(default=(), repr=False)
    """The answer in short: a title, the figures in columns, and how sure they are."""
    assumed: tuple[str, ...] = ()
    """Arguments that were not given, so that usual values are assumed."""

    def about(self, *roles: str) -> list[Sentence]:
        """Return the sentences of some roles."""
        return [sentence for sentence in self.sentences if sentence.role in roles]

    def text(self, width: int = WIDTH) -> str:
        """Return the lines as text of at most `width` columns; the sentences if there are no lines."""
        if self.lines:
            return text(self.lines, width)
        return "\n".join(self.sentences)

    @property
    def settings(self) -> list[str]:
        """The settings of a recommendation's table in words, the recommended one first."""
        return [labels.setting(vars(one)) for one in self.experiments[: len(self.table)]]

    @property
    def _whole(self) -> list[Line]:
        """The lines, and below them what was assumed, with the mark of the title."""
        mark = ""
        if self.assumed:
            mark = MARK
        return [*self.lines, *(note(f"{mark}{one}") for one in self.about("assumed"))]

    def __str__(self) -> str:
        if self.lines:
            return text(self._whole)
        return self.text()

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{sentence.html()}</li>" for sentence in self.sentences)
        reasons = f"<p>{PHRASES['no_plan']}</p>"
        if items:
            reasons = f"<ul>{items}</ul>"
        if self.lines:
            why = f"<details><summary>{PHRASES['reasons']}</summary>{reasons}</details>"
            return f'<section class="dsnb-answer">{as_html(self._whole)}{why}</section>'
        if self.task:
            return f"<h3>{html.escape(self.task)}</h3>{reasons}"
        return reasons
