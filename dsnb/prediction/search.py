"""Find the best of many candidates of one task, predicting memory only where it decides.

Predicting the time of a thousand settings takes a fraction of a second; predicting memory needs a trace of the model,
which takes seconds for each kind of setting. So the fastest candidates that are likely to fit, by formulas for what
blocks keep, are traced first, and tracing ends once no untraced candidate can be in the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.prediction import host_memory, space
from dsnb.prediction.memory import UNTRACED, need_gib, room_gib
from dsnb.prediction.predict import Hardware, tabulated
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import count_step
from dsnb.prediction.traces import MemoryTrace, attempts
from dsnb.results.answers.decide import CPU, PREDICTED, WORTH_ROOM, Question, decide, tight
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.settings.experiment import Experiment

ALTERNATIVES = 3
OF_MEMORY = (
    "fits", "tight", "headroom_gib", "peak_allocated_gib", "peak_allocated_error_pct", "peak_reserved_gib",
    "peak_reserved_error_pct", "moment", "mfu",
)  # fmt: skip
"""Columns of `dsnb.predict` that need a trace."""
KINDS: tuple[tuple[str, ...], ...] = (
    ("strategy", "zero_stage", "tensor_parallel"),
    ("compile",),
    ("activation_checkpointing",),
)
"""How alternatives differ from the best one: in sharing of the work, in compilation, in recomputation."""


@dataclass(frozen=True)
class Best:
    """The best candidate that fits and its alternatives."""

    table: pd.DataFrame
    """All candidates (`dsnb.results.answers.decide.candidates`, `dsnb.predict`); memory only where it decides."""
    options: pd.DataFrame
    """Candidates that fit, or are likely to, with what they cost, the best first."""
    chosen: list[str]
    """The recommended candidate, then its alternatives, the nearest first; empty if none fits."""
    tied: int = 0
    """Candidates within `RELEVANCE` of the best; the recommended one is the simplest of them."""


class Search:
    """Candidates by name, predicted on a GPU."""

    def __init__(
        self,
        asked: Mapping[str, Experiment],
        on: Hardware,
        tokens: float | None,
        price: float | None,
        kind: str = "",
    ) -> None:
        self.asked = {
            name: experiment.model_copy(update={"device": "cuda"})
            for name, experiment in asked.items()
        }
        self.beside: list[Experiment] = []
        """Settings to trace together with the first candidates."""
        self.on, self._price, self._kind = on, price, kind
        first = next(iter(asked.values()))
        is_fine_tuning = all(
            planning.is_fine_tuning(vars(experiment)) for experiment in asked.values()
        )
        usual = planning.usual_tokens(shape(first.model).parameters, is_fine_tuning)
        self.tokens = usual if tokens is None else tokens
        self._settings = [
            count_step(experiment, on.gpu, on.link) for experiment in self.asked.values()
        ]
        self.room_gib = np.array(
            [room_gib(experiment, on.gpu.memory_gib) for experiment in self.asked.values()]
        )
        self.least_gib = np.array([need_gib(experiment) for experiment in self.asked.values()])
        """Lower bound of what each candidate needs."""
        self._can_fit = (self.least_gib <= self.room_gib) & [
            not self._exceeds_host(one) for one in self.asked.values()
        ]
        """Whether a candidate may fit, by what is known without a trace."""
        is_needed = self._can_fit | ~self._can_fit.any()  # others cannot fit in any case
        needed = zip(self.asked.values(), is_needed, strict=True)
        self._likely_gib = np.array(
            [
                need_gib(experiment, likely=True) if is_one else np.inf
                for experiment, is_one in needed
            ]
        )
        self._problems: dict[str, SettingsError] = {}
        self._take(attempts(list(self.asked.values()), make=False))

    def _exceeds_host(self, experiment: Experiment) -> bool:
        need_gib = host_memory.of_node(experiment, self.on.link)
        return host_memory.fits(experiment, need_gib, self.on.host_gib) is False

    def _take(self, tried: Sequence[MemoryTrace | SettingsError]) -> None:
        self._traces = [trace if isinstance(trace, MemoryTrace) else None for trace in tried]
        asked = list(self.asked.values())
        table = tabulated(
            asked, self._settings, self._traces, self.on, tokens=self.tokens, price=self._price
        )
        table = table.set_axis(list(self.asked))
        table = table.reindex(columns=list(dict.fromkeys([*table, *OF_MEMORY])))
        if self._kind == CPU:  # memory is predicted for GPUs
            table = table.assign(**dict.fromkeys(OF_MEMORY, np.nan)).assign(fits=True)
        table = table.astype({"fits": object, "tight": object})  # true, false or unknown
        self.table = table.assign(
            is_known=table["headroom_gib"].notna() | (self._kind == CPU), basis=PREDICTED, is_unstable=False,
            gpus=[experiment.gpus for experiment in asked], kind=self._kind, gpu_name=self.on.gpu.name,
            energy_kwh=np.nan, memory_gib=table["peak_allocated_gib"],
        )  # fmt: skip

    def trace(self, names: Sequence[str]) -> None:
        """Trace candidates and similar ones; one that cannot be traced counts as too large, unless none can."""
        tried = dict(
            zip(
                names, attempts([*(self.asked[name] for name in names), *self.beside]), strict=False
            )
        )
        self.beside = []
        failed = {
            name: problem for name, problem in tried.items() if isinstance(problem, SettingsError)
        }
        if len(failed) == len(names) and not any(self._traces):
            raise next(iter(failed.values()))
        self._problems |= failed
        self._take(attempts(list(self.asked.values()), make=False))

    def best(self, question: Question, measured: pd.DataFrame | None = None) -> Best:
        """Return the best candidate; figures of `measured` ones replace predicted ones."""
        while True:
            best, visited = self._choose(question, measured)
            is_known = best.table["is_known"].astype(bool)
            untraced = [
                name
                for name in dict.fromkeys(visited)
                if not is_known[name] and name not in self._problems
            ]
            if not untraced:
                return best
            self.trace(untraced)

    def _choose(self, question: Question, measured: pd.DataFrame | None) -> tuple[Best, list[str]]:
        """Return the best by what is known and likely so far, and the candidates that it depends on."""
        table = self.table.copy()
        if measured is not None:
            table.loc[measured.index, measured.columns] = measured
        is_known = table["is_known"].to_numpy(dtype=bool)
        problems = table.index.isin(list(self._problems))
        can_fit = self._can_fit & ~problems
        # Where offload depends on a host whose memory is unknown, `fits` is None: the answer says what it needs.
        fits = np.where(
            is_known, ~table["fits"].eq(False), can_fit & (self._likely_gib <= self.room_gib)
        )
        unsure = ~is_known & can_fit & (self._likely_gib <= UNTRACED.too_large * self.room_gib)
        if question.objective == "memory":  # untraced ones are ranked by their lower bound
            table["memory_gib"] = table["memory_gib"].where(is_known, self.least_gib)
            unsure = ~is_known & can_fit
        options = decide(table.assign(fits=fits), question).options
        everything = decide(table.assign(fits=fits | unsure), question).options
        if options.empty:  # trace the candidate that is likely to need least in any case
            open_ = pd.Series(self._likely_gib, table.index)[
                ~is_known & (can_fit | (not is_known.any() and ~problems))
            ]
            return Best(table, options, []), [
                *map(str, everything.index),
                *map(str, open_.nsmallest(1).index),
            ]
        best, amounts = options.iloc[0], everything[question.column]
        is_tight = tight(options)[best.name]
        reach = (
            1 + WORTH_ROOM if is_tight else 1.0
        )  # what has room is better than a tight setting, if it is close
        visited = [str(name) for name in everything.index[amounts <= reach * best[question.column]]]
        limit = (1 + RELEVANCE) * best[question.column]
        tied = options.index[(options[question.column] <= limit) & (tight(options) == is_tight)]
        chosen = [min(map(str, tied), key=self._simplicity)]
        maybe_tied = map(str, everything.index[amounts <= limit])
        visited += [
            name for name in maybe_tied if self._simplicity(name) < self._simplicity(chosen[0])
        ]
        chosen += self._alternatives(chosen[0], [str(name) for name in options.index])
        if (
            not is_known.any()
        ):  # a later round is likely to ask for the best of each way of sharing the work
            visited += {
                self._sharing(str(name)): str(name) for name in reversed(options.index)
            }.values()
        return Best(table, options, chosen, len(tied)), [*visited, *chosen]

    def _sharing(self, name: str) -> str:
        return str([getattr(self.asked[name], field) for field in KINDS[0]])

    def _simplicity(self, name: str) -> tuple[int, ...]:
        return space.simplicity(self.asked[name])

    def _alternatives(self, best: str, options: Sequence[str]) -> list[str]:
        """Return the best candidate that differs in each of `KINDS`, then others, in the order of the options."""
        others = [name for name in options if name != best]

        def differs(name: str, kind: Sequence[str]) -> bool:
            return any(
                getattr(self.asked[name], field) != getattr(self.asked[best], field)
                for field in kind
            )

        firsts = (next((name for name in others if differs(name, kind)), None) for kind in KINDS)
        chosen = list(dict.fromkeys(name for name in firsts if name))
        chosen += [name for name in others if name not in chosen][: ALTERNATIVES - len(chosen)]
        return sorted(chosen, key=options.index)

    def out_of_reach(self) -> list[tuple[str, float, float]]:
        """Return the smallest candidate of each way of sharing that cannot fit, its need, and the room, in GiB."""
        need = self.table["peak_allocated_gib"].fillna(pd.Series(self.least_gib, self.table.index))
        room_of = dict(zip(self.asked, self.room_gib, strict=True))
        smallest = map(str, need.groupby([*map(self._sharing, self.asked)], sort=False).idxmin())
        return [
            (name, float(need[name]), float(room_of[name]))
            for name in smallest
            if need[name] > room_of[name]
        ]
