"""Measured runs beside their predictions, and the ranges of predicted speeds: `python -m benchmarks.ranges`.

It writes `dsnb/prediction/measured_runs.csv`, where predictions look for the nearest run, and the
tables `ranges` of `dsnb/prediction/tuned.toml`; then it prints how many settings are within their
range. Run it after constants have changed, after `python -m benchmarks.outside --fit`.

Ranges of dsnb's own runs are those of settings that nothing was fitted to. Those of other programs
are weighted quantiles of the errors on a GPU, drawn towards those of all GPUs where few sources
measured it, and widened until they cover 80 % of the rows of sources that were left out
(conformalized quantile regression, Romano et al. 2019, arXiv:1905.03222). GPUs without a row are
widened until they cover the rows of GPUs that were left out.
"""

import csv
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import dsnb
from benchmarks import new_settings, trainers, tuning
from benchmarks.outside import rows as outside_rows
from benchmarks.prediction_errors import PUBLISHED, UNSEEN, median_runs
from dsnb.base.formulas import metrics
from dsnb.base.system import gpu_names
from dsnb.prediction import accuracy, calibration, gpus, nearest, speed_range
from dsnb.prediction.calibration import Measured, limited_by_cpu
from dsnb.prediction.gpus import GpuSpec
from dsnb.prediction.nearest import MeasuredRun
from dsnb.prediction.predict import flops_per_token
from dsnb.prediction.shapes import shape
from dsnb.prediction.speed_range import COVERED, OTHER_GPUS
from dsnb.prediction.step_time import (
    ATTENTION_GAINS,
    StepCounts,
    count_step,
    stack,
    step_times,
)
from dsnb.settings.experiment import Experiment

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Ends = NDArray[np.float64]
Range = tuple[int, int, float, float]
OwnRange = tuple[int, float]
FIELDS = (
    "source", "is_own", "nodes", "tokens_per_s", "predicted", "by_sheet", "mfu", "arithmetic", "is_checked", "kinds",
)  # fmt: skip
OWN = ("h200", "h100", "h200_archive", "h200_gpt2_zero_precision", "h200_memory")
CHECKED_TABLES = ("h200", "h100")
PUBLISHERS = {
    "lambda_1cc_opt": "Lambda",
    "bigscience_1b3": "BigScience",
    "jean_zay_bloom7b": "Jean Zay",
    "dist_training_gpt2": "dist-training",
}
"""Who measured the published tables, as a nearest run says it."""
MIN_SETTINGS = 5
"""Settings of a kind of dsnb's own runs, and of the best MFU of a GPU, below which a wider one is taken."""
LOW = (1 - COVERED) / 2
SHRINKAGE = 1.0
"""Sources of the wider group that those of a narrower one are weighed against."""
ROOT = 0.25
"""A source counts as much as its number of rows to the power 3/4, so that one with a hundred does not decide alone."""
FAR = math.log(2)
"""A source whose median error is larger was limited by something that no prediction knows, such as its network."""


class Coverage(NamedTuple):
    """How many measured runs are within the range of their prediction."""

    runs: int
    share: float
    median_pct: float
    """Median of the larger sides of their ranges."""


def own_runs() -> Iterator[MeasuredRun]:
    """Yield the settings that dsnb measured, each with the median of its runs, predicted for a usual host."""
    for name in OWN:
        table = (
            dsnb.published(name).query("status == 'ok'").drop(columns="launch_us", errors="ignore")
        )
        for is_unseen in (True, False):
            part = table[table["sweep"].isin(UNSEEN) == is_unseen]
            measured = median_runs(part) if len(part) else []
            yield from _of_dsnb(name, measured, is_unseen or name == "h100")


def further_runs() -> Iterator[MeasuredRun]:
    """Yield settings of dsnb that are in no data set: those of `new_settings` and of `trainers`."""
    yield from _of_dsnb("new_settings", median_runs(new_settings.known()), is_unseen=False)
    of_setting: dict[tuple[str, str], list[float]] = defaultdict(list)
    runs: dict[tuple[str, str], trainers.Run] = {}
    for record in trainers.read(trainers.RESULTS):
        if record["way"] != "dsnb" or record["status"] != "ok":
            continue
        setting = (record["gpu"], record["settings"] + record["name"])
        of_setting[setting].append(record["tokens_per_s"])
        runs[setting] = trainers.Run.of(record)
    for setting, rates in of_setting.items():
        run = runs[setting]
        same = trainers.training_of(run).model_dump(exclude_unset=True)
        experiment = Experiment(**{**trainers.recommended(run.task.model), **same})
        gpu = gpus.find(setting[0])
        counts = count_step(experiment, gpu, gpus.link("nvlink"))
        step_s = experiment.tokens_per_step / statistics.median(rates)
        beside = measured_run("trainers", experiment, gpu, 1, step_s, counts)
        yield beside._replace(is_own=True, is_checked=False)


