"""The best setting of a task in words: its cost, what limits it, the alternatives, and what cannot fit."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.formulas.memory import HALF
from dsnb.base.formulas.planning import MAX_DAYS
from dsnb.base.system import hardware
from dsnb.prediction import gpus, ratio_errors, space
from dsnb.prediction.gpus import NODE_GPUS, known_gpu
from dsnb.prediction.host_memory import USABLE, offloads
from dsnb.prediction.memory import need_gib, peak_memory, room_gib
from dsnb.prediction.predict import on_gpu
from dsnb.prediction.ratio_errors import Ratios
from dsnb.prediction.search import Best, Search
from dsnb.prediction.shapes import shape
from dsnb.prediction.space import Training
from dsnb.prediction.step_time import problem
from dsnb.prediction.traces import traces
from dsnb.results.answers import words
from dsnb.results.answers.decide import (
    CPU,
    MEASURED,
    PREDICTED,
    Question,
    candidates,
    decide,
    tight,
)
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY
from dsnb.results.runs.table import as_runs
from dsnb.results.runs.texts import is_tight, significant, usual_tokens_words
from dsnb.results.statistics.tasks import settings_of, tasks
from dsnb.settings.experiment import Experiment
from dsnb.settings.parallelism import parallelism

USUAL_GPU = "H200"
"""GPU assumed if none is given and this machine has none that dsnb knows."""
USUAL_NETWORK = "ib:400"
"""Link between nodes assumed where `least_gpus` needs several."""
MAX_GPUS = 4096
MAX_TRIED = 20
"""Settings kept for measuring, in addition to those of the table."""
CHANGED = (
    "precision", "mixed_precision", "compile", "activation_checkpointing", "checkpoint_every", "loss", "offload",
    "optimizer", "gpus", "micro_batch_size", "grad_accum",
)  # fmt: skip
"""Settings named where two settings differ, in this order, after the strategy."""
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
"""What can limit a step, and the parts of its time (`dsnb.prediction.step_time.StepTime`)."""


@dataclass(frozen=True)
class Recommendation:
    """The choice among the settings of one task."""

    task: str
    """What is trained, as in "opt-1.3b, sequence 2048"."""
    table: pd.DataFrame
    """Settings with their figures."""
    sentences: tuple[str, ...]
    """What to train with, why, how sure that is, and what would decide it; or why nothing fits."""
    experiments: tuple[Experiment, ...] = field(default=(), repr=False)
    """The settings of the table, then others that fit, in the order in which to try them."""


class Adviser:
    """Answers for one GPU and objective; `assumed` lists what was chosen for the user."""

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
        host_memory: float | None = None,
        device: str = "cuda",
        gpu_memory_gib: float | None = None,
    ) -> None:
        planning.check(1 if tokens is None else tokens, {}, price=price)
        self.assumed: list[str] = []
        here = [card.name for card in hardware.gpus() if known_gpu(card.name)]
        if not gpu:
            gpu = here[0] if here else USUAL_GPU
            unknown = next(
                (f", as {card.name} of this machine is unknown" for card in hardware.gpus()), ""
            )
            self.assumed = [
                f"the GPU of this machine, {gpu}" if here else f"{gpu}{unknown} (--gpu for another)"
            ]
        self.on = on_gpu(gpu, link, calibrate, host_gib=host_memory)
        self.installed = sum(known_gpu(name) == self.on.gpu for name in here)
        """GPUs of this kind on this machine."""
        self._objective, self._currency, self._link = objective, currency, link
        self._tokens, self._price, self._calibrate = tokens, price, calibrate
        self._runs = None if runs is None else runs_on(runs, self.on.gpu)
        self._kind = CPU if device == "cpu" else ""
        is_listed = hardware.peak_tflops(self.on.gpu.name, "fp32") is not None
        self.has_bf16 = not is_listed or hardware.peak_tflops(self.on.gpu.name, "bf16") is not None
        if (
            gpu_memory_gib is not None
        ):  # of the GPU that runs, which may be another one, or a part of one
            memory_gib = min(gpu_memory_gib, self.on.gpu.memory_gib)
            self.on = replace(self.on, gpu=replace(self.on.gpu, memory_gib=memory_gib))

    def check(self, training: Training, any_gpus: bool) -> None:
        """Raise SettingsError with what would be refused after the model is counted; `any_gpus`: of any number."""
        space.check(training)
        nodes = training.pinned.get("nodes", 1)
        if not any_gpus and isinstance(nodes, int):
            self.on.link.check(training.gpus, max(nodes, math.ceil(training.gpus / NODE_GPUS)))

    def predictable(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Return the settings that can be predicted; raise SettingsError with the reasons if none can."""
        problems = [problem(experiment, self.on.gpu.name, self._link) for experiment in experiments]
        if all(problems):
            raise SettingsError(list(dict.fromkeys(problems)))
        return [
            experiment for experiment, why in zip(experiments, problems, strict=True) if not why
        ]

    def among(
        self, asked: Sequence[Experiment], trace_all: bool = False
    ) -> tuple[Recommendation, pd.DataFrame]:
        """Return the best of given settings of one task, and all of them with their figures.

        Memory is traced only where it decides, unless `trace_all`.
        """
        search, best, question = self._search(asked, trace_all=trace_all)
        table = decide(best.table, question).table
        if best.chosen:
            return self._answer(search, best, question, _assumed(self._usual_tokens(asked))), table
        if search.table["fits"].any():
            sentence = "No setting fits: those that were predicted to fit ran out of memory. Use a smaller micro-batch."
        else:
            least = search.table["peak_allocated_gib"].idxmin()
            need = _need(search.table.loc[least], self.on.host_gib)
            sentence = f"No setting fits: the smallest, {least}, needs {need}."
            sentence += f" dsnb recommend {asked[0].model} compares all settings for it."
        return Recommendation(_title(asked), search.table.head(0), (sentence,)), table

    def of_model(self, training: Training, assumed: Sequence[str]) -> Recommendation:
        """Return the best of all settings for a training; with offload if nothing else fits."""
        asked = space.space(training)
        self.predictable(asked[:1])
        search, best, question = self._search(
            asked, [] if self._kind == CPU else _smallest(training)
        )
        offloaded = [] if best.chosen else space.space(training, offloaded=True)
        if offloaded:
            with_offload, best, question = self._search(offloaded)
            if best.chosen or with_offload.table["fits"].notna().any():
                search = with_offload
        reached = list(self._reached(search, training))
        reached += _assumed([*assumed, *self._usual_tokens(asked)])
        if best.chosen:
            return self._answer(search, best, question, reached)
        least = search.table["peak_allocated_gib"].idxmin()
        need = _need(search.table.loc[least], self.on.host_gib)
        sentence = f"No setting fits, offloaded or not: {least} needs {need}."
        return Recommendation(_title(asked), search.table.head(0), (sentence, *reached))

    def _usual_tokens(self, asked: Sequence[Experiment]) -> list[str]:
        """Return the tokens that are assumed, in words; empty if they were given."""
        if self._tokens is not None:
            return []
        is_fine_tuning = all(planning.is_fine_tuning(vars(one)) for one in asked)
        return [usual_tokens_words(shape(asked[0].model).parameters, is_fine_tuning)]

    def smallest(self, training: Training) -> int:
        """Return the smallest power of two of GPUs on which a setting fits; 0 if none does."""
        for number in (2**power for power in range(MAX_GPUS.bit_length())):
            for setting in _smallest(replace(training, gpus=number)):
                left = room_gib(setting, self.on.gpu.memory_gib)
                if (
                    need_gib(setting) <= left
                    and peak_memory(setting, *traces([setting])).gib <= left
                ):
                    return number
        return 0

    def with_network(self, number: int) -> None:
        """Assume a network if this number of GPUs needs several nodes and no link between them is given."""
        if number > NODE_GPUS and not self.on.link.network_gb_per_s:
            network = gpus.link(USUAL_NETWORK).network_gb_per_s
            self.on = replace(self.on, link=replace(self.on.link, network_gb_per_s=network))
            self._link = USUAL_NETWORK
            self.assumed.append(f"{USUAL_NETWORK} between nodes (--link for another)")

    def _search(
        self,
        asked: Sequence[Experiment],
        beside: Sequence[Experiment] = (),
        trace_all: bool = False,
    ) -> tuple[Search, Best, Question]:
        if self._kind == CPU:
            asked = held_by_host(asked)
        by_name = {experiment.name_with_model: experiment for experiment in asked}
        search = Search(by_name, self.on, self._tokens, self._price, self._kind)
        search.beside = list(beside)
        if trace_all:
            search.trace(list(search.asked))
        prices = {} if self._price is None else {"": self._price}
        question = Question(
            search.tokens,
            self._objective,
            prices=prices,
            currency=self._currency,
            max_days=math.inf,
        )
        measured = None if self._runs is None else of_runs(self._runs, search.asked)
        return search, search.best(question, measured), question

    def _answer(
        self, search: Search, result: Best, question: Question, more: Iterable[str]
    ) -> Recommendation:
        ranked, options = result.options.loc[result.chosen], result.options
        best, name = ranked.iloc[0], result.chosen[0]
        experiment, column = search.asked[name], question.column
        table = result.table.loc[result.chosen].assign(
            **ranked[["days", "days_low", "days_high", "gpu_hours"]]
        )
        worse = 100 * (options[column] / best[column] - 1)
        table = table.drop(
            columns=[
                "is_known",
                "is_unstable",
                "gpus",
                "gpu_name",
                "kind",
                "energy_kwh",
                "memory_gib",
                "basis",
            ]
        )
        is_measured = ranked["basis"] != PREDICTED
        table.loc[is_measured, [*itertools.chain(*LIMITS.values()), "step_time_error_pct"]] = (
            math.nan
        )
        steps = [search.asked[chosen].tokens_per_step for chosen in result.chosen]
        table["step_time_s"] = table["step_time_s"].where(
            ~is_measured, steps / ranked["tokens_per_s"]
        )
        table.insert(1, "worse_pct", worse[result.chosen].to_numpy())
        table.insert(2, "basis", ranked["basis"].to_numpy())
        facts = words.figures(best, question) | {
            "what": "Train with",
            "name": labels.setting(vars(experiment)),
        }
        if not pd.isna(best["memory_gib"]):
            room_gib = search.room_gib[list(search.asked).index(name)]
            left = significant(max(0.0, room_gib - best["memory_gib"]))
            facts |= {"room": significant(room_gib), "headroom": left}
        sentences = [words.say("plan", facts), *_limits(best), *self._host_memory(best, experiment)]
        sentences += _tightness(best)
        if best["days"] > MAX_DAYS:
            sentences.append(words.say("too_slow", words.needed_gpus(options, question)))
        if result.tied > 1:
            first = options.index[0]
            faster = f"; {first} is {_by(worse[first], question)}" if first != name else ""
            sentences.append(
                f"It is the simplest of {result.tied} settings that are equal within 2 %{faster}."
            )
        for other, row in ranked.iloc[1:].iterrows():
            need = "" if pd.isna(row["memory_gib"]) else f", {significant(row['memory_gib'])} GiB"
            need += ", memory is tight" if is_tight(row) else ""
            changes = _changes(experiment, search.asked[str(other)])
            sentences.append(f"Alternative: {changes}: {_by(worse[other], question)}{need}.")
        if len(ranked) > 1:
            ratios = ratio_errors.errors_for(self.on.gpu.name, self._link, self._calibrate)
            sentences.append(_how_sure(ranked, search.asked, question, ratios))
        if best["basis"] == PREDICTED and experiment.allocator == "default":
            sentences.append(
                "Its allocator is torch's default: fragmentation can need more memory than is predicted."
            )
        if best["outside"]:
            sentences.append(f"Less certain than stated: {best['outside']}.")
        to_try = [
            search.asked[str(key)]
            for key in dict.fromkeys([*result.chosen, *options.index[:MAX_TRIED]])
        ]
        return Recommendation(
            _title(to_try[:1]), table.reset_index(drop=True), (*sentences, *more), tuple(to_try)
        )

    def _host_memory(self, best: "pd.Series[Any]", experiment: Experiment) -> Iterator[str]:
        """Yield the host memory that offload needs, and what the host has, if that is known."""
        if not offloads(experiment):
            return
        each_node = " on each node" if self.on.link.nodes(experiment) > 1 else ""
        if math.isnan(best["host_memory_gib"]):
            yield "Host memory is needed, too; how much is not predicted for offload to NVMe."
            return
        need = f"Host memory: offload needs {significant(best['host_memory_gib'])} GiB{each_node}"
        if math.isnan(self.on.host_gib):
            yield f"{need}; whether there is as much is unknown (--host-memory GIB)."
            return
        has_gib = self.on.host_gib
        lack = "" if best["host_memory_gib"] <= USABLE * has_gib else ", which is too little"
        yield f"{need}, and a host has {significant(has_gib)} GiB{lack}."

    def _reached(self, search: Search, training: Training) -> Iterator[str]:
        """Yield which ways of sharing cannot fit, and the smallest power of two of GPUs that does."""
        if self._kind == CPU:
            return
        needs = [
            f"{parallelism(vars(search.asked[name]))} needs at least {need:.0f} of {room:.0f} GiB"
            for name, need, room in search.out_of_reach()
        ]
        if needs:
            yield f"Out of reach: {', '.join(needs)}."
        if least := self.smallest(training):
            yield f"The smallest power of two of GPUs that fits without offload is {least}."


