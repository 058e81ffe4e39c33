"""The best setting of a task in words: what it takes, what limits it, what else there is, and what is out of reach."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from dsnb.analysis import ratio_errors, space, words
from dsnb.analysis.decide import CPU, MEASURED, PREDICTED, Question, candidates
from dsnb.analysis.predicted import known_gpu
from dsnb.analysis.ratio_errors import Ratios
from dsnb.analysis.search import Found, Search, need_gib
from dsnb.analysis.space import Training
from dsnb.analysis.tasks import settings_of, tasks
from dsnb.analysis.texts import significant
from dsnb.errors import SettingsError
from dsnb.formulas import planning
from dsnb.formulas.memory import HALF
from dsnb.formulas.planning import MAX_DAYS
from dsnb.prediction import gpus
from dsnb.prediction.calibration import recorded
from dsnb.prediction.memory import peak_memory, room_gib
from dsnb.prediction.predict import on_gpu
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import problem
from dsnb.prediction.traces import traces
from dsnb.runs import labels
from dsnb.runs.labels import MEMORY
from dsnb.runs.table import as_runs
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

USUAL_GPU = "H200"
"""GPU assumed if none is given and this machine has none that dsnb knows."""
MOST_GPUS = 4096
TRIED = 20
"""Settings of a recommendation that are kept beside those of its table, for measuring."""
CHANGED = (
    "precision", "mixed_precision", "compile", "activation_checkpointing", "checkpoint_every", "loss", "offload",
    "optimizer", "gpus", "micro_batch_size", "grad_accum",
)  # fmt: skip
"""Settings that tell two ways of one training apart, in the order of the words; the strategy comes before them."""
LIMITS = {
    "matrix products and attention": ("matmul_s", "attention_s"),
    "memory traffic": ("memory_bound_s", "optimizer_s"),
    "communication": (
        "all_reduce_s", "reduce_scatter_s", "all_gather_s", "all_to_all_s", "tensor_all_reduce_s", "point_to_point_s",
    ),
    "transfers to host memory": ("offload_s",),
    "waiting for the CPU": ("host_s",),
    "waiting for other pipeline stages": ("pipeline_bubble_s",),
}  # fmt: skip
"""What can limit a step in words, and the parts of its time (`dsnb.prediction.step_time.StepTime`)."""


@dataclass(frozen=True)
class Recommendation:
    """A choice among the settings of one task."""

    task: str
    """What is trained, as in "opt-1.3b, sequence 2048"."""
    table: pd.DataFrame
    """Settings with their figures."""
    sentences: tuple[str, ...]
    """What to train with, why, how sure that is, and what would decide it; or what would make a setting fit."""
    experiments: tuple[Experiment, ...] = field(default=(), repr=False)
    """The settings of the table, then others that fit, in the order in which to try them."""


class Adviser:
    """Answers for one GPU and objective; `assumed` says what was chosen for the user."""

    def __init__(
        self,
        gpu: str,
        objective: str,
        currency: str = "$",
        runs: pd.DataFrame | None = None,
        *,
        link: str = "nvlink",
        tokens: float | None = None,
        price: float | None = None,
        calibrate: pd.DataFrame | None = None,
        device: str = "cuda",
    ) -> None:
        planning.check(1 if tokens is None else tokens, {}, price=price)
        self.assumed: list[str] = []
        self.is_here = False
        if not gpu:
            here = next((one.name for one in hardware.gpus() if known_gpu(one.name)), "")
            gpu = here or USUAL_GPU
            self.is_here = bool(here)
            self.assumed = [f"the GPU of this machine, {here}" if here else f"{gpu} (--gpu for another)"]
        self.on = on_gpu(gpu, link, calibrate)
        self._objective, self._currency, self._link = objective, currency, link
        self._tokens, self._price, self._calibrate = tokens, price, calibrate
        self._runs = None if runs is None else runs_on(runs, self.on.gpu)
        self._kind = CPU if device == "cpu" else ""
        peak = hardware.PEAKS.get(self.on.gpu.name.partition("-")[0].lower())
        self.has_bf16 = peak is None or peak.bf16 is not None

    def predictable(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Return the settings that can be predicted; a SettingsError says why none can."""
        problems = [problem(one, self.on.gpu.name, self._link) for one in experiments]
        if all(problems):
            raise SettingsError(list(dict.fromkeys(problems)))
        return [one for one, why in zip(experiments, problems, strict=True) if not why]

    def among(self, asked: Sequence[Experiment]) -> Recommendation:
        """Return the best of given settings of one task; if none fits, which other ones would."""
        search, found, question = self._search(asked)
        if found.chosen:
            return self._answer(search, found, question, [])
        row = search.table.loc[search.table["peak_allocated_gib"].idxmin()]
        one = search.asked[str(row.name)]
        first = f"No setting fits: the smallest, {row.name}, needs {_need(row)}."
        instead = self.of_model(space.training_of(one), [])
        if instead.table.empty:
            return replace(instead, task=_title(asked), sentences=(first, *instead.sentences[1:]))
        best, figures = instead.experiments[0], instead.table.iloc[0]
        need, rate = (significant(figures[name]) for name in ("peak_allocated_gib", "tokens_per_s"))
        batch = labels.count(best.global_batch_size, "sequence")
        second = f"Predicted to fit on the same GPUs, with {batch} a step: {labels.setting(vars(best))}"
        second += f" ({need} GiB, {rate} tokens/s)."
        return Recommendation(_title(asked), instead.table.head(0), (first, second))

    def of_model(self, training: Training, assumed: Sequence[str]) -> Recommendation:
        """Return the best of all settings for a training; with offload if nothing else fits."""
        asked = space.space(training)
        self.predictable(asked[:1])
        search, found, question = self._search(asked, [] if self._kind == CPU else _smallest(training))
        if not found.chosen and (offloaded := space.space(training, offloaded=True)):
            found_before, search_before = found, search
            search, found, question = self._search(offloaded)
            if not found.chosen:
                search, found = search_before, found_before
        reached = list(self._reached(search, training))
        if found.chosen:
            return self._answer(search, found, question, [*reached, *_assumed(assumed)])
        least = search.table["peak_allocated_gib"].idxmin()
        said = f"No setting fits, offloaded or not: {least} needs {_need(search.table.loc[least])}."
        return Recommendation(_title(asked), search.table.head(0), (said, *reached, *_assumed(assumed)))

    def smallest(self, training: Training) -> int:
        """Return the smallest number, a power of two, of GPUs on which a setting fits; 0 if none does."""
        numbers = itertools.takewhile(lambda number: number <= MOST_GPUS, (2**power for power in itertools.count()))
        for number in numbers:
            for one in _smallest(replace(training, gpus=number)):
                left = room_gib(one, self.on.gpu.memory_gib)
                if need_gib(one) <= left and peak_memory(one, *traces([one])).peak_allocated_gib <= left:
                    return number
        return 0

    def _search(self, asked: Sequence[Experiment], beside: Sequence[Experiment] = ()) -> tuple[Search, Found, Question]:
        search = Search({one.name_with_model: one for one in asked}, self.on, self._tokens, self._price, self._kind)
        search.beside = list(beside)
        question = self.question(search.tokens)
        known = None if self._runs is None else of_runs(self._runs, search.asked)
        return search, search.best(question, known), question

    def _answer(self, search: Search, found: Found, question: Question, more: Iterable[str]) -> Recommendation:
        ranked, options = found.options.loc[found.chosen], found.options
        best = ranked.iloc[0]
        table = found.table.loc[found.chosen].assign(**ranked[["days", "days_low", "days_high", "gpu_hours"]])
        worse = 100 * (ranked[question.column] / best[question.column] - 1)
        table = table.drop(columns=["is_unstable", "gpus", "gpu_name", "kind", "energy_kwh", "memory_gib", "basis"])
        is_measured = ranked["basis"] != PREDICTED
        table.loc[is_measured, [*itertools.chain(*LIMITS.values()), "step_time_error_pct"]] = math.nan
        steps = [search.asked[str(name)].tokens_per_step for name in ranked.index]
        table["step_time_s"] = table["step_time_s"].where(~is_measured, steps / ranked["tokens_per_s"])
        table.insert(1, "worse_pct", worse.to_numpy())
        table.insert(2, "basis", ranked["basis"].to_numpy())
        room = search.room_gib[list(search.asked).index(str(best.name))]
        facts = words.figures(best, question) | {"name": labels.setting(vars(search.asked[str(best.name)]))}
        facts |= {} if pd.isna(best["memory_gib"]) else {
            "room": significant(room), "headroom": significant(max(0.0, room - best["memory_gib"]))
        }  # fmt: skip
        said = [words.say("plan", {"what": "Train with", **facts}), *_limits(best)]
        one = search.asked[str(best.name)]
        if one.offload != "none":  # fp32 weights and two moments, with all of ZeRO 3 also weights and gradients
            each = 16 if one.offload.startswith("all") else 12
            said.append(f"Host memory needs about {each * shape(one.model).parameters / 2**30:,.0f} GiB for that.")
        if best["days"] > MAX_DAYS:
            said.append(words.say("too_slow", words.needed_gpus(options, question)))
        if found.tied > 1:
            first = options.index[0]
            faster = f"; {first} is {100 * (1 - options[question.column].iloc[0] / best[question.column]):.1f} % better"
            end = faster if first != best.name else ""
            said.append(f"It is the simplest of {found.tied} settings that are equal within 2 %{end}.")
        for name, row in ranked.iloc[1:].iterrows():
            word = ("worse" if question.objective != "time" else "slower") if worse[name] > 0 else "better"
            need = "" if pd.isna(row["memory_gib"]) else f", {significant(row['memory_gib'])} GiB"
            changes = _changes(search.asked[str(best.name)], search.asked[str(name)])
            said.append(f"Instead: {changes}: {abs(worse[name]):.1f} % {word}{need}.")
        experiments = [search.asked[str(name)] for name in dict.fromkeys([*found.chosen, *options.index[:TRIED]])]
        said += self.doubts(ranked, experiments)
        return Recommendation(_title(experiments[:1]), table.reset_index(drop=True), (*said, *more), tuple(experiments))

    def _reached(self, search: Search, training: Training) -> Iterator[str]:
        """Yield which ways of sharing cannot fit, and the smallest power of two of GPUs that does."""
        if self._kind == CPU:
            return
        needs = [
            f"{labels.strategy(vars(search.asked[name]))} needs at least {need:.0f} of {room:.0f} GiB"
            for name, need, room in search.out_of_reach()
        ]
        if needs:
            yield f"Out of reach: {', '.join(needs)}."
        if least := self.smallest(training):
            yield f"The smallest power of two of GPUs that fits without offload is {least}."

    def everything(self, asked: Sequence[Experiment]) -> tuple[pd.DataFrame, bool]:
        """Return all settings of a task as candidates, and whether none of them is predicted to fit."""
        search = Search({one.name_with_model: one for one in asked}, self.on, self._tokens, self._price, self._kind)
        search.trace(list(search.asked))
        table, lacks_room = search.table.copy(), not search.table["fits"].any()
        if self._runs is not None and (known := of_runs(self._runs, search.asked)) is not None:
            table.loc[known.index, known.columns] = known
        return table, lacks_room

    def doubts(
        self, ranked: pd.DataFrame, experiments: Sequence[Experiment], objective: str | None = None
    ) -> Iterator[str]:
        """Yield how sure the best of ranked settings is: what comes next, and what its figures may miss."""
        asked = {one.name_with_model: one for one in experiments}
        if len(ranked) > 1:
            known = ratio_errors.known_for(self.on.gpu.name, self._link, self._calibrate)
            yield _how_sure(ranked, asked, self.question(1, objective), known)
        for name, best in ranked.head(1).iterrows():
            if best["basis"] == PREDICTED and asked[str(name)].allocator == "default":
                yield "Its allocator is torch's default one: fragmentation can need more memory than is predicted."
            if best["outside"]:
                yield f"Less sure than that: {best['outside']}."

    def question(self, tokens: float, objective: str | None = None) -> Question:
        """Return what is asked, of the adviser's objective or another one."""
        prices, most = {} if self._price is None else {"": self._price}, MAX_DAYS if objective else math.inf
        return Question(tokens, objective or self._objective, prices=prices, currency=self._currency, max_days=most)


