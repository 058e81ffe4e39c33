"""How columns of tables and fields of records are declared: what they mean, may hold, and how they are displayed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dsnb.settings.experiment import DEFAULTS, Experiment

STATUSES = ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")
MAX_FIGURE = 1e18
"""Largest figure; sums and ratios of such figures stay finite."""
MAX_TEXT = 100_000
NUMBERS = frozenset({int, float})


@dataclass(frozen=True)
class Kind:
    """One kind of value; None, a missing measurement, is of every kind."""

    name: str
    """Allowed values, for messages."""
    types: frozenset[type]
    least: float = -MAX_FIGURE
    most: float = MAX_FIGURE
    allowed: frozenset[str] = frozenset()
    """For a text: its allowed values; empty for any."""
    fields: Mapping[str, "Kind"] = field(default_factory=dict)
    """For an object: the fields that are read."""
    each: "Kind | None" = None
    """For a list its items, for an object all fields that are not in `fields`."""
    keys: str = ""
    """For an object: the pattern of its keys; empty for any."""

    def holds(self, value: Any) -> bool:
        """Return whether a value is of this kind, nested values aside."""
        if value is None:
            return True
        if type(value) not in self.types:
            return False
        if type(value) in NUMBERS:
            return bool(self.least <= value <= self.most)
        if type(value) is str:
            return len(value) <= MAX_TEXT and (not self.allowed or value in self.allowed)
        return not self.keys or all(re.fullmatch(self.keys, key) for key in value)

    def holds_all(self, values: list[Any]) -> bool:
        """Return whether all values of a column and their nested values are of this kind; fast for long columns."""
        types = set(map(type, values))
        if type(None) in types:
            types.remove(type(None))
            values = [value for value in values if value is not None] if types else []
        if not types <= self.types:
            return False
        if not types or types == {bool}:
            return True
        if types <= NUMBERS:
            return self.least <= min(values) and max(values) <= self.most
        return self._holds_inside(values) if types <= {dict, list} else all(map(self.holds, set(values)))

    def _holds_inside(self, values: list[Any]) -> bool:
        names = set[Any]().union(*values) if self.keys or self.fields else set[Any]()
        if self.keys and not self.holds(dict.fromkeys(names)):
            return False
        inside = [item for value in values for item in _items(value)] if self.each else []
        return (self.each is None or self.each.holds_all(inside)) and all(
            kind.holds_all([value.get(name) for value in values]) for name, kind in self.fields.items() if name in names
        )


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def whole(least: int = 0) -> Kind:
    """Return the kind of whole numbers from a least one."""
    return Kind(f"a whole number of at least {least}", frozenset({int}), least, 2**63)


NUMBER = Kind("a finite number of ordinary size", NUMBERS)
AMOUNT = Kind("a finite number of ordinary size, 0 or more", NUMBERS, 0)
COUNT = whole()
TEXT = Kind("a text", frozenset({str}))
FLAG = Kind("true or false", frozenset({bool}))
STATUS = Kind(f"one of {', '.join(STATUSES)}", frozenset({str}), allowed=frozenset(STATUSES))


def object_of(name: str = "an object", **more: Any) -> Kind:
    """Return the kind of objects with certain fields, or fields of one kind."""
    return Kind(name, frozenset({dict}), **more)


def list_of(each: Kind) -> Kind:
    """Return the kind of lists of one kind of items."""
    return Kind("a list", frozenset({list}), each=each)


UNITS = {
    "tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
    "steps_per_s": "steps/s",
    "_gb_per_s": "GB/s",
    "_s": "s",
    "_us": "µs",
    "_gib": "GiB",
    "_w": "W",
    "_j": "J",
    "_kwh": "kWh",
    "_pct": "%",
    "_mhz": "MHz",
    "_bytes": "bytes",
    "_per_gpu_hour": "currency per hour",
}
"""Unit of a column or setting by the end of its name."""


@dataclass(frozen=True)
class Metric:
    """How a figure of a run is displayed: the column's value times `factor` is in `unit`."""

    title: str
    unit: str = ""
    factor: float = 1
    digits: int = 0
    better: Literal["higher", "lower", ""] = ""
    """Which direction is better; empty if neither is."""
    about: str = ""
    """What the figure means."""

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a record."""

    name: str
    meaning: str
    label: Metric | None = None
    """How it is displayed, if it is a figure that tables and pages compare."""
    kind: Kind = AMOUNT
    """What it may hold."""
    formula: str = ""
    """How it is derived from other columns; the functions and their sources are in `dsnb.formulas.metrics`."""
    unit: str = ""
    """Unit in which it is stored, where neither its name nor its label shows it."""

    def stored_unit(self) -> str:
        """Return the unit in which it is stored; empty for texts and counts."""
        if unit := self.unit or unit_of(self.name):
            return unit
        if self.label and self.label.unit == "%":
            return "fraction"
        return self.label.unit if self.label else ""


def unit_of(name: str) -> str:
    """Return the unit that the name of a column or setting ends with; empty for none."""
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def each(kind: Kind, **meanings: str) -> list[Column]:
    """Return columns of one kind, each named by the argument that is its meaning."""
    return [Column(name, meaning, kind=kind) for name, meaning in meanings.items()]


def _setting(name: str) -> Column:
    about, default = Experiment.model_fields[name], DEFAULTS[name]
    kind = TEXT
    if isinstance(default, dict):
        kind = object_of("keys with values", keys=r"[^\x00-\x1f\x7f]{1,200}")
    elif name == "micro_batch_size":
        kind = Kind("a whole number or 'auto'", frozenset({int, str}), 1, 2**63, frozenset({"auto"}))
    elif isinstance(default, bool):
        kind = FLAG
    elif isinstance(default, int):
        kind = whole(max((getattr(bound, "ge", 0) for bound in about.metadata), default=0))
    elif isinstance(default, float):
        kind = Kind("a number, 0 or more", NUMBERS, 0, 1e308)
    return Column(name, " ".join((about.description or "").split()), kind=kind)


SETTING_COLUMNS = {name: _setting(name) for name in DEFAULTS}
"""Every setting, as a field of `experiment.json`."""
