"""The answers of the calculator, `answers.json.gz`, which `python -m docs.make_calculator` computes.

A cell is a model, a GPU, a number of GPUs, a sequence length, and whether LoRA trains it. Its record
has the texts of a recommendation's lines that do not depend on the tokens to train on, and the
speeds that the others follow from. The file has a column for each field: its distinct values, and
the place of each cell's among them.
"""

import gzip
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsnb.base.formulas import model_shapes, planning
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus, nearest, shapes, speed_range
from dsnb.prediction.accuracy import peak_error
from dsnb.prediction.candidates import usual_batch, usual_length
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.prediction.memory import need_gib
from dsnb.prediction.reserved import rule as reserved_rule
from dsnb.prediction.step_time import count_step, step_times
from dsnb.prediction.target import USUAL_NETWORK
from dsnb.results.answers.lines import Line, line, note
from dsnb.results.answers.sentences import PHRASES, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import CARD_DIGITS, amount, duration_within, fixed, supported
from dsnb.settings.experiment import Experiment
from dsnb.version import __version__

FILE = Path(__file__).with_name("answers.json.gz")
WHOLE, ADAPTED = "full", "lora"
SETTINGS: Mapping[str, Mapping[str, Any]] = {WHOLE: {}, ADAPTED: {"lora_rank": 16}}
"""Fixed settings of each way to train."""
TITLES = {WHOLE: "", ADAPTED: "with LoRA"}
"""Words of a title for them."""
ALTERNATIVES = 3
CELLS = {"train": 1, "speed": 3, "memory": 3}
CELLS |= {f"alternative{place}": 4 for place in range(1, ALTERNATIVES + 1)}
"""Kept lines, and their cells beside the label."""
TEXTS = ["no", "warnings", "nearest"]
TEXTS += [f"{role}.{place}" for role, number in CELLS.items() for place in range(number)]
SHARES = ("low", "high", "least")
"""The range of the speed, and the GPU-seconds of a token with the setting that needs fewest, in
times of the rate in tokens/s, and of what the setting needs: few distinct numbers."""
DIGITS = {"rate": 9}
"""Significant digits, so that texts are rounded as in a recommendation."""
USUAL_DIGITS = 7
MISSING = -1
"""Place of a cell without an answer."""


class Cell(NamedTuple):
    """What is asked."""

    model: str
    gpu: str
    gpus: int
    seq_len: int
    trained: str


@dataclass(frozen=True)
class Grid:
    """What the calculator may be asked."""

    models: Sequence[str]
    gpus: Sequence[str]
    counts: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    seq_lens: Sequence[int] = (8192,)

    def lengths(self, model: str) -> list[int]:
        """Return the sequence lengths of a model, the usual one first."""
        most = model_shapes.facts(model).get("positions") or math.inf
        usual = usual_length(model)
        return [usual, *(one for one in self.seq_lens if one != usual and one <= most)]

    def cells(self) -> Iterator[Cell]:
        """Yield all cells in the order of the file."""
        for model in self.models:
            for trained in SETTINGS:
                for length in self.lengths(model):
                    for gpu in self.gpus:
                        for number in self.counts:
                            yield Cell(model, gpu, number, length, trained)


GRID = Grid(
    models=[name for name in PRESETS if not name.endswith("-tiny")],
    gpus=(
        "B200", "H200", "GH200", "H100", "H20", "A100", "A100-40GB", "MI300X", "L40S", "A10G", "L4",
        "RTX PRO 6000", "RTX A6000", "RTX 5090", "RTX 4090", "RTX 3090", "V100",
    ),
)  # fmt: skip


def settings(cell: Cell) -> dict[str, Any]:
    """Return the fixed settings of a cell."""
    return dict(SETTINGS[cell.trained])


def link(cell: Cell) -> str:
    """Return the link of a cell's GPUs."""
    if cell.gpus > NODE_GPUS:
        return USUAL_NETWORK
    return "nvlink"


def batch(cell: Cell) -> int:
    """Return the sequences of an optimizer step."""
    parameters = shapes.shape(cell.model).parameters
    return usual_batch(parameters, cell.seq_len, cell.gpus, cell.trained == ADAPTED)