def _of_dsnb(name: str, measured: Sequence[Measured], is_unseen: bool) -> Iterator[MeasuredRun]:
    if not measured:
        return
    counts = [run.counts for run in measured]
    limits = limited_by_cpu(stack(counts)).tolist()
    for run, by_cpu in zip(measured, limits, strict=True):
        experiment = run.experiment
        gpu = gpus.find(run.gpu_name)
        is_left_out = not accuracy.is_fitted(shape(experiment.model).family)
        beside = measured_run(name, experiment, gpu, 1, run.step_time_s, run.counts)
        is_checked = name in CHECKED_TABLES and (is_unseen or is_left_out)
        kinds = speed_range.own_kinds(experiment, gpu.name, by_cpu, 1)
        yield beside._replace(is_own=True, is_checked=is_checked, kinds=tuple(kinds))


def published_runs() -> Iterator[MeasuredRun]:
    """Yield the settings that others published, each predicted with what is known of its program."""
    for name, link in PUBLISHED.items():
        if name in OWN:
            continue
        for run in calibration.measured(dsnb.published(name), link):
            nodes = gpus.link(link).nodes(run.experiment)
            gpu = gpus.find(run.gpu_name)
            publisher = PUBLISHERS[name]
            yield measured_run(publisher, run.experiment, gpu, nodes, run.step_time_s, run.counts)
    for row in outside_rows.read():
        experiment = row.experiment
        if experiment is None or not row.published.get("tps"):
            continue
        nodes = gpus.link(row.published["link"]).nodes(experiment)
        step_s = experiment.tokens_per_step / (row.published["tps"] * experiment.gpus)
        gpu = gpus.find(row.gpu)
        project = "/".join(row.source.split()[0].split("/")[:2])
        beside = measured_run(project, experiment, gpu, nodes, step_s, row.counts())
        yield beside._replace(model=str(row.published["model"]))


def measured_runs() -> list[MeasuredRun]:
    """Return every setting that was measured beside its prediction."""
    return [*own_runs(), *further_runs(), *published_runs()]


def measured_run(
    source: str,
    experiment: Experiment,
    gpu: GpuSpec,
    nodes: int,
    step_time_s: float,
    counts: StepCounts,
) -> MeasuredRun:
    """Return a published setting of another program beside its prediction."""
    traits, numbers = nearest.features(experiment, gpu, nodes)
    tokens_per_s = experiment.tokens_per_step / step_time_s
    both = step_times([counts, by_sheet(counts, gpu)])
    predicted_s, by_sheet_s = np.asarray(both.step_time_s).tolist()
    per_gpu = metrics.tflops(flops_per_token(experiment), tokens_per_s / experiment.gpus)
    kinds = [f"{gpu.name}, {speed_range.place_of(nodes)}"]
    if experiment.offload != "none":
        kinds = [accuracy.kind(experiment)]
    return MeasuredRun(
        source=source,
        is_own=False,
        gpu=gpu.name,
        nodes=nodes,
        model=traits["model"],
        traits=traits,
        numbers=numbers,
        tokens_per_s=tokens_per_s,
        predicted=experiment.tokens_per_step / predicted_s,
        by_sheet=experiment.tokens_per_step / by_sheet_s,
        mfu=metrics.mfu(per_gpu, gpu.peak_flops(experiment.precision) / 1e12) or 0.0,
        is_checked=True,
        arithmetic=speed_range.arithmetic(experiment),
        kinds=tuple(kinds),
    )


def by_sheet(counts: StepCounts, gpu: GpuSpec) -> StepCounts:
    """Return the counts on a GPU that is taken to reach as much of its data sheet as H200."""
    (attention_gain,) = ATTENTION_GAINS.get(gpu.name, [1.0])
    return replace(
        counts,
        peak_flops=counts.peak_flops / gpu.product_gain,
        attention_flops_per_s=counts.attention_flops_per_s / (gpu.product_gain * attention_gain),
        memory_bytes_per_s=counts.memory_bytes_per_s / gpu.memory_gain,
    )


