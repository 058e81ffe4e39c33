"""Choose the setting to train a task with, from one table of measured, predicted or published candidates.

Days, GPU-hours, energy and cost extrapolate the speed of tens of steps to a whole training, without
restarts, checkpoints and evaluation. The number of GPUs is part of a setting: more GPUs finish
sooner and cost more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics, planning
from dsnb.base.formulas.planning import MAX_DAYS, is_number, is_whole
from dsnb.results.literature.tables import SOURCE, is_own
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY
from dsnb.results.runs.table import factor, named_runs, numbers, timed_seconds, timed_steps
from dsnb.results.statistics import intervals
from dsnb.results.statistics.comparisons import rules_of, table_of
from dsnb.results.statistics.intervals import MIN_RUNS, RELEVANCE
from dsnb.results.statistics.summary import unstable
from dsnb.results.statistics.tasks import FEWEST_SETTINGS, is_fine_tuning, parameters
from dsnb.settings.records.paths import PROBE

OBJECTIVES = {"time": "days", "gpu_hours": "gpu_hours", "cost": "cost", "memory": "memory_gib"}
"""Objectives, and the columns that hold them; the smallest value is the best."""
ASSUMED_PRICE = 2.5
"""Placeholder price of a GPU-hour, for the reader to replace."""
CPU, UNKNOWN_GPU = "CPU", "GPU"
"""Names in `prices` of runs without a GPU, whose "GPUs" are ranks, and of an unknown GPU."""
WORTH_ROOM = 0.05
"""How much worse than a setting whose memory is tight another one with room may be, and is still
recommended."""
BASES = MEASURED, PUBLISHED, PREDICTED = "measured", "published", "predicted"
"""The basis of a candidate's figures."""


@dataclass(frozen=True)
class Question:
    """The reader's question. Raises SettingsError for numbers that are negative or not finite."""

    tokens: float = 0
    """Tokens to train on. 0 for what is usual: `dsnb.base.formulas.planning.usual_tokens`."""
    objective: str = "time"
    """`time`, `gpu_hours`, `cost` or `memory`."""
    gpus: int = 0
    """GPUs at hand; settings that need more are left out. 0 for as many as were measured."""
    global_batch: int = 0
    """Sequences per optimizer step; settings with other global batches are left out. 0 for any."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price of an hour of a GPU by its model (see `kinds`); the key `""` is for all others."""
    assumed_price: float | None = None
    """Price of an hour of GPUs that `prices` does not have; None leaves their costs unknown."""
    currency: str = "$"
    """Its sign, in front of amounts."""
    relevance: float = RELEVANCE
    """Smallest difference that matters: 0.02 is 2 %."""
    max_days: float = MAX_DAYS
    """Settings that take longer are left out if any takes less, unless the objective is the
    time."""
    are_tokens_assumed: bool = False
    """Whether `tokens` are the usual tokens, as nobody gave a number; `decide` sets it."""

    def __post_init__(self) -> None:
        if self.objective not in list(OBJECTIVES):
            known = ", ".join(OBJECTIVES)
            raise SettingsError(f"objective is {self.objective!r}: choose one of {known}")
        if not isinstance(self.prices, Mapping):
            raise SettingsError(
                f"prices is {self.prices!r}: give the price of a GPU-hour by GPU, as in {{'H200': 2.5}}"
            )
        prices = {f"prices[{gpu!r}]": price for gpu, price in self.prices.items()}
        tokens = self.tokens
        if self.tokens == 0:
            tokens = planning.DEFAULT_TOKENS
        planning.check(tokens, prices, assumed_price=self.assumed_price)
        wholes = {"gpus": "the number of GPUs at hand", "global_batch": "sequences per step"}
        for name, what in wholes.items():
            value = getattr(self, name)
            if not (is_whole(value) and value >= 0):
                raise SettingsError(f"{name} is {value!r}: give {what}, or 0 for any")
        if not (is_number(self.relevance) and 0 <= self.relevance < 1):
            raise SettingsError(
                f"relevance is {self.relevance!r}: give 0 or more and less than 1, such as 0.02 for 2 %"
            )

    @property
    def column(self) -> str:
        """The column of candidates that decides."""
        return OBJECTIVES[self.objective]

    def price(self, kind: object) -> float | None:
        """Return the price of an hour of a kind of hardware; None if it is unknown."""
        price = self.prices.get(str(kind), self.prices.get(""))
        if price is None and kind != CPU:
            return self.assumed_price
        return price