def held_by_host(asked: Sequence[Experiment]) -> list[Experiment]:
    """Return the settings whose CPU ranks are likely to fit into this machine's memory, by formulas alone.

    If none is likely to, return those that may; if none can, raise SettingsError: runs would take minutes to fail.
    """
    available = hardware.available_memory_gib()
    for is_likely in (True, False):
        needs = [one.gpus * need_gib(one, likely=is_likely) for one in asked]
        held = [one for one, need in zip(asked, needs, strict=True) if need <= available]
        if held:
            return held
    least = min(needs)
    smallest = asked[needs.index(least)]
    ranks = labels.count(smallest.gpus, "CPU rank")
    raise SettingsError(
        f"{smallest.model} needs at least {significant(least)} GiB of host memory on {ranks} (by {smallest.name}), and "
        f"this machine has {significant(available)} GiB free: measure a smaller model, or predict without measure"
    )


def _smallest(training: Training) -> list[Experiment]:
    """Return the settings without offload that need least: a sequence at a time, every block recomputed."""
    fixed: dict[str, Any] = {
        "strategy": "deepspeed",
        "tensor_parallel": 1,
        "micro_batch_size": 1,
        "compile": "off",
    }
    fixed |= {"activation_checkpointing": True, "checkpoint_every": 1}
    fixed |= {"mixed_precision": "native"} if training.precision in HALF else {}
    try:
        settings = space.space(replace(training, pinned={**fixed, **training.pinned}))
    except SettingsError:  # the global batch cannot be shared among these GPUs
        return []
    return [experiment for experiment in settings if experiment.loss == "chunked"] or settings