def write_runs(runs: Sequence[MeasuredRun]) -> None:
    """Write the table of measured runs."""
    with open(nearest.FILE, "w", encoding="utf-8", newline="") as file:
        names = [*FIELDS, *nearest.TRAITS, *nearest.NUMBERS]
        names = list(dict.fromkeys(names))
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for run in runs:
            row: dict[str, Any] = {**run.traits, **run.numbers, **run._asdict()}
            row["is_own"] = int(run.is_own)
            row["is_checked"] = int(run.is_checked)
            row["kinds"] = nearest.BETWEEN_KINDS.join(run.kinds)
            written = {}
            for name in names:
                value = row[name]
                written[name] = f"{value:.6g}" if isinstance(value, float) else value
            writer.writerow(written)


def own_ranges(runs: Sequence[MeasuredRun]) -> dict[str, OwnRange]:
    """Return the settings and the range of each kind of dsnb's own runs that were checked."""
    logs: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.is_own and run.is_checked:
            for kind in run.kinds:
                logs[kind].append(run.log_error)
    found = {}
    for kind in sorted(logs):
        if len(logs[kind]) >= MIN_SETTINGS:
            found[kind] = (len(logs[kind]), speed_range.half_width_pct(logs[kind]))
    return found


class Others:
    """Errors of the published settings of other programs, without those whose host decides."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        kept = [run for run in runs if not run.is_own and run.traits["offload"] == "no offload"]
        self.logs = np.array([run.log_error for run in kept])
        self.by_sheet = np.log([run.tokens_per_s / run.by_sheet for run in kept])
        self.sources = np.array([run.source for run in kept])
        self.gpus = np.array([run.gpu for run in kept])
        self.chips = np.array([gpu_names.words(run.gpu)[0] for run in kept])
        self.places = np.array([speed_range.place_of(run.nodes) for run in kept])
        sizes = Counter(self.sources.tolist())
        self.weights = np.array([sizes[source] ** -ROOT for source in self.sources.tolist()])
        self.usual = np.ones(len(kept), dtype=bool)
        for source in sizes:
            of_source = self.sources == source
            self.usual[of_source] = abs(float(np.median(self.logs[of_source]))) < FAR

    def ends(self, gpu: str, place: str, known: Mask) -> Ends:
        """Return the logarithms of both ends of the range on a GPU in a place, by the known rows."""
        known = known & self.usual
        of_gpu = known & (self.gpus == gpu)
        of_place = known & (self.places == place)
        ends = self._quantiles(self.logs, known)
        for group in (of_place, of_gpu, of_gpu & of_place):
            if group.any():
                weight = self._sources(group) * min(1.0, group.sum() / MIN_SETTINGS)
                share = weight / (weight + SHRINKAGE)
                ends = ends + share * (self._quantiles(self.logs, group) - ends)
        return ends

    def ends_by_sheet(self, place: str, known: Mask) -> Ends:
        """Return both ends on a GPU that was not measured, by what the data sheets of others predict."""
        known = known & self.usual
        return self._quantiles(self.by_sheet, known & (self.places == place))

    def _quantiles(self, logs: Array, group: Mask) -> Ends:
        order = np.argsort(logs[group])
        weights = self.weights[group][order]
        middle = (np.cumsum(weights) - weights / 2) / weights.sum()
        return np.interp([LOW, 1 - LOW], middle, logs[group][order])

    def _sources(self, rows: Mask) -> int:
        return len(set(self.sources[rows & self.usual].tolist()))

    def margin(self) -> float:
        """Return by how many of their widths ranges change to cover the rows of sources that were left out."""
        missed = []
        for row in np.flatnonzero(self.usual):
            known = self.sources != self.sources[row]
            if self._sources(known & (self.gpus == self.gpus[row])):
                ends = self.ends(self.gpus[row], self.places[row], known)
                missed.append(_missed(self.logs[row], ends))
        return _covering(missed)

    def margin_by_sheet(self) -> float:
        """Return the same of GPUs that were left out."""
        missed = []
        for row in np.flatnonzero(self.usual):
            ends = self.ends_by_sheet(self.places[row], self.chips != self.chips[row])
            missed.append(_missed(self.by_sheet[row], ends))
        return _covering(missed)

    def ranges(self) -> dict[str, Range]:
        """Return the settings, sources and both ends in per cent by GPU and place, and for GPUs without a row.

        A GPU that one source measured has the margin of GPUs that were left out.
        """
        everything = np.ones(len(self.logs), dtype=bool)
        of_sources, of_chips = self.margin(), self.margin_by_sheet()
        found = {}
        for gpu in sorted(set(self.gpus.tolist())):
            of_gpu = self.gpus == gpu
            margin = of_sources
            if self._sources(of_gpu) < 2:
                margin = max(of_sources, of_chips)
            for place in sorted(set(self.places[of_gpu].tolist())):
                ends = self.ends(gpu, place, everything)
                rows = of_gpu & (self.places == place)
                found[f"{gpu}, {place}"] = self._range(rows, ends, margin)
        for place in (speed_range.ONE_NODE, speed_range.SEVERAL_NODES):
            ends = self.ends_by_sheet(place, everything)
            found[f"{OTHER_GPUS}, {place}"] = self._range(self.places == place, ends, of_chips)
        return found

    def _range(self, rows: Mask, ends: Ends, margin: float) -> Range:
        """Return a widened range; it includes the predicted speed."""
        wider = margin * (ends[1] - ends[0])
        low = min(0.0, round(100 * math.expm1(ends[0] - wider), 1))
        high = max(0.0, round(100 * math.expm1(ends[1] + wider), 1))
        return int(rows.sum()), len(set(self.sources[rows].tolist())), low, high


def _missed(log: float, ends: Ends) -> float:
    """Return how far a row is outside of its range, in widths of it, below 0 if inside."""
    return float(max(ends[0] - log, log - ends[1]) / (ends[1] - ends[0]))


def _covering(missed: Sequence[float]) -> float:
    """Return the margin that covers `COVERED` of the rows (split conformal prediction); none narrows a range."""
    place = math.ceil(COVERED * (len(missed) + 1)) - 1
    return max(0.0, sorted(missed)[min(place, len(missed) - 1)])


def best_mfu(runs: Sequence[MeasuredRun]) -> dict[str, tuple[int, float]]:
    """Return the settings and the best MFU of each GPU and arithmetic, and of all GPUs."""
    shares: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for gpu in (run.gpu, OTHER_GPUS):
            shares[f"{gpu}, {run.arithmetic}"].append(run.mfu)
    found = {}
    for name in sorted(shares):
        if len(shares[name]) >= MIN_SETTINGS:
            found[name] = (len(shares[name]), round(max(shares[name]), 3))
    return found


def coverage(
    runs: Sequence[MeasuredRun], own: Mapping[str, OwnRange], others: Mapping[str, Range]
) -> Coverage:
    """Return the number of runs, the share within the range of their prediction, and the median error."""
    within = []
    errors_pct = []
    for run in runs:
        kinds = [kind for kind in run.kinds if kind in own]
        if kinds:
            factor = 1 + own[kinds[0]][1] / 100
            low, high = 1 / factor, factor
        else:
            place = speed_range.place_of(run.nodes)
            row = others.get(f"{run.gpu}, {place}", others[f"{OTHER_GPUS}, {place}"])
            low, high = 1 + row[2] / 100, 1 + row[3] / 100
        within.append(low <= math.exp(run.log_error) <= high)
        errors_pct.append(100 * (max(high, 1 / low) - 1))
    return Coverage(len(runs), float(np.mean(within)), float(np.median(errors_pct)))


def main() -> None:
    """Write the runs and the ranges, and print which share of the runs is within them."""
    runs = measured_runs()
    write_runs(runs)
    own, others = own_ranges(runs), Others(runs).ranges()
    tuning.write_rows("ranges.own", own)
    tuning.write_rows("ranges.others", others)
    tuning.write_rows("ranges.best_mfu", best_mfu(runs))
    checked = [run for run in runs if run.is_checked]
    for name, is_own in (("dsnb", True), ("other programs", False)):
        found = coverage([run for run in checked if run.is_own == is_own], own, others)
        share = f"{100 * found.share:.0f} % of {found.runs} settings are within their range"
        print(f"{name}: {share}, whose median is {found.median_pct:.1f} %")


if __name__ == "__main__":
    main()
