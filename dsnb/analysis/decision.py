"""What to train a task with: the best measured setting by time, GPU-hours, cost or memory, and what it costs.

Speed is measured over tens of steps; days, GPU-hours, energy and cost extrapolate it to a whole training without
restarts, checkpoints and evaluation. The number of GPUs is part of a setting: more of them finish sooner and cost more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from dsnb.analysis import replicates
from dsnb.analysis.choices import varying, with_choices
from dsnb.analysis.comparison_table import Rules, table_of
from dsnb.analysis.intervals import CONFIDENCE, FEWEST_RUNS, RELEVANCE
from dsnb.analysis.plan import CPU, plan, price_of
from dsnb.analysis.stability import unstable
from dsnb.errors import SettingsError
from dsnb.runs.columns import numbers
from dsnb.runs.labels import MEMORY
from dsnb.runs.table import named_runs
from dsnb.settings.planning import MOST_DAYS, is_number, is_whole

OBJECTIVES = {"time": "days", "gpu_hours": "gpu_hours", "cost": "cost", "memory": "memory_gib"}
"""What is to be least, and the column that holds it."""
DEFAULT_TOKENS = 100e9
ASSUMED_PRICE = 2.5
"""Price of a GPU-hour where none is known: a round figure, for the reader to replace."""
UNKNOWN_GPU = "GPU"
"""Kind of hardware of runs whose GPU is unknown."""


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
        Price of an hour of a GPU by its model (see `kinds`), in `currency`; the key `""` is for all others.
    assumed_price
        Price of an hour of GPUs that `prices` does not have; None leaves their costs unknown.
    currency
        Its sign, in front of amounts.
    relevance
        Smallest difference that matters: 0.02 is 2 %.
    """

    tokens: float = DEFAULT_TOKENS
    objective: str = "time"
    gpus: int = 0
    prices: Mapping[str, float] = field(default_factory=dict)
    assumed_price: float | None = None
    currency: str = "$"
    relevance: float = RELEVANCE

    def __post_init__(self) -> None:
        """Refuse what has no answer.

        Raises
        ------
        SettingsError
            If the objective is unknown, a number is negative, infinite or no number, GPUs are no whole number, or the
            relevance is 1 or more.
        """
        if self.objective not in list(OBJECTIVES):
            raise SettingsError(f"objective is {self.objective!r}: choose one of {', '.join(OBJECTIVES)}")
        if not (is_number(self.tokens) and self.tokens > 0):
            raise SettingsError(f"tokens is {self.tokens!r}: give a number above 0, such as 100e9")
        if not (is_whole(self.gpus) and self.gpus >= 0):
            raise SettingsError(f"gpus is {self.gpus!r}: give the number of GPUs at hand, or 0 for any")
        if not isinstance(self.prices, Mapping):
            raise SettingsError(
                f"prices is {self.prices!r}: give the price of a GPU-hour by GPU, as in {{'H200': 2.5}}"
            )
        if bad := {gpu: price for gpu, price in self.prices.items() if not (is_number(price) and price >= 0)}:
            raise SettingsError(f"prices has {bad}: give prices of 0 or more")
        if self.assumed_price is not None and not (is_number(self.assumed_price) and self.assumed_price >= 0):
            raise SettingsError(f"assumed_price is {self.assumed_price!r}: give a price of 0 or more, or None")
        if not (is_number(self.relevance) and 0 <= self.relevance < 1):
            raise SettingsError(
                f"relevance is {self.relevance!r}: give 0 or more and less than 1, such as 0.02 for 2 %"
            )

    def price(self, kind: object) -> float | None:
        """Return the price of an hour of a kind of hardware; None if it is unknown."""
        known = price_of(kind, self.prices)
        return known if known is not None or kind == CPU else self.assumed_price


def kinds(runs: pd.DataFrame) -> pd.Series:
    """Return the hardware of each run as prices name it: the GPU's model, `GPU` if it is unknown, or `CPU`."""
    known = runs.reindex(columns=["gpu_name", "device"]).astype(object)
    others = known["device"].map({"cpu": CPU}).fillna(UNKNOWN_GPU)
    return known["gpu_name"].where(known["gpu_name"].notna(), others).map(str)