def _changes(before: Experiment, after: Experiment) -> str:
    """Return how a setting differs from another one, as in "FSDP, not compiled, micro-batch 16"."""
    first, then = vars(before), vars(after)
    shared = parallelism(then)
    changes = [shared] if shared != parallelism(first) else []
    changes += [
        labels.choice(then, name)
        for name in CHANGED
        if first[name] != then[name] and labels.has_effect(then, name)
    ]
    others = (name for name in first if first[name] != then[name])
    return ", ".join(changes or (f"{name} {then[name]}" for name in others))


def _title(experiments: Sequence[Experiment]) -> str:
    return tasks(settings_of(experiments))[0].title


def by_task(experiments: Sequence[Experiment]) -> list[tuple[str, list[Experiment]]]:
    """Return the title of each task and its settings (`dsnb.results.statistics.tasks`)."""
    return [
        (task.title, [experiments[place] for place in task.runs.index])
        for task in tasks(settings_of(experiments))
    ]


def _assumed(what: Sequence[str]) -> list[str]:
    """Return the sentence on what was assumed; none if nothing was."""
    return [f"Assumed: {'; '.join(what)}."] if what else []


def _need(row: "pd.Series[Any]", host_gib: float) -> str:
    need = f"{row['peak_allocated_gib']:.1f} of {row['peak_allocated_gib'] + row['headroom_gib']:.1f} GiB"
    if row["host_memory_gib"] > USABLE * host_gib:
        need += f", and {significant(row['host_memory_gib'])} of {significant(host_gib)} GiB of host memory"
    return need


