"""Which constants of dsnb a published row decided: `dsnb_fitted` of `rows.json`.

A row that a constant was fitted to is no check of dsnb. Constants that a command fits are found by
the rules of that command; those that were chosen by hand, with some rows in view, are in `CHOSEN`.
`left_out` predicts the speed of rows again without their own source, where a command can.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.outside import fitting
from benchmarks.outside.fitting import Gains, StepTimes
from benchmarks.outside.rows import Row

SPEED = "speed"
MEMORY = "memory"
GAINS = "gains of A100"
TRITON = "attention in Triton on H100"
CARD = "rates of the H100 with 96 GB"


@dataclass(frozen=True)
class Chosen:
    """A constant that was chosen by hand, with the rows of some sources in view."""

    constant: str
    figure: str  # speed or memory
    sources: Sequence[str] = ("",)
    gpus: Sequence[str] = ()
    several_nodes: bool = False

    def holds(self, row: Row) -> bool:
        """Return whether the row was one of those in view."""
        if not row.source.startswith(tuple(self.sources)):
            return False
        if self.gpus and row.gpu not in self.gpus:
            return False
        nodes = row.published.get("nodes") or 1
        return nodes > 1 or not self.several_nodes


CHOSEN = (
    Chosen("gain of RTX 3090 and RTX 4090", SPEED, gpus=("RTX 3090", "RTX 4090")),
    Chosen(
        "overlap with the network",
        SPEED,
        ("foundation-model-stack/fms-fsdp", "InternLM/InternEvo"),
        several_nodes=True,
    ),
    Chosen("delay of a node", SPEED, ("mosaicml/llm-foundry",), several_nodes=True),
    Chosen("gradients in fp32 beside pure bf16", MEMORY, ("KempnerInstitute/KempnerForge",)),
)
"""`network_overlap` and `node_delay` of tuned.toml, `gpu_gains` of two GPUs, and a setting of programs.toml."""


def marks(row: Row) -> dict[str, list[str]]:
    """Return the constants that a row decided, for its speed and its memory."""
    found: dict[str, list[str]] = {SPEED: [], MEMORY: []}
    for names in fitting.CHIPS:
        if fitting.fittable([row], names):
            found[SPEED].append(GAINS)
    if row.kernel == fitting.TRITON and fitting.fittable([row], (fitting.MEASURED,)):
        found[SPEED].append(TRITON)
    if row.program.get("rates"):
        found[SPEED].append(CARD)
    for chosen in CHOSEN:
        value = {SPEED: "tps", MEMORY: "mem"}[chosen.figure]
        if row.published.get(value) and chosen.holds(row):
            found[chosen.figure].append(chosen.constant)
    return found


def is_chosen(row: Row) -> bool:
    """Return whether a network constant was chosen by hand with the row's speed in view."""
    return any(one.several_nodes and one.holds(row) for one in CHOSEN)


def left_out(rows: Sequence[Row]) -> dict[int, float]:
    """Return tokens/s of a GPU by place, with each constant that a row decided taken without its source.

    Gains of A100 are fitted to the other sources; attention in Triton on H100, the rates of the
    H100 with 96 GB and the gains of RTX 3090 and 4090 take the values that were assumed before.
    Rows whose network constants were chosen by hand are not predicted, nor are those without a
    speed.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        is_timed = row.experiment is not None and bool(row.published.get("tps"))
        if is_timed and not is_chosen(row):
            groups.setdefault((row.source, row.gpu), []).append(place)
    found: dict[int, float] = {}
    fitted: dict[tuple[str, ...], Mapping[str, Gains]] = {}
    for chip in fitting.CHIPS:
        fitted[chip] = _gains_by_source(fitting.fittable(rows, chip))
    for (source, gpu), places in groups.items():
        own = [_without_card(rows[place]) for place in places]
        gains = _gains(own[0])
        for names, by_source in fitted.items():
            if gpu in names:
                gains = by_source.get(source, fitting.PRIOR)
        seconds = StepTimes(own)(gains)
        for place, row, step_s in zip(places, own, seconds, strict=True):
            assert row.experiment
            found[place] = row.experiment.tokens_per_step / row.experiment.gpus / float(step_s)
    return found


def _gains_by_source(rows: Sequence[Row]) -> dict[str, Gains]:
    """Return for each source the gains that the rows of all others give; those assumed before if there are none."""
    found: dict[str, Gains] = {}
    for source in dict.fromkeys(row.source for row in rows):
        others = [row for row in rows if row.source != source]
        found[source] = fitting.PRIOR
        if others:
            found[source] = fitting.fit(others)
    return found


def _gains(row: Row) -> Gains:
    """Return the gains of a GPU without fits, as they were before any row was seen."""
    products, attention, memory, _ = fitting.row_gains(row)
    if any(chosen.gpus and chosen.holds(row) for chosen in CHOSEN):
        products = 1.0
    triton = fitting.CUDNN_OVER_FLASH * float(np.exp(fitting.PRIOR[3]))
    return np.log([products, attention, memory, triton])


def _without_card(row: Row) -> Row:
    """Return a row without the rates that were fitted to its card."""
    program = {name: value for name, value in row.program.items() if name != "rates"}
    return replace(row, program=program)


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write the marks of rows into their file, one row a line."""
    lines = []
    for row in rows:
        marked = {**row.published, "dsnb_fitted": marks(row)}
        lines.append(json.dumps(marked, ensure_ascii=False))
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
