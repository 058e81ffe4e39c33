"""All planners, and the tables of their predictions in `predictions/`.

A planner is added here; `python -m benchmarks.planners predict NAME` then writes its table, and no
score needs what was installed for that.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.planners.accelerate_memory import AccelerateMemory
from benchmarks.planners.deepspeed_states import DeepSpeedStates
from benchmarks.planners.dsnb_itself import Dsnb, DsnbLeftOut
from benchmarks.planners.llama_factory import LlamaFactory
from benchmarks.planners.llm_analysis import LlmAnalysis
from benchmarks.planners.question import Answer, Planner, Question
from benchmarks.planners.simumax import SimuMax
from benchmarks.planners.six_nd import SixND

PREDICTIONS = Path(__file__).with_name("predictions")
PLANNERS: dict[str, Planner] = {
    planner.name: planner
    for planner in (
        DsnbLeftOut(),
        Dsnb(),
        LlmAnalysis(),
        SimuMax(),
        SixND(),
        DeepSpeedStates(),
        AccelerateMemory(),
        LlamaFactory(),
    )
}
COLUMNS = ("row", "tokens_per_s", "low", "high", "memory_gib", "fits", "why_not")
VERDICTS = {"yes": True, "no": False}


def find(name: str) -> Planner:
    """Return a planner by its name; raise ValueError for an unknown one."""
    if name not in PLANNERS:
        raise ValueError(f"planner {name!r} is unknown: known are {', '.join(PLANNERS)}")
    return PLANNERS[name]


def write(questions: Sequence[Question], answers: Iterable[Answer], file: Path) -> None:
    """Write the answers to questions, with six digits; what is not answered stays empty."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        for question, answer in zip(questions, answers, strict=True):
            numbers = (answer.tokens_per_s, answer.low, answer.high, answer.memory_gib)
            cells = ["" if number is None else f"{number:.6g}" for number in numbers]
            writer.writerow([question.row, *cells, _verdict(answer.fits), answer.why_not])


def _verdict(fits: bool | None) -> str:
    if fits is None:
        return ""
    return "yes" if fits else "no"


def read(file: Path) -> pd.DataFrame:
    """Return a table of answers."""
    table = pd.read_csv(file, dtype={"row": str, "fits": str, "why_not": str})
    table["fits"] = table["fits"].map(VERDICTS).astype(object)
    return table


def predictions(name: str, folder: Path = PREDICTIONS) -> pd.DataFrame:
    """Return the predictions of a planner.

    Raises
    ------
    ValueError
        If they were not made.
    """
    file = folder / f"{name}.csv"
    if not file.exists():
        raise ValueError(f"{file} does not exist: {find(name).command}")
    return read(file)
