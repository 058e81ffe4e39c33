"""How columns of tables and fields of records are declared: what they mean, may hold, and how they are displayed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dsnb.settings.experiment import DEFAULTS, Experiment

STATUSES = ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")
MAX_FIGURE = 1e18
"""Largest figure; sums and ratios of such figures stay finite."""

# Kinds of values, as pydantic validates them. None, a missing measurement, is of every kind.
NUMBER = Annotated[float, Field(strict=True, ge=-MAX_FIGURE, le=MAX_FIGURE)]
AMOUNT = Annotated[float, Field(strict=True, ge=0, le=MAX_FIGURE)]
COUNT = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
TEXT = Annotated[str, Field(strict=True, max_length=100_000)]
FLAG = Annotated[bool, Field(strict=True)]
STATUS: Any = Literal[STATUSES]  # type: ignore[valid-type]
SETTING = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
SIZE = Annotated[int, Field(strict=True, ge=1, lt=2**63)] | Literal["auto"]
KEYS_WITH_VALUES = dict[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")], Any]
NUMBERS = (NUMBER, AMOUNT, COUNT, SETTING, SIZE)
"""Kinds of columns that are numbers."""
_KIND_OF_DEFAULT = {bool: FLAG, int: COUNT, float: SETTING, str: TEXT, dict: KEYS_WITH_VALUES}

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
    kind: Any = AMOUNT
    """What it may hold: one of the kinds above, or a type made of them."""
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


def each(kind: Any, **meanings: str) -> list[Column]:
    """Return columns of one kind, each named by the argument that is its meaning."""
    return [Column(name, meaning, kind=kind) for name, meaning in meanings.items()]


def numbers(columns: Iterable[Column]) -> list[str]:
    """Return the names of the columns that hold numbers."""
    return [column.name for column in columns if column.kind in NUMBERS]


def _setting(name: str) -> Column:
    kind = SIZE if name == "micro_batch_size" else _KIND_OF_DEFAULT[type(DEFAULTS[name])]
    return Column(name, " ".join((Experiment.model_fields[name].description or "").split()), kind=kind)


SETTING_COLUMNS = {name: _setting(name) for name in DEFAULTS}
"""Every setting, as a field of `experiment.json`."""