def _smallest(training: Training) -> list[Experiment]:
    """Return the settings without offload that need least: a sequence at a time, every block recomputed."""
    fixed: dict[str, Any] = {"strategy": "deepspeed", "tensor_parallel": 1, "micro_batch_size": 1, "compile": "off"}
    fixed |= {"activation_checkpointing": True, "checkpoint_every": 1}
    fixed |= {"mixed_precision": "native"} if training.precision in HALF else {}
    try:
        found = space.space(replace(training, pinned={**fixed, **training.pinned}))
    except SettingsError:  # the global batch cannot be shared among so many
        return []
    return [one for one in found if one.loss == "chunked"] or found


def _changes(before: Experiment, after: Experiment) -> str:
    """Return in what a setting differs from another one, as in "FSDP, not compiled, micro-batch 16"."""
    first, then = vars(before), vars(after)
    shared = labels.strategy(then)
    said = [shared] if shared != labels.strategy(first) else []
    said += [
        labels.choice(then, name) for name in CHANGED if first[name] != then[name] and labels.has_effect(then, name)
    ]
    others = (name for name in first if first[name] != then[name])
    return ", ".join(said or (f"{name} {then[name]}" for name in others))


def _assumed(assumed: Sequence[str]) -> Iterator[str]:
    if assumed:
        yield f"Assumed: {'; '.join(assumed)}."