def recorded_prices(runs: pd.DataFrame) -> dict[str, float]:
    """Return the price of an hour by kind of hardware as runs state it, by their cost and GPU-hours."""
    hours, cost = numbers(runs, "gpu_hours"), numbers(runs, "cost")
    known = (hours > 0) & (cost > 0)
    prices = (cost / hours)[known].groupby(kinds(runs)[known]).median()
    return {str(kind): float(f"{price:.6g}") for kind, price in prices.items()}


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
        Indexed by experiment: `n`, `n_failed`, `gpu_name`, `kind` (of hardware, see `kinds`), `gpus`, `tokens_per_s`
        (of all GPUs), `days`, `gpu_hours`, `energy_kwh`, `cost`, `price` (of a GPU-hour), `memory_gib` (the most
        informative figure of memory that was measured), `gpu_memory_gib` (what a GPU has). Settings without the figure
        that is to be least come last.
    """
    runs = named_runs(runs)
    table = plan(runs, question.tokens).set_index("experiment").drop(columns=["source", "cost", "is_unstable"])
    is_ok = runs["status"] == "ok"
    known = pd.DataFrame({"n": is_ok, "n_failed": ~is_ok, "kind": kinds(runs)})
    known["gpu_memory_gib"] = numbers(runs, "gpu_memory_gib")
    how = {"n": "sum", "n_failed": "sum", "kind": "first", "gpu_memory_gib": "min"}
    table = table.join(known.groupby(runs["experiment"]).agg(how)).assign(memory_gib=_memory(runs).reindex(table.index))
    table["price"] = pd.Series([question.price(kind) for kind in table["kind"]], table.index, float)
    table["cost"] = table["gpu_hours"] * table["price"]
    if question.gpus:
        table = table[table["gpus"] <= question.gpus]
    return table.sort_values(OBJECTIVES[question.objective], kind="stable", na_position="last")


def memory_figure(runs: pd.DataFrame) -> str | None:
    """Return the most informative figure of memory that any ok run measured; None if there is none."""
    ok = runs[runs["status"] == "ok"]
    return next((name for name in MEMORY if name in ok and ok[name].notna().any()), None)


def _memory(runs: pd.DataFrame) -> pd.Series:
    """Return the median memory of each experiment in GiB."""
    name = memory_figure(runs)
    return runs[runs["status"] == "ok"].groupby("experiment")[name].median() if name else pd.Series(dtype=float)


@dataclass(frozen=True)
class Decision:
    """What to train a task with, and what comes next.

    Attributes
    ----------
    question
        What was asked.
    runs
        All runs of the task; with several sweeps, experiments are named `sweep/experiment`.
    options
        As `options` returns them, those with a known value of what is to be least; the first is the answer.
        Unless the time is to be least, settings that take more than `MOST_DAYS` are left out if any takes less.
    difference
        The row of `dsnb.analysis.differences` that compares the second option with the first; None without one.
    gpus
        The numbers of GPUs that were measured and are at hand, in order.
    too_slow
        Number of settings that are left out because they take more than `MOST_DAYS`.
    unstable
        Number of settings that are left out because their repeats do not agree (`dsnb.analysis.stability`).
    """

    question: Question
    runs: pd.DataFrame
    options: pd.DataFrame
    difference: "pd.Series[Any] | None"
    gpus: tuple[int, ...] = ()
    too_slow: int = 0
    unstable: int = 0

    @property
    def is_beyond(self) -> bool:
        """Whether every measured setting takes more than `MOST_DAYS`: then there is no answer."""
        return len(self.options) > 0 and bool((self.options["days"] > MOST_DAYS).all())

    @cached_property
    def settings(self) -> pd.DataFrame:
        """The first run of each of the first two options, which has its settings."""
        first = [self.runs[self.runs["experiment"] == name].head(1) for name in self.options.index[:2]]
        return pd.concat(first).set_index("experiment")

    @cached_property
    def differing(self) -> dict[str, tuple[object, ...]]:
        """Return the choices in which the first two options differ, with the value of each; empty without two."""
        both = with_choices(self.settings)
        return {name: tuple(both[name].astype(object)) for name in varying(both)}


def decide(runs: pd.DataFrame, question: Question) -> Decision:
    """Return the best measured setting of a task, and how far the second best is from it.

    Parameters
    ----------
    runs, question
        As for `options`.
    """
    runs = named_runs(runs)
    timed = options(runs, question)
    gpus = tuple(sorted({int(number) for number in timed["gpus"][timed["days"].notna()]}))
    known = timed[timed[OBJECTIVES[question.objective]].notna()]
    found = known[~known.index.isin(unstable(runs))]
    in_time = found[found["days"] <= MOST_DAYS]
    kept = found if question.objective == "time" or in_time.empty else in_time
    too_slow, no_rank = len(found) - len(kept), len(known) - len(found)
    return Decision(question, runs, kept, _difference(runs, kept, question), gpus, too_slow, no_rank)


def _difference(runs: pd.DataFrame, found: pd.DataFrame, question: Question) -> "pd.Series[Any] | None":
    """Compare the second option with the first; the interval is that of all pairs of settings of the task."""
    if len(found) < 2 or question.objective == "memory":
        return None
    own = runs[runs["experiment"].isin(found.index)]
    rates = numbers(own, "tokens_per_s")
    per_gpu = rates / own["experiment"].map(found["gpus"])
    worth = {"time": rates, "gpu_hours": per_gpu, "cost": per_gpu / own["experiment"].map(found["price"])}
    table = own.reindex(columns=["experiment", "status", "hosts", "host"]).assign(worth=worth[question.objective])
    settings = replicates.of_runs(table, "experiment", "worth")
    pair = settings[found.index[0]], settings[found.index[1]]
    among = replicates.repeated(replicates.of_runs(runs, "experiment", "tokens_per_s").values())
    rules = Rules(question.relevance, CONFIDENCE, better="higher", hosts_alike=False, fewest_runs=FEWEST_RUNS)
    return table_of([pair], among, rules).iloc[0]
