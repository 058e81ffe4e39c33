"""What to train a task with: the best measured setting by time, GPU-hours, cost or memory, and what it costs.

Speed is measured over tens of steps; days, GPU-hours, energy and cost extrapolate it to a whole training without
restarts, checkpoints and evaluation. The number of GPUs is part of a setting: more of them finish sooner and cost more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from dsnb.analysis.plan import plan
from dsnb.analysis.summary import qualify_experiments, summarize
from dsnb.errors import SettingsError
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.runs.labels import MEMORY

OBJECTIVES = {"time": "days", "gpu_hours": "gpu_hours", "cost": "cost", "memory": "memory_gib"}
"""What is to be least, and the column that holds it."""
DEFAULT_TOKENS = 100e9


@dataclass(frozen=True)
class Question:
    """What a reader wants to know.

    Attributes
    ----------
    tokens
        Tokens to train on.
    objective
        `time`, `gpu_hours`, `cost` or `memory`.
    gpus
        GPUs at hand; settings that need more are left out. 0 for as many as were measured.
    prices
        Price of a GPU-hour by GPU model, in `currency`; the key `""` is for all others.
    currency
        Its sign, in front of amounts.
    """

    tokens: float = DEFAULT_TOKENS
    objective: str = "time"
    gpus: int = 0
    prices: Mapping[str, float] = field(default_factory=dict)
    currency: str = "$"

    def __post_init__(self) -> None:
        """Refuse what has no answer.

        Raises
        ------
        SettingsError
            If the objective is unknown, or a number is negative.
        """
        if self.objective not in OBJECTIVES:
            raise SettingsError(f"objective is {self.objective!r}: choose one of {', '.join(OBJECTIVES)}")
        if not self.tokens > 0:
            raise SettingsError(f"tokens is {self.tokens}: give a number above 0, such as 100e9")
        if self.gpus < 0:
            raise SettingsError(f"gpus is {self.gpus}: give the number of GPUs at hand, or 0 for any")
        if bad := {gpu: price for gpu, price in self.prices.items() if not price >= 0}:
            raise SettingsError(f"prices has {bad}: give prices of 0 or more")

    def price(self, gpu_name: object) -> float | None:
        """Return the price of an hour of a GPU; None if none is given."""
        return self.prices.get(str(gpu_name), self.prices.get(""))


def options(runs: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Return what the task takes with every measured setting that the GPUs at hand allow, the best one first.

    Parameters
    ----------
    runs
        Runs of one task (see `dsnb.analysis.tasks`).
    question
        What is to be least, for how many tokens, at which price, on how many GPUs.

    Returns
    -------
    pandas.DataFrame
        Indexed by experiment: `n`, `n_failed`, `gpu_name`, `gpus`, `tokens_per_s` (of all GPUs), `days`, `gpu_hours`,
        `energy_kwh`, `cost`, `memory_gib` (the most informative figure of memory that was measured), `gpu_memory_gib`
        (what a GPU has). Settings without the figure that is to be least come last.
    """
    runs = qualify_experiments(rename_old_columns(runs))
    table = plan(runs, question.tokens).set_index("experiment").drop(columns=["source", "cost"])
    counts = summarize(runs)[["n", "n_failed"]].reindex(table.index)
    capacity = (
        runs.groupby("experiment")["gpu_memory_gib"].min() if "gpu_memory_gib" in runs else pd.Series(dtype=float)
    )
    prices = pd.Series([question.price(name) for name in table["gpu_name"]], index=table.index, dtype=float)
    table = counts.join(table).assign(cost=table["gpu_hours"] * prices, memory_gib=_memory(runs).reindex(table.index))
    table["gpu_memory_gib"] = capacity.reindex(table.index).astype(float)
    if question.gpus:
        table = table[table["gpus"] <= question.gpus]
    return table.sort_values(OBJECTIVES[question.objective], kind="stable", na_position="last")


def _memory(runs: pd.DataFrame) -> pd.Series:
    """Return the median memory of each experiment in GiB, by the figure that is the most informative of all runs'."""
    ok = runs[runs["status"] == "ok"]
    name = next((name for name in MEMORY if name in ok and ok[name].notna().any()), None)
    return ok.groupby("experiment")[name].median() if name else pd.Series(dtype=float)