def _title(experiments: Sequence[Experiment]) -> str:
    return tasks(settings_of(experiments))[0].title


def by_task(experiments: Sequence[Experiment]) -> list[tuple[str, list[Experiment]]]:
    """Return the title of each task and its settings, as `dsnb.analysis.tasks` tells tasks apart."""
    found = tasks(settings_of(experiments))
    return [(task.title, [experiments[place] for place in task.runs.index]) for task in found]


def _need(row: "pd.Series[Any]") -> str:
    return f"{row['peak_allocated_gib']:.1f} of {row['peak_allocated_gib'] + row['headroom_gib']:.1f} GiB"


def _limits(best: "pd.Series[Any]") -> Iterator[str]:
    """Yield what a predicted step spends its time with, the largest part first."""
    if best["basis"] != PREDICTED:
        return
    parts = {name: sum(best.get(part, 0.0) for part in of) for name, of in LIMITS.items()}
    shares = {name: round(100 * seconds / best["step_time_s"]) for name, seconds in parts.items()}
    shown = [f"{share} % {name}" for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share]
    yield f"A step takes {significant(best['step_time_s'])} s: {', '.join(shown)}."


def runs_on(runs: pd.DataFrame, spec: gpus.GpuSpec) -> pd.DataFrame:
    """Return the runs on a GPU that tell how fast a setting is, or that it does not fit."""
    known = as_runs(runs)
    known = known.reindex(columns=[*known, *({"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*known})])
    known = known[known["status"].eq("oom") | (known["status"].eq("ok") & known["tokens_per_s"].notna())]
    return known[[known_gpu(name) == spec for name in known["gpu_name"]]]


def of_runs(runs: pd.DataFrame, asked: Iterable[str]) -> pd.DataFrame | None:
    """Return what replaces the predictions of candidates: medians of runs; a setting that only ran out does not fit."""
    names = [recorded(row).name_with_model for row in runs.to_dict("records")]
    known = runs.assign(experiment=names, sweep="").drop(columns=[*MEMORY[1:]], errors="ignore")
    known = known[known["experiment"].isin(list(asked))]
    if known.empty:
        return None
    medians = candidates(known).reindex(known["experiment"].unique())
    is_unstable = medians["is_unstable"].eq(True)
    return medians[["tokens_per_s", "memory_gib"]].assign(
        basis=medians["basis"].astype(object).fillna(MEASURED), is_unstable=is_unstable & ~is_unstable.all(),
        fits=medians["n"].gt(0), peak_allocated_gib=medians["memory_gib"], peak_allocated_error_pct=math.nan,
        tokens_per_s_error_pct=math.nan, outside="",
    )  # fmt: skip


def _how_sure(ranked: pd.DataFrame, asked: Mapping[str, Experiment], question: Question, known: Ratios) -> str:
    """Return how far the second setting is from the first, and whether that is more than the doubt about the pair.

    Of two predicted settings the doubt is the error of predicted ratios, of one it is the error of its own figure.
    """
    pair = ranked.head(2)
    second, amounts = pair.iloc[1], pair[question.column]
    worse = 100 * float(amounts.iloc[1] / amounts.iloc[0] - 1)
    direction = ("slower", "faster") if question.objective == "time" else ("worse", "better")
    difference = f"Next is {second.name} ({second['basis']}), {abs(worse):.1f} % {direction[worse < 0]}"
    predicted = pair[pair["basis"] == PREDICTED]
    if predicted.empty:
        return f"{difference}; both were measured, and 20_compare says whether that is more than noise."
    if len(predicted) == 2 and question.objective != "memory":
        experiments = [asked[str(name)] for name in pair.index]
        doubt_pct, doubt = ratio_errors.doubt(experiments, list(pair["limited_by"] == "CPU"), known)
    else:
        figure = "peak_allocated" if question.objective == "memory" else "tokens_per_s"
        doubt_pct = float(predicted[f"{figure}_error_pct"].max())
        doubt = f"the error of {doubt_pct:.1f} %"
    if abs(worse) > doubt_pct:
        return f"{difference}, more than {doubt}."
    return f"{difference}, within {doubt}: run {' and '.join(map(str, predicted.index))} to decide."