def kinds(runs: pd.DataFrame) -> pd.Series:
    """Return the hardware of each run as prices name it: the GPU's model, `GPU` if it is unknown, or `CPU`."""
    hardware = runs.reindex(columns=["gpu_name", "device"]).astype(object)
    others = hardware["device"].map({"cpu": CPU}).fillna(UNKNOWN_GPU)
    return hardware["gpu_name"].where(hardware["gpu_name"].notna(), others).map(str)


def recorded_prices(runs: pd.DataFrame) -> dict[str, float]:
    """Return the price of an hour by kind of hardware as runs state it, by their cost and GPU-hours."""
    hours, cost = numbers(runs, "gpu_hours"), numbers(runs, "cost")
    is_priced = (hours > 0) & (cost > 0)
    prices = (cost / hours)[is_priced].groupby(kinds(runs)[is_priced]).median()
    return {str(kind): float(f"{price:.6g}") for kind, price in prices.items()}


def is_probe(runs: pd.DataFrame) -> pd.Series:
    """Return which runs are micro-batch probes of earlier versions: their two steps only measure memory."""
    return runs["experiment"].astype(str).str.contains(rf"{PROBE}\d+$").astype(bool)


def without_probes(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the probes of earlier versions, unless there is nothing else."""
    others = runs[~is_probe(runs)]
    if others.empty:
        return runs
    return others


def first_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the first run of each experiment, which has its settings, by experiment."""
    return runs.drop_duplicates("experiment").set_index("experiment", drop=False)


def basis(source: object) -> str:
    """Return whether the figures of a source were `measured` with dsnb, or `published` by others."""
    name = labels.text(source)
    if name.startswith(SOURCE) and not is_own(name):
        return PUBLISHED
    return MEASURED


def memory_figure(runs: pd.DataFrame) -> str | None:
    """Return the most informative figure of memory that any ok run measured; None if there is none."""
    ok = runs[runs["status"] == "ok"]
    for name in MEMORY:
        if name in ok and ok[name].notna().any():
            return name
    return None


def rate(runs: pd.DataFrame) -> str:
    """Return the figure of speed to compare runs by: per GPU, but of all ranks on CPUs, which share the same cores."""
    if {*map(labels.text, runs.get("device", ()))} == {"cpu"}:
        return "tokens_per_s"
    return "tokens_per_s_per_gpu"


def default_objective(runs: pd.DataFrame) -> str:
    """Return the default objective: the time, or GPU-hours where the timed runs differ in their GPUs.

    With the most GPUs, nearly every training is fastest. Ranks on a CPU share its cores, so their
    hours say little.
    """
    is_timed = (runs["status"] == "ok") & (numbers(runs, "tokens_per_s") > 0)
    sizes = numbers(runs, "gpus")[is_timed].nunique()
    if sizes > 1 and labels.common_unit(runs) == "GPU":
        return "gpu_hours"
    return "time"


def candidates(runs: pd.DataFrame, power_w: float | None = None) -> pd.DataFrame:
    """Return the settings of a task with a measured speed and number of GPUs, in order of appearance.

    `power_w` is the mean power of a GPU for runs without measured power. Indexed by experiment:
    `basis`, `source`, `gpu_name`, `kind` (see `kinds`), `n` and `n_failed` (ok and other runs),
    medians `gpus`, `tokens_per_s` (of all GPUs), `power_w` (per GPU), `memory_gib`
    (`memory_figure`), `gpu_memory_gib` (capacity), `global_batch` (sequences per step), `steps` and
    `timed_s` of a run, the number of `hosts`, `spread_pct` of tokens/s (standard deviation; half
    the range of two or three runs) and `is_unstable` (`dsnb.results.statistics.summary.UNSTABLE`).
    Predicted candidates (`dsnb.prediction.recommend`) also have `fits`.
    """
    runs = named_runs(runs)
    ok = runs["status"] == "ok"
    rates = numbers(runs, "tokens_per_s")
    gpus = numbers(runs, "gpus")
    is_timed = ok & (rates > 0) & (gpus > 0)
    figure = memory_figure(runs)
    medians = pd.DataFrame(
        {
            "gpus": gpus.where(is_timed),
            "tokens_per_s": rates.where(is_timed),
            "power_w": numbers(runs, "power_w").where(is_timed),
            "memory_gib": numbers(runs, figure).where(ok) if figure else math.nan,
            "global_batch": global_batch(runs),
            "steps": timed_steps(runs).where(is_timed),
            "timed_s": timed_seconds(runs).where(is_timed),
        },
        runs.index,
    )
    for column in ("steps", "timed_s", "global_batch"):  # logs of other programs may have zeros
        medians[column] = medians[column].where(medians[column] > 0)
    name = runs["experiment"]
    firsts = runs.reindex(columns=["source", "gpu_name"]).assign(kind=kinds(runs))
    settings = firsts.groupby(name, sort=False).first()
    settings["n"] = ok.groupby(name).sum()
    settings["n_failed"] = (~ok).groupby(name).sum()
    settings = settings.join(medians.groupby(name).median())
    settings["gpu_memory_gib"] = numbers(runs, "gpu_memory_gib").groupby(name).min()
    settings = settings[settings["tokens_per_s"].notna()]
    if power_w is not None:
        settings["power_w"] = settings["power_w"].fillna(power_w)
    settings.insert(0, "basis", [basis(source) for source in settings["source"]])
    timed = name[is_timed]
    hosts = pd.Series(intervals.hosts(runs), runs.index, dtype=object)
    hosts = hosts[is_timed].groupby(timed)
    settings["hosts"] = hosts.nunique().where(hosts.count() == hosts.size())
    speeds = rates[is_timed].groupby(timed)
    half_range = (speeds.max() - speeds.min()) / 2
    spread = speeds.std().where(speeds.count() >= MIN_RUNS, half_range)
    settings["spread_pct"] = 100 * spread / speeds.median()
    return settings.assign(is_unstable=settings.index.isin(unstable(runs)))


def global_batch(runs: pd.DataFrame) -> pd.Series:
    """Return the sequences per optimizer step of each run; NaN if unknown."""
    of_replica = factor(runs, "tensor_parallel") * factor(runs, "pipeline_parallel")
    replicas = numbers(runs, "gpus") / of_replica
    computed = replicas * numbers(runs, "micro_batch_size") * factor(runs, "grad_accum")
    return numbers(runs, "global_batch_size").fillna(computed)


def costed(table: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Return candidates with `days`, `gpu_hours`, `energy_kwh`, `price` (of a GPU-hour) and `cost`, fastest first.

    `days_low` and `days_high` are the range given by that of a predicted speed; without
    `days_high` where memory is tight.
    """
    gpus = table["gpus"]
    rates = table["tokens_per_s"]
    days = [metrics.days(question.tokens, rate) for rate in rates]
    table = table.assign(days=pd.Series(days, table.index, float))
    hours = map(partial(metrics.gpu_hours, question.tokens), rates, gpus)
    table["gpu_hours"] = pd.Series(list(hours), table.index, float)
    low = numbers(table, "tokens_per_s_low").fillna(rates)
    high = numbers(table, "tokens_per_s_high").fillna(rates)
    table["days_low"] = table["days"] * rates / high
    table["days_high"] = (table["days"] * rates / low).mask(tight(table))
    table["energy_kwh"] = table["gpu_hours"] * numbers(table, "power_w") / 1000
    table["price"] = table["kind"].map(question.price).astype(float)
    table["cost"] = table["gpu_hours"] * table["price"]
    return table.sort_values("days", kind="stable")


@dataclass(frozen=True)
class Decision:
    """The ranked settings of a task."""

    question: Question
    table: pd.DataFrame
    """All candidates with what they cost (`costed`), those that need more GPUs than are at hand
    included."""
    options: pd.DataFrame
    """The eligible candidates, best first (`_ranked`): those that fit on the GPUs at hand, with a known value of
    the objective and repeats that agree; slower than `Question.max_days` only if all are."""
    too_slow: int = 0
    unstable: int = 0
    """Settings left out because of `Question.max_days`, and because their repeats disagree."""
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    """All runs of the task, with experiments named as in the table; none for candidates that are
    only predicted."""
    difference: "pd.Series[Any] | None" = None
    """The row of `dsnb.results.statistics.comparisons` that compares the second option with the
    first; None without one."""

    @property
    def is_beyond(self) -> bool:
        """Whether every option takes longer than `Question.max_days`: then there is no answer."""
        days = self.options["days"]
        return len(days) > 0 and bool((days > self.question.max_days).all())

    @property
    def is_few(self) -> bool:
        """Whether fewer settings were measured than advice needs."""
        return len(self.table) < FEWEST_SETTINGS

    @property
    def is_by_repeats(self) -> bool:
        """Whether the first option is there for its repeats, although another one with room may be better."""
        values = self.options[self.question.column]
        with_room = values[~tight(self.options)]
        return len(with_room) > 0 and bool(values.iloc[0] > with_room.min())

    @property
    def confirmed(self) -> int:
        """The number of options with `MIN_RUNS` runs or more."""
        return int((self.options["n"] >= MIN_RUNS).sum())

    @property
    def gpus(self) -> list[int]:
        """The numbers of GPUs of candidates that are at hand, in order."""
        available = _at_hand(self.table, self.question)
        return sorted(set(available["gpus"].astype(int).tolist()))

    @cached_property
    def settings(self) -> pd.DataFrame:
        """The first run of each option, which has its settings, by experiment."""
        return first_runs(self.runs).loc[self.options.index]


def worsening(change_pct: float, objective: str) -> float:
    """Return how much worse a change of throughput is for the objective, in per cent: less speed, or higher cost."""
    if objective == "time":
        return -change_pct
    return 100 * (1 / (1 + change_pct / 100) - 1)


def may_be_best(
    table: pd.DataFrame, by: Sequence[str] = ("gpus", "kind", "global_batch")
) -> list[object]:
    """Return the candidates on the Pareto front of speed and memory within each `by`; unstable ones are left out.

    Those on the front of all that have `MIN_RUNS` runs are among them, as they may come first.
    """
    repeated = table[table["n"] >= MIN_RUNS]
    return list(dict.fromkeys([*_front(table, by), *_front(repeated, by)]))


def _front(table: pd.DataFrame, by: Sequence[str]) -> list[object]:
    stable = table[~table["is_unstable"].astype(bool)]
    fastest = stable.sort_values("tokens_per_s", ascending=False, kind="stable")
    memory = fastest["memory_gib"].where(fastest["memory_gib"] > 0)
    groups = memory.groupby([fastest[name] for name in by], dropna=False)
    least_of_faster = groups.transform(lambda values: values.cummin().ffill().shift())
    is_fastest = ~fastest.duplicated(list(by))
    is_leaner = memory < least_of_faster.fillna(math.inf)
    return list(fastest.index[is_fastest | is_leaner])


def decide(
    table: pd.DataFrame,
    question: Question,
    parameters: float = 0,
    fine_tuning: bool = False,
    doubted: float = 1.0,
) -> Decision:
    """Rank the candidates of a task; without `parameters` (0), the default number of tokens is a round one.

    `doubted` is the ratio up to which a better setting with few runs comes after one with enough; gains of less than
    `Question.relevance` always do.
    """
    if not question.tokens:
        tokens = planning.usual_tokens(parameters, fine_tuning)
        question = replace(question, tokens=tokens, are_tokens_assumed=True)
    table = costed(table, question)
    available = _at_hand(table, question).dropna(subset=question.column)
    available = available.sort_values(question.column, kind="stable")
    stable = available[~available["is_unstable"].astype(bool)]
    options = stable[stable["days"] <= question.max_days]
    if question.objective == "time" or options.empty:
        options = stable
    options = _ranked(options, question, doubted)
    too_slow = len(stable) - len(options)
    return Decision(question, table, options, too_slow, len(available) - len(stable))


def _ranked(options: pd.DataFrame, question: Question, doubted: float) -> pd.DataFrame:
    """Return sorted options, the recommended one first.

    The tight ones come last if another that is at most 5 % worse has room: where the GPU has no
    room for what torch reserves, a run took twice the predicted time (OLMo-2 7B, FSDP, four H100).
    One with `MIN_RUNS` runs comes before a better one with fewer if the gain is irrelevant or
    `doubted`: a single run is no reason to prefer its setting to one that was repeated.
    `web/answer.js` has the same rule. Predictions have no runs.
    """
    values = options[question.column]
    is_tight = tight(options)
    is_close = values <= (1 + WORTH_ROOM) * values.min()
    if (is_close & ~is_tight).any():
        options = pd.concat([options[~is_tight], options[is_tight]])
        values = options[question.column]
    runs = numbers(options, "n")
    is_repeated = runs >= MIN_RUNS
    most = max(doubted, 1 / (1 - question.relevance)) * values.head(1).max()
    is_sure = is_repeated & (values <= most)
    if (runs.head(1) < MIN_RUNS).any() and is_sure.any():
        is_first = options.index == is_sure.idxmax()
        return pd.concat([options[is_first], options[~is_first]])
    return options


def tight(options: pd.DataFrame) -> "pd.Series[bool]":
    """Return which candidates are predicted to have too little memory for what torch reserves."""
    return options.reindex(columns=["tight"])["tight"].eq(True)


def is_tight(row: Mapping[Any, Any]) -> bool:
    """Return whether a candidate has too little memory for what torch reserves; measured ones have shown it."""
    is_open = row.get("tight")
    return bool(is_open) and not pd.isna(is_open)


def _at_hand(table: pd.DataFrame, question: Question) -> pd.DataFrame:
    is_at_hand = pd.Series(True, table.index)
    if "fits" in table:
        is_at_hand &= table["fits"].astype(bool)
    if question.global_batch:
        is_at_hand &= table["global_batch"] == question.global_batch
    if question.gpus:
        is_at_hand &= table["gpus"] <= question.gpus
    return table[is_at_hand]


def of_runs(runs: pd.DataFrame, question: Question) -> Decision:
    """Return the decision on the runs of a task, with how far the second best setting is from the best."""
    runs = named_runs(runs)
    doubted = intervals.CLEAR
    if question.objective == "memory":  # one run shows it
        doubted = 1.0
    made = decide(candidates(runs), question, parameters(runs), is_fine_tuning(runs), doubted)
    return replace(made, runs=runs, difference=_difference(runs, made.options, question))


def _difference(
    runs: pd.DataFrame, options: pd.DataFrame, question: Question
) -> "pd.Series[Any] | None":
    """Compare the second option with the first; the interval is that of all pairs of settings of the task."""
    if len(options) < 2 or question.objective == "memory":
        return None
    ranked = runs[runs["experiment"].isin(options.index)]
    worth = numbers(ranked, "tokens_per_s")
    if question.objective != "time":
        worth = worth / ranked["experiment"].map(options["gpus"])
    if question.objective == "cost":
        worth = worth / ranked["experiment"].map(options["price"])
    table = ranked.reindex(columns=["experiment", "status", "hosts", "host"]).assign(worth=worth)
    rules = rules_of(table, "worth", "higher", relevance=question.relevance)
    settings = intervals.settings_of(table, "experiment", "worth")
    best, second = options.index[:2]
    of_task = intervals.settings_of(runs, "experiment", "tokens_per_s")
    among = intervals.repeated(of_task.values())
    pair = (settings[best], settings[second])
    return table_of([pair], among, rules).iloc[0]