def usual_tokens(cell: Cell) -> float:
    """Return the tokens that a model is trained on if none are given."""
    return planning.usual_tokens(shapes.shape(cell.model).parameters, cell.trained == ADAPTED)


SAMPLED: list[dict[str, Any]] = [
    {"gpus": 8, "zero_stage": 1, "mixed_precision": "native"},
    {"gpus": 16, "strategy": "fsdp", "compile": "default", "loss": "chunked", "lora_rank": 16},
]
"""Settings of each model that the fingerprint has predictions of, on each GPU."""


@cache
def fingerprint() -> str:
    """Return a hash of predictions of the grid's models on its GPUs, and so of the constants that they rest on."""
    link = gpus.link(USUAL_NETWORK)
    specs = [gpus.find(name) for name in GRID.gpus]
    common = {"device": "cuda", "precision": "bf16", "seq_len": 1024, "micro_batch_size": 1}
    parts = []
    for model in GRID.models:
        for sampled in SAMPLED:
            one = Experiment(model=model, **common, **sampled)
            needs = [need_gib(one, likely) for likely in (False, True)]
            reserved = reserved_rule(one).reserved_gib(one, needs[1])
            error_pct = peak_error(one).error.mean_pct
            parts.append([*needs, reserved, error_pct, usual_length(model)])
            counts = [count_step(one, spec, link) for spec in specs]
            parts.append(np.asarray(step_times(counts).step_time_s).tolist())
            for spec in specs:
                found = speed_range.of_setting(one, spec.name, False, link.nodes(one)).printed
                limit = speed_range.best_mfu(spec.name, one)
                parts.append([found.low, found.high, limit, spec.memory_gib])
    rounded_ = [[f"{value:.6g}" for value in part] for part in parts]
    text = json.dumps([rounded_, [run._asdict() for run in nearest.runs()]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def wording() -> str:
    """Return a hash of the templates of the lines, whose texts records have."""
    parts = [PHRASES["lines"], PHRASES["of_lines"], PHRASES["limits"]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def packed(records: Mapping[Cell, Mapping[str, Any]], date: str, code: str = "") -> bytes:
    """Return the file of records; cells without one are missing. `code` names what found them."""
    rows = [records.get(cell) for cell in GRID.cells()]
    columns = {name: _column([_text(row, name) for row in rows]) for name in TEXTS}
    for name in ("rate", "error"):
        columns[name] = _column([_rounded(row, 1, name) for row in rows])
    for name in SHARES:
        columns[name] = _column([_rounded(row, _unit(row, name), name) for row in rows])
    columns["tight"] = _column([(row or {}).get("tight", 0) for row in rows])
    columns["batch"] = _column([batch(cell) for cell in GRID.cells()])
    content = {
        "version": __version__,
        "date": date,
        "fingerprint": fingerprint(),
        "wording": wording(),
        "code": code,
        "columns": columns,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return gzip.compress(text.encode(), mtime=0)


def _text(row: Mapping[str, Any] | None, name: str) -> str | None:
    if row is None:
        return None
    return str(row.get(name, ""))


def _unit(row: Mapping[str, Any] | None, name: str) -> float:
    """Return what a share is a share of."""
    if not row or not row.get("rate"):
        return 1.0
    if name == "least":
        return float(row["gpus"] / row["rate"])
    return float(row["rate"])


def _rounded(row: Mapping[str, Any] | None, unit: float, name: str) -> float:
    value = (row or {}).get(name)
    if value is None or math.isnan(value):
        return 0
    return float(f"{value / unit:.{DIGITS.get(name, USUAL_DIGITS)}g}")


def _column(values: Sequence[Any]) -> dict[str, Any]:
    """Return the distinct values, and the place of each."""
    places: dict[Any, int] = {}
    found = []
    for value in values:
        if value is None:
            found.append(MISSING)
            continue
        found.append(places.setdefault(value, len(places)))
    return {"values": list(places), "places": found}


class Table:
    """The answers of a file."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.version: str = content["version"]
        self.date: str = content["date"]
        self.fingerprint: str = content["fingerprint"]
        self.wording: str = content["wording"]
        self.code: str = content.get("code", "")
        self._columns = content["columns"]

    @cached_property
    def _places(self) -> dict[Cell, int]:
        return {cell: place for place, cell in enumerate(GRID.cells())}

    @cached_property
    def asked(self) -> set[tuple[str, int]]:
        """The models and sequence lengths with answers."""
        places = self._columns["no"]["places"]
        pairs = zip(self._places, places, strict=True)
        return {(cell.model, cell.seq_len) for cell, place in pairs if place != MISSING}

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """Return the record of a cell; None if it was not computed."""
        place = self._places[cell]
        found = {}
        for name, column in self._columns.items():
            if column["places"][place] == MISSING:
                return None
            found[name] = column["values"][column["places"][place]]
        found["gpus"] = cell.gpus
        for name in SHARES:
            found[name] *= _unit(found, name)
        return found


def read(content: bytes) -> Table:
    """Return the answers of a file."""
    return Table(json.loads(gzip.decompress(content)))


@cache
def load() -> Table:
    """Return the answers of the package."""
    return read(FILE.read_bytes())


def lines(
    cell: Cell, record: Mapping[str, Any], tokens: float | None = None, price: float = 0.0
) -> list[Line]:
    """Return the lines of a recommendation; the page makes the same ones."""
    tokens = tokens or usual_tokens(cell)
    shown = [_title(cell, record, tokens)]
    if record["no"]:
        return [*shown, *(note(text) for text in record["no"].split("\n"))]
    warnings = _warnings(record, tokens)
    if warnings:
        shown.append(line("warned", warnings=warnings[0].upper() + warnings[1:]))
    shown.append(line("train", setting=record["train.0"]))
    shown.append(line("time", **time_facts(cell, record, tokens, price)))
    labels_ = {role: line(role).cells[0] for role in ("speed", "memory")}
    labels_ |= {f"alternative{place}": " " for place in range(1, ALTERNATIVES + 1)}
    labels_["alternative1"] = "Or"
    for role, label in labels_.items():
        texts = [record[f"{role}.{place}"] for place in range(CELLS[role])]
        if texts[0]:
            shown.append(Line(role.rstrip("123"), (label, *texts)))
    ranges = PHRASES["of_lines"]["ranges"]
    if record["tight"]:
        ranges = ""
    return [*shown, line("predicted", nearest=record["nearest"], ranges=ranges)]


def _title(cell: Cell, record: Mapping[str, Any], tokens: float) -> Line:
    return line(
        "title",
        model=cell.model,
        trained=TITLES[cell.trained],
        place=labels.place({"gpus": cell.gpus, "gpu_name": cell.gpu}),
        tokens=amount(tokens),
        batch=fixed(record["batch"]),
        length=fixed(cell.seq_len),
    )


def time_facts(
    cell: Cell, record: Mapping[str, Any], tokens: float, price: float = 0.0
) -> dict[str, str]:
    """Return the facts of the line on time; `price` is that of a GPU-hour, 0 if it is unknown."""
    hours = tokens / record["rate"] / 3600
    low, high = (tokens / (record[end] or math.nan) / 3600 for end in ("high", "low"))
    time, times = duration_within(hours, low, high)
    least = ""
    if record["tight"]:
        least = PHRASES["of_lines"]["bounds"]["least"]
        times = ""
    facts = {"least": least, "time": time, "times": times, "unit": "GPU"}
    error = record["error"] / 100
    facts["hours"] = supported(cell.gpus * hours, error, CARD_DIGITS)
    if price:
        paid = supported(price * cell.gpus * hours, error, CARD_DIGITS)
        facts["cost"] = say("cost", currency="$", amount=paid, price=fixed(price, 2), unit="GPU")
    return facts


def _warnings(record: Mapping[str, Any], tokens: float) -> str:
    warnings = []
    if tokens / record["rate"] / 86400 > planning.MAX_DAYS:
        needed = planning.gpus_needed(record["least"] * tokens / 3600)
        warnings.append(say("warning.too_slow", needed=fixed(needed), unit="GPU"))
    if record["tight"]:
        warnings.append(say("warning.tight"))
    if record["warnings"]:
        warnings.append(record["warnings"])
    return "; ".join(warnings)