def _tightness(best: "pd.Series[Any]") -> Iterator[str]:
    """Yield that the speed of a setting is not promised if the GPU has no room for what torch reserves."""
    if is_tight(best):
        room = best["peak_allocated_gib"] + best["headroom_gib"]
        yield (
            f"Memory is tight: torch would reserve {best['peak_reserved_gib']:.1f} of {room:.1f} GiB, so that it may "
            "return memory in every step. The speed is not promised: measure it first."
        )


def _limits(best: "pd.Series[Any]") -> Iterator[str]:
    """Yield what a predicted step spends its time on, the largest part first."""
    if best["basis"] != PREDICTED:
        return
    parts = {name: sum(best.get(part, 0.0) for part in of) for name, of in LIMITS.items()}
    shares = {name: round(100 * seconds / best["step_time_s"]) for name, seconds in parts.items()}
    shown = [
        f"{share} % {name}"
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
        if share
    ]
    yield f"A step takes {significant(best['step_time_s'])} s: {', '.join(shown)}."


def runs_on(runs: pd.DataFrame, spec: gpus.GpuSpec) -> pd.DataFrame:
    """Return the runs on a GPU that succeeded with a known speed, or ran out of memory."""
    runs = as_runs(runs)
    runs = runs.reindex(
        columns=[*runs, *({"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*runs})]
    )
    runs = runs[runs["status"].eq("oom") | (runs["status"].eq("ok") & runs["tokens_per_s"].notna())]
    return runs[[known_gpu(name) == spec for name in runs["gpu_name"]]]


def of_runs(runs: pd.DataFrame, asked: Iterable[str]) -> pd.DataFrame | None:
    """Return measured medians in place of predictions; a setting whose runs all ran out of memory does not fit."""
    names = [Experiment.of_row(row).name_with_model for row in runs.to_dict("records")]
    named = runs.assign(experiment=names, sweep="").drop(columns=[*MEMORY[1:]], errors="ignore")
    named = named[named["experiment"].isin(list(asked))]
    if named.empty:
        return None
    medians = candidates(named).reindex(named["experiment"].unique())
    is_unstable = medians["is_unstable"].eq(True)
    return medians[["tokens_per_s", "memory_gib"]].assign(
        is_known=True, basis=medians["basis"].astype(object).fillna(MEASURED),
        is_unstable=is_unstable & ~is_unstable.all(),
        fits=medians["n"].gt(0), peak_allocated_gib=medians["memory_gib"], peak_allocated_error_pct=math.nan,
        peak_reserved_gib=math.nan, peak_reserved_error_pct=math.nan, tight=False, tokens_per_s_error_pct=math.nan,
        outside="",
    )  # fmt: skip


def _by(worse_pct: float, question: Question) -> str:
    """Return by how much a setting is worse than another one, as in "5.7 % slower"."""
    if abs(worse_pct) < 0.05:
        return "equal"
    direction = ("slower", "faster") if question.objective == "time" else ("worse", "better")
    return f"{abs(worse_pct):.1f} % {direction[int(worse_pct < 0)]}"


def _how_sure(
    ranked: pd.DataFrame, asked: Mapping[str, Experiment], question: Question, ratios: Ratios
) -> str:
    """Return how far the second setting is from the first, and whether the error of predictions is larger.

    For two predicted settings that is the error of predicted ratios, for one the error of its figure.
    """
    pair = ranked.head(2)
    second, amounts = pair.iloc[1], pair[question.column]
    worse = 100 * float(amounts.iloc[1] / amounts.iloc[0] - 1)
    difference = f"Runner-up: {second.name} ({second['basis']}), {_by(worse, question)}"
    predicted = pair[pair["basis"] == PREDICTED]
    if question.objective != "memory" and tight(predicted).any():
        names = " and ".join(map(str, predicted.index[tight(predicted)]))
        return f"{difference}; memory is tight for {names}: run {' and '.join(map(str, predicted.index))} to decide."
    if predicted.empty:
        return f"{difference}; both were measured, and 20_compare shows whether the difference exceeds noise."
    if len(predicted) == 2 and question.objective != "memory":
        experiments = [asked[str(name)] for name in pair.index]
        doubt_pct, doubt = ratio_errors.doubt(
            experiments, list(pair["limited_by"] == "CPU"), ratios
        )
    else:
        figure = "peak_allocated" if question.objective == "memory" else "tokens_per_s"
        doubt_pct = float(predicted[f"{figure}_error_pct"].max())
        doubt = f"the error of {doubt_pct:.1f} %"
    if abs(worse) > doubt_pct:
        return f"{difference}, more than {doubt}."
    return f"{difference}, within {doubt}: run {' and '.join(map(str, predicted.index))} to decide."
