"""Sentences as data: a template, the facts that fill it, and their text; the page fills the same templates."""

import html
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.base.formulas.planning import GOAL_DAYS, MAX_DAYS
from dsnb.results.runs.templates import fill
from dsnb.results.statistics import comparisons
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.results.statistics.summary import UNSTABLE

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PHRASES: dict[str, Any] = _FILE.pop("phrases")
"""Words that facts consist of."""
_FILE["card"] |= {f"verdict.{verdict}": text for verdict, text in comparisons.WORDS.items()}
CARD: dict[str, str] = _FILE["card"]
"""Templates of a card, which the page fills as well."""
_TEMPLATES = {name: text for table in _FILE.values() for name, text in table.items()}
LIMITS = {
    "max_days": f"{MAX_DAYS:g}",
    "goal_days": f"{GOAL_DAYS:g}",
    "unstable_times": f"{UNSTABLE:g}",
    "fewest_runs": str(MIN_RUNS),
}
"""Facts of every sentence."""


def template(name: str) -> str:
    """Return a template, with the facts that every sentence has."""
    text = _TEMPLATES[name]
    for fact, value in LIMITS.items():
        text = text.replace(f"{{{fact}}}", value)
    return text


class Sentence(str):
    """A sentence of an answer: its text, and the template and the facts that it is made of.

    The text is empty if a fact that it needs is missing.
    """

    name: str
    """Its template in `sentences.toml`."""
    role: str
    """What the sentence is about, as in `runner_up`; variants of a sentence have the same role."""
    facts: Mapping[str, object]
    """Texts, numbers or sentences by their names in the template."""

    def __new__(cls, name: str, facts: Mapping[str, object]) -> "Sentence":
        """Fill the template of this name."""
        sentence = super().__new__(cls, fill(_TEMPLATES[name], LIMITS | dict(facts)))
        sentence.name = name
        sentence.role = name.partition(".")[0]
        sentence.facts = facts
        return sentence

    def html(self) -> str:
        """Return the sentence as HTML."""
        return html.escape(self)


def say(name: str, /, **facts: object) -> Sentence:
    """Return the sentence of this name with these facts."""
    return Sentence(name, facts)
