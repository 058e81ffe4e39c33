"""The columns of the tables and the fields of records: meaning, kind of value and display.

A column is declared once, in `columns.toml`; a setting, which is a column too, in
`dsnb.settings.training`. Tables, records, labels, the explorer and the reference read them from
here.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from dsnb.settings import flat_keys
from dsnb.settings.experiment import DECLARED, DEFAULTS, SUPERVISION, Experiment

STATUSES = ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")
ENDED = tuple(status for status in STATUSES if status != "interrupted")
"""Statuses of runs that do not have to be executed again."""
MAX_FIGURE = 1e18
"""Largest figure; sums and ratios of such figures stay finite."""
MASKED = ", masked"
"""Ends the name of an attention kernel that was always given a mask."""
PARTLY_MASKED = ", partly masked"
"""Ends the name of an attention kernel that some layers gave a mask."""

# Kinds of values, as pydantic validates them. None, a missing measurement, is of every kind.
NUMBER = Annotated[float, Field(strict=True, ge=-MAX_FIGURE, le=MAX_FIGURE)]
AMOUNT = Annotated[float, Field(strict=True, ge=0, le=MAX_FIGURE)]
COUNT = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
TEXT = Annotated[str, Field(strict=True, max_length=100_000)]
FLAG = Annotated[bool, Field(strict=True)]
STATUS: Any = Literal[STATUSES]  # type: ignore[valid-type]
SETTING = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
SIZE = Annotated[int, Field(strict=True, ge=1, lt=2**63)] | Literal["auto"]
"""A micro-batch size, which earlier versions could leave to DeepSpeed."""
KEYS_WITH_VALUES = dict[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")], Any]
NUMBERS = (NUMBER, AMOUNT, COUNT, SETTING, SIZE)
"""Kinds of columns that are numbers."""
KINDS: dict[str, Any] = {
    "number": NUMBER,
    "amount": AMOUNT,
    "count": COUNT,
    "text": TEXT,
    "flag": FLAG,
    "status": STATUS,
    "texts": list[TEXT | None],
    "text by name": dict[str, TEXT | None],
    "amount by name": dict[str, AMOUNT | None],
    "code by rank": dict[int, Annotated[int, Field(strict=True)]],
}
"""Kinds of values by their names in `columns.toml`."""
_KIND_OF_DEFAULT = {bool: FLAG, int: COUNT, float: SETTING, str: TEXT, dict: KEYS_WITH_VALUES}


@dataclass(frozen=True)
class Metric:
    """How a figure of a run is displayed: the column's value times `factor` is in `unit`."""

    title: str
    unit: str = ""
    factor: float = 1
    digits: int = 0
    better: Literal["higher", "lower", ""] = ""
    """The better direction; empty if there is none."""
    about: str = ""
    """What the figure means."""

    @property
    def heading(self) -> str:
        """The title with its unit."""
        if self.unit:
            return f"{self.title} ({self.unit})"
        return self.title


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a record."""

    name: str
    meaning: str
    label: Metric | None = None
    """Display of a figure that tables and pages compare."""
    kind: Any = AMOUNT
    """Type of its values: one of the kinds above, or a type made of them."""
    contributed: str | bool = True
    """The pattern of a text that may leave the machine in `dsnb contribute`; of others, whether they may."""


_DECLARED: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("columns.toml").read_text("utf-8")
)
_NO_DISPLAY = {"meaning", "kind", "contributed"}


def declared(group: str) -> dict[str, Column]:
    """Return the columns of a group of `columns.toml`, by name; one without a meaning is that of a run."""
    columns = {}
    for name, fields in _DECLARED[group].items():
        display = {key: value for key, value in fields.items() if key not in _NO_DISPLAY}
        if "meaning" in fields:
            meaning = " ".join(fields["meaning"].split())
            label = Metric(**display) if display else None
            column = Column(name, meaning, label)
        else:
            column = RUNS[name]
        if "kind" in fields:
            column = replace(column, kind=KINDS[fields["kind"]])
        if "contributed" in fields:
            column = replace(column, contributed=fields["contributed"])
        columns[name] = column
    return columns


def record_of(fields: Mapping[str, Column]) -> Any:
    """Return the type of objects with these fields, all of them optional."""
    types: Any = {name: (column.kind | None, None) for name, column in fields.items()}
    return create_model("Record", __config__={"protected_namespaces": ()}, **types)


SETTING_COLUMNS = {
    name: Column(
        name,
        " ".join((Experiment.model_fields[name].description or "").split()),
        kind=SIZE if name == "micro_batch_size" else _KIND_OF_DEFAULT[type(default)],
    )
    for name, default in DEFAULTS.items()
}
"""Every setting, as a field of `experiment.json`."""
NO_COLUMNS = {"device", "command", *flat_keys.NAMES, *SUPERVISION}
SETTINGS = [name for name in DECLARED if name not in NO_COLUMNS]
"""Settings that are columns; those of `deepspeed` and `script` are added if any run sets them."""
FIGURES = declared("figures")
TEXTS = declared("texts")
MACHINE = declared("machine")
STEPS = declared("steps")
SAMPLES = declared("samples")
RUNS = {
    **declared("names"),
    **{name: SETTING_COLUMNS[name] for name in SETTINGS},
    **declared("sharing"),
    **FIGURES,
    **TEXTS,
    **declared("phases"),
    **declared("notebook"),
    **declared("places"),
    **MACHINE,
    **declared("notes"),
}
"""The columns of a table of runs."""
METRIC_LABELS = {
    name: replace(column.label, about=column.meaning)
    for name, column in FIGURES.items()
    if column.label
}
"""Measured figures that tables and pages compare, one value per run."""
OVER_TIME = {name: column.label for name, column in (STEPS | SAMPLES).items() if column.label}
"""Figures of steps and samples that charts of one run show."""
MEMORY = ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib")
"""Memory figures, the most informative first: views that need one use the first that was measured."""
FORMER_FIGURES = {"step_time_s": "step_time_mean_s"}
"""Former name of a figure of a run -> current name. In steps and predictions `step_time_s` is no mean and stays."""


KEYS = ["sweep", "experiment", "repeat"]
METRIC_COLUMNS = list(FIGURES)
ENVIRONMENT = list(MACHINE)
ORDER = list(declared("places"))
"""Where a run is in the planned order of its sweep."""
PLANNED = [*ORDER, "model_name"]
"""Fields that a sweep adds to the settings of a run."""
SUMMARY_TEXTS = [*TEXTS, "note"]
"""Texts in the summary of `result.json`."""
PHASES = [name.removesuffix("_s") for name in declared("phases")]
RUN_COLUMNS = list(RUNS)
RUN_NUMBERS = [name for name, column in RUNS.items() if column.kind in NUMBERS]
STEP_COLUMNS = list(STEPS)
STEP_NUMBERS = [name for name, column in STEPS.items() if column.kind in NUMBERS]
GPU_COLUMNS = list(SAMPLES)


def key_columns(names: Iterable[str]) -> list[str]:
    """Return the columns among `names` that are keys of `deepspeed` or `script`, in order."""
    return sorted(filter(flat_keys.is_key, names))
