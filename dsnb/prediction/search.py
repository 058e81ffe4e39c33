"""Find the best of many candidates of one task, predicting memory only where it decides.

Predicting the time of a thousand settings takes a fraction of a second; predicting memory needs a
trace of the model, which takes seconds for each kind of setting. So the fastest candidates that are
likely to fit, by formulas for what blocks keep, are traced first, and tracing ends once no untraced
candidate can be in the answer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.prediction import host_memory
from dsnb.prediction.candidates import simplicity
from dsnb.prediction.memory import UNTRACED, need_gib, room_gib
from dsnb.prediction.predict import fit, tabulated
from dsnb.prediction.step_time import StepCounts, count_step, step_times
from dsnb.prediction.target import Target
from dsnb.prediction.traces import MemoryTrace, attempts
from dsnb.prediction.variants import variants
from dsnb.results.answers.decide import CPU, PREDICTED, WORTH_ROOM, Question, costed, decide, tight
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.settings.experiment import Experiment

ALTERNATIVES = 3
ROUNDS = 2
"""How often variants are tried: first those of the fastest candidates, then variants of these."""
FASTEST = 5
"""Variants are tried of this many of the fastest candidates, and of the fastest with each way to share the work."""
NEAR = 1.25
"""Time of a candidate whose variants are tried, at most, in times of the fastest one."""
OF_FIT = ("fits", "tight", "headroom_gib", "peak_allocated_gib", "peak_reserved_gib")
"""Columns that need a trace and rank candidates."""
OF_MEMORY = (
    "fits", "tight", "headroom_gib", "peak_allocated_gib", "peak_allocated_error_pct", "peak_reserved_gib",
    "peak_reserved_error_pct", "moment", "mfu",
)  # fmt: skip
"""Columns of `dsnb.predict` that need a trace."""
OF_DECISIONS = (
    "is_known", "basis", "is_unstable", "gpus", "kind", "gpu_name", "energy_kwh", "memory_gib",
)  # fmt: skip
"""Columns that decisions need beside those of `dsnb.predict`."""
KINDS: tuple[tuple[str, ...], ...] = (
    ("strategy", "zero_stage", "tensor_parallel", "shard_size"),
    ("compile",),
    ("activation_checkpointing",),
)
"""How alternatives differ from the best one: in sharing of the work, in compilation, in
recomputation."""


@dataclass(frozen=True)
class SearchResult:
    """The best candidate that fits and its alternatives."""

    table: pd.DataFrame
    """All candidates (`dsnb.results.answers.decide.candidates`, `dsnb.predict`); memory only where
    it decides."""
    options: pd.DataFrame
    """Candidates that fit, or are likely to, with what they cost, the best first."""
    chosen: list[str]
    """The recommended candidate, then its alternatives, the nearest first; empty if none fits."""
    tied: int = 0
    """Candidates within `RELEVANCE` of the best; the recommended one is the simplest of them."""


class Search:
    """Candidates of one task by name, predicted for a target."""

    def __init__(
        self,
        asked: Sequence[Experiment],
        target: Target,
        question: Question,
        measured: pd.DataFrame | None = None,
        beside: Sequence[Experiment] = (),
    ) -> None:
        """`measured` figures replace predicted ones; `beside` is traced together with the first candidates."""
        self.asked: dict[str, Experiment] = {}
        self.target = target
        self.question = question
        self._measured = measured
        self._beside = list(beside)
        self.failed: dict[str, SettingsError] = {}
        """Candidates that could not be traced, and why; they count as too large."""
        self._settings: list[StepCounts] = []
        self.sharing: dict[str, str] = {}
        """The settings of each candidate that say how ranks share the work, as a text."""
        empty = pd.Series(dtype=float)
        self.room_gib = empty
        self.least_gib = empty
        """Lower bound of what each candidate needs."""
        self._can_fit = empty.astype(bool)
        """Whether a candidate may fit, by what is known without a trace."""
        self._likely_gib = empty
        self.add(asked)

    def add(self, asked: Sequence[Experiment]) -> None:
        """Predict further candidates of the task."""
        on = self.target.hardware
        added = {}
        for one in asked:
            on_gpu = one
            if one.device != "cuda":
                on_gpu = one.model_copy(update={"device": "cuda"})
            added[on_gpu.name_with_model] = on_gpu
        names = list(added)
        ones = list(added.values())
        self.asked |= added
        self._settings += [count_step(one, on.gpu, on.link) for one in ones]
        for name, one in added.items():
            self.sharing[name] = str([getattr(one, field) for field in KINDS[0]])
        rooms = [room_gib(one, on.gpu.memory_gib) for one in ones]
        room = pd.Series(rooms, names, dtype=float)
        least = pd.Series([need_gib(one) for one in ones], names, dtype=float)
        fits_host = []
        for one in ones:
            need = host_memory.of_node(one, on.link)
            fits_host.append(host_memory.fits(one, need, on.host_gib) is not False)
        can_fit = (least <= room) & np.array(fits_host)
        is_needed = can_fit | ~can_fit.any()  # others cannot fit in any case
        likely = []
        for one, needed in zip(ones, is_needed, strict=True):
            likely.append(need_gib(one, likely=True) if needed else np.inf)
        self.room_gib = _joined(self.room_gib, room)
        self.least_gib = _joined(self.least_gib, least)
        self._can_fit = _joined(self._can_fit, can_fit)
        self._likely_gib = _joined(self._likely_gib, pd.Series(likely, names, dtype=float))
        self._tabulate()

    def _tabulate(self) -> None:
        """Predict what ranks the candidates; memory by the traces that there are."""
        asked = list(self.asked.values())
        tried = attempts(asked, make=False)
        self._traces = [trace if isinstance(trace, MemoryTrace) else None for trace in tried]
        on = self.target.hardware
        times_s = np.asarray(step_times(self._settings, on.constants).step_time_s)
        rows = []
        for one, trace, time_s in zip(asked, self._traces, times_s.tolist(), strict=True):
            host_gib = host_memory.of_node(one, on.link)
            row = {"host_memory_gib": host_gib, "tokens_per_s": one.tokens_per_step / time_s}
            if trace:
                row |= fit(one, trace, on, host_gib).columns
            rows.append(row)
        table = pd.DataFrame(rows, list(self.asked)).assign(step_time_s=times_s)
        self.table = self._of_search(table, OF_FIT)

    def described(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the whole prediction of some candidates, or what was measured in place of it."""
        places = {name: place for place, name in enumerate(self.asked)}
        chosen = [places[name] for name in names]
        table = tabulated(
            [self.asked[name] for name in names],
            [self._settings[place] for place in chosen],
            [self._traces[place] for place in chosen],
            self.target.hardware,
            tokens=self.question.tokens,
            price=self.question.prices.get(""),
        )
        table = self._of_search(table.set_axis(list(names)), OF_MEMORY)
        return self._as_measured(table)

    def _as_measured(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with measured figures in place of predicted ones."""
        if self._measured is not None:
            measured = self._measured.reindex(
                columns=self._measured.columns.intersection(table.columns)
            )
            measured = measured[measured.index.isin(table.index)]
            table.loc[measured.index, measured.columns] = measured
        return table

    def _complete(self, result: SearchResult) -> SearchResult:
        """Return a result whose chosen candidates have all figures, not only those that rank them."""
        if not result.chosen:
            return result
        described = self.described(result.chosen)
        known = result.table.columns
        more = described.drop(columns=known, errors="ignore")
        options = result.options
        options = options.join(more.drop(columns=options.columns, errors="ignore"))
        options = costed(options, self.question).loc[options.index]
        first = [name for name in described if name not in OF_DECISIONS]
        order = [*first, *(name for name in known if name not in first)]
        table = result.table.join(more)[order]
        return replace(result, table=table, options=options)

    def _of_search(self, table: pd.DataFrame, of_memory: Sequence[str]) -> pd.DataFrame:
        """Return predictions with the columns that decisions need; `of_memory` may be missing."""
        on = self.target.hardware
        table = table.reindex(columns=list(dict.fromkeys([*table, *of_memory])))
        is_cpu = self.target.device == "cpu"
        if is_cpu:  # memory is predicted for GPUs
            table = table.assign(**dict.fromkeys(of_memory, np.nan)).assign(fits=True)
        table = table.astype({"fits": object, "tight": object})  # true, false or unknown
        return table.assign(
            is_known=table["headroom_gib"].notna() | is_cpu, basis=PREDICTED, is_unstable=False,
            gpus=[self.asked[name].gpus for name in table.index], kind=CPU if is_cpu else "",
            gpu_name=on.gpu.name, energy_kwh=np.nan, memory_gib=table["peak_allocated_gib"], spread_pct=np.nan,
        )  # fmt: skip

    def trace(self, names: Sequence[str]) -> None:
        """Trace candidates and similar ones; one that cannot be traced counts as too large, unless none can."""
        tried = attempts([*(self.asked[name] for name in names), *self._beside])
        self._beside = []
        failed = {
            name: trace
            for name, trace in zip(names, tried, strict=False)
            if isinstance(trace, SettingsError)
        }
        if len(failed) == len(names) and not any(self._traces):
            raise next(iter(failed.values()))
        self.failed |= failed
        self._tabulate()

    def best(self) -> SearchResult:
        """Return the best candidate."""
        return self._complete(self.ranked())

    def ranked(self) -> SearchResult:
        """Return the best candidate with the figures that rank candidates, tracing what is needed for that."""
        while True:
            result, needed = self._choose()
            is_known = result.table["is_known"]
            untraced = []
            for name in dict.fromkeys(needed):
                if not is_known[name] and name not in self.failed:
                    untraced.append(name)
            if not untraced:
                return result
            self.trace(untraced)

    def refined(self, result: SearchResult, fixed: Collection[str] = ()) -> SearchResult:
        """Return the best candidate, with variants of the fastest ones that are predicted to be faster.

        `fixed` are names of settings that stay as they are.
        """
        for _ in range(ROUNDS):
            faster = self._faster(result, fixed)
            if not faster:
                break
            self.add(faster)
            result = self.ranked()
        return self._complete(result)

    def _faster(self, result: SearchResult, fixed: Collection[str]) -> list[Experiment]:
        """Return variants that are predicted to be faster than all options by more than `RELEVANCE`."""
        options = result.options
        is_by_time = self.question.objective != "memory" and self.target.device != "cpu"
        if options.empty or not is_by_time:
            return []
        column = options[self.question.column]
        near = options[column <= NEAR * column.iloc[0]]
        of_each_sharing = near.groupby(self.sharing, sort=False).head(1)
        found = {}
        for name in dict.fromkeys([*of_each_sharing.index, *near.index[:FASTEST]]):
            for one in variants(self.asked[name], fixed):
                found[one.name_with_model] = one
        new = [one for name, one in found.items() if name not in self.asked]
        if not new:
            return []
        on = self.target.hardware
        counts = [count_step(one, on.gpu, on.link) for one in new]
        times_s = np.asarray(step_times(counts, on.constants).step_time_s)
        limit_s = options["step_time_s"].iloc[0] / (1 + RELEVANCE)
        return [one for one, time_s in zip(new, times_s, strict=True) if time_s < limit_s]

    def _choose(self) -> tuple[SearchResult, list[str]]:
        """Return the best by what is known and likely so far, and the candidates that it depends on."""
        table = self._as_measured(self.table.copy())
        is_known = table["is_known"].astype(bool)
        is_open = ~is_known & ~table.index.isin(list(self.failed))
        may_fit = is_open & self._can_fit
        unsure = may_fit & (self._likely_gib <= UNTRACED.too_large * self.room_gib)
        if self.question.objective == "memory":  # untraced ones are ranked by their lower bound
            table["memory_gib"] = table["memory_gib"].where(is_known, self.least_gib)
            unsure = may_fit
        is_likely = may_fit & (self._likely_gib <= self.room_gib)
        # Where offload depends on a host whose memory is unknown, `fits` is None: the answer says
        # what it needs.
        fits = is_likely.where(~is_known, ~table["fits"].eq(False))
        options = decide(table.assign(fits=fits), self.question).options
        everything = decide(table.assign(fits=fits | unsure), self.question).options
        if options.empty:  # trace the candidate that is likely to need least in any case
            left = may_fit if is_known.any() else is_open
            least = self._likely_gib[left].nsmallest(1).index
            return SearchResult(table, options, []), [*everything.index, *least]
        column = self.question.column
        best = options.iloc[0]
        is_tight = tight(options)
        limit = (1 + RELEVANCE) * best[column]
        tied = options.index[(options[column] <= limit) & (is_tight == is_tight.iloc[0])]
        first = min(tied, key=lambda name: simplicity(self.asked[name]))
        chosen = [first, *self._alternatives(first, list(options.index))]
        # What has room is better than a tight setting, if it is close.
        reach = 1 + WORTH_ROOM if is_tight.iloc[0] else 1.0
        needed = list(everything.index[everything[column] <= reach * best[column]])
        for name in everything.index[everything[column] <= limit]:
            if simplicity(self.asked[name]) < simplicity(self.asked[first]):
                needed.append(name)
        if not is_known.any():  # a later round is likely to ask for the best of each sharing
            needed.extend(options.groupby(self.sharing, sort=False).head(1).index)
        return SearchResult(table, options, chosen, len(tied)), [*needed, *chosen]

    def _alternatives(self, best: str, options: list[str]) -> list[str]:
        """Return the best candidate that differs in each of `KINDS`, then others, in the order of the options."""
        others = [name for name in options if name != best]
        chosen: list[str] = []
        for kind in KINDS:
            values = {
                name: [getattr(self.asked[name], field) for field in kind] for name in options
            }
            differing = [name for name in others if values[name] != values[best]]
            chosen += differing[:1]
        alternatives = list(dict.fromkeys([*chosen, *others]))[:ALTERNATIVES]
        return sorted(alternatives, key=options.index)


def _joined(before: "pd.Series[Any]", added: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return two columns as one; pandas warns of empty ones."""
    return pd.concat([before, added]) if len(before) else added
