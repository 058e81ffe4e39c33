"""How wrong predicted step times of models are that the constants were not fitted to.

`python -m benchmarks.prediction_errors` prints the error of each setting, predicted from those of
other models. The measured rows: `dsnb.published("h200_gpt2_zero_precision")`, `("h200_memory")` and
`("h200")`, `benchmarks/h200_bars.csv`, and `benchmarks/h200_log.csv`, which holds the tables of
docs/LOG.md since 2026-11-21 whose code is still the one that runs. Its argument can be

* `memory`: the errors of peak memory, written to `dsnb/prediction/tuned.toml`; models are traced
  first, for a minute
* `others`: the table of these errors beside those of other estimates
* `elsewhere`: the errors on published tables of other GPUs, predicted with the constants of H200
* `launches`: those of settings that the CPU limits, with the launch time of each, of its host, and
  the usual one
* `probes`: those of the same kind of runs with and without the probe of their host
* `calibrated`: those of sweeps with constants fitted to other models' runs on the same host
* `fit`: the constants that fit all rows but those held out, for the median host, written to the
  same file
* `held-out`: the errors of these constants on the rows held out
* `unseen`: the errors on rows that were predicted before they were measured, written to
  `dsnb/prediction/tuned.toml`; no constant is fitted to them, but later rules were chosen with them
  in view
"""

import itertools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dsnb
from benchmarks import bars, other_estimates, tuning
from benchmarks.contributed import fits, tree
from benchmarks.other_estimates import Peak
from dsnb.prediction import gpus, probed, tuned
from dsnb.prediction.accuracy import (
    ALL,
    MIN_SETTINGS,
    Coverage,
    PredictionError,
    by_kind,
    expected_error,
    grouped,
    is_fitted,
    kind,
    kinds,
    kinds_elsewhere,
)
from dsnb.prediction.calibration import Measured, calibrate, left_out, limited_by_cpu, measured
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import DEFAULT, Constants, parts, stack, step_times
from dsnb.prediction.traces import traces
from dsnb.settings.experiment import Experiment

PRIOR = Constants(*tuned.column("constants", "prior"))
"""What is known before any run is fitted: single measurements of docs/LOG.md, and what is usual."""
HERE = Path(__file__).parent
H200 = "NVIDIA H200"
MEASURED = ("experiment", "step_time_mean_s", "peak_allocated_gib")
OLDER_CODE = {"opt-1.3b_zs0_bf16_gpus2_bs8_sl1024_ga2_pp2"}
"""A run whose code has changed since: the loss of a pipeline copied its logits."""
HELD_OUT = "2026-11-24"
"""The day of runs that the constants are not fitted to: they tell how wrong these are on new hosts
and models."""
REPEATED = "2026-11-2[67]"
"""Days of runs that repeat settings with torch's other allocator, which have one prediction, or
came after the fit."""
UNSEEN = (
    "h200_foretold", *(f"h200_drawn_{number}" for number in (1, 2, 3, 8, 9, 10, 11, 12)), "h200_four_gpus",
    "h200_grid_gemma", "h200_grid_pythia", "h200_grid_qwen3", "h200_edges", "h200_zeropp", "h200_today",
)  # fmt: skip
"""Sweeps of settings that were chosen or drawn before anything like them was measured
(`benchmarks.drawn`)."""

PUBLISHED = {
    "lambda_1cc_opt": "ib:400",
    "bigscience_1b3": "ib:100",
    "jean_zay_bloom7b": "ib:100/node",
    "dist_training_gpt2": "nvlink",
    "h100": "nvlink",
}
"""Tables of H100, V100, A100, H100 NVL and H100 again, and how their GPUs were connected."""
H100 = "NVIDIA H100 80GB HBM3"
PROBES = {
    "h100-2026-11-25-a": {"launch_us": 38.6, "parameter_us": 154.0, "gather_us": 508.0},
    "h100-2026-11-25-b": {"launch_us": 33.8, "parameter_us": 159.0, "gather_us": 691.0},
    "h100-2026-11-25-c": {"launch_us": 21.99, "parameter_us": 104.3, "gather_us": 356.0},
    "h100-2026-11-25-d": {"launch_us": 25.67, "parameter_us": 138.3, "gather_us": 418.4},
    "h100-2026-11-26-a": {"launch_us": 39.92, "parameter_us": 150.6, "gather_us": 717.8},
    "h100-2026-11-26-d": {"launch_us": 25.21, "parameter_us": 110.5, "gather_us": 322.7},
    "h100-2026-11-26-f": {"launch_us": 32.66, "parameter_us": 114.8, "gather_us": 553.0},
    "h200-2026-11-26-n": {"launch_us": 37.03, "parameter_us": 165.8, "gather_us": 639.1},
    "h200-2026-11-26-o": {"launch_us": 34.2, "parameter_us": 100.8, "gather_us": 663.9},
    "h200-2026-11-26-p": {"launch_us": 38.79, "parameter_us": 131.9, "gather_us": 711.0},
    "h200-2026-11-27-q": {"launch_us": 27.11, "parameter_us": 129.8, "gather_us": 309.2},
}
"""What `dsnb probe` measured of hosts of both data sets, without rates of GPUs. Their medians are
the usual figures."""
MICRO_BATCHES = 5
"""The fewest timed micro-batches of a run of the data set whose time counts."""


def h200_runs(with_held_out: bool = True) -> list[Measured]:
    """Return every measured run on H200 of this repository, medians where repeats were kept one by one.

    Parameters
    ----------
    with_held_out
        Whether runs on hosts of `HELD_OUT` are among them.
    """
    settled = steady()
    if not with_held_out:
        settled = settled[~_are_held_out(settled)]
    tables = [dsnb.published(name) for name in ("h200_gpt2_zero_precision", "h200_memory")]
    tables = [table[table["offload"].fillna("none") == "none"] for table in [*tables, settled]]
    return [*(run for table in tables for run in median_runs(table)),
            *measured(_bars()), *measured(_log())]  # fmt: skip


def fitted_runs() -> list[Measured]:
    """Return the runs that constants are fitted to: those not held out, and contributed ones from two hosts on."""
    usable = fits.for_fits(tree.load(), H200)
    usable = usable[usable["offload"] == "none"]
    return [*h200_runs(with_held_out=False), *median_runs(usable)]


def steady() -> pd.DataFrame:
    """Return the runs of the data set that were made to measure time: three steps after two are still settling.

    Runs that longer ones have replaced are among them: the constants were fitted to them. Those
    that compare torch's two allocators are left out (on one GPU they ran two at a time), and those
    of `REPEATED`.
    """
    runs = pd.concat([dsnb.published(name) for name in ("h200", "h200_archive")], ignore_index=True)
    beside = runs["note"].astype(str).str.contains("at the same time|one CPU thread")
    settled = runs["timed_steps"] * runs["grad_accum"] >= MICRO_BATCHES
    beside |= (runs["sweep"] == "h200_allocator") | runs["host"].str.contains(REPEATED)
    return runs[
        (runs["status"] == "ok") & settled & ~beside & (runs["gradient_compression"] != "powersgd")
    ]


def median_runs(runs: pd.DataFrame) -> list[Measured]:
    """Return a run for each setting of a table, that of its median step time, without those of `in_fp8`."""
    if "matmul" in runs:
        runs = runs[runs["matmul"] != "fp8"]
    fastest_first = runs.sort_values("step_time_mean_s")
    middle = [
        group.iloc[(len(group) - 1) // 2]
        for _, group in fastest_first.groupby(["model", "experiment"], sort=False)
    ]
    return measured(pd.DataFrame(middle))


def _bars() -> pd.DataFrame:
    experiments = {
        f"{work}/{bar.name}": bar for work in bars.WORKS for bar in bars.experiments(work)
    }
    table = pd.read_csv(HERE / "h200_bars.csv").rename(
        columns=lambda name: name.removesuffix("_median")
    )
    rows = [{**experiments[row["experiment"]].model_dump(), **{name: row[name] for name in MEASURED}, "gpu_name": H200}
            for row in table.to_dict("records")]  # fmt: skip
    return pd.DataFrame(rows)


def _log() -> pd.DataFrame:
    table = pd.read_csv(HERE / "h200_log.csv", keep_default_na=False)
    return table.assign(
        gpu_name=H200, precision="bf16", tokens_per_s=table["tokens_per_s_per_gpu"] * table["gpus"]
    )


def _are_held_out(runs: pd.DataFrame) -> "pd.Series[bool]":
    return runs["host"].str.contains(HELD_OUT)


def held_out() -> dict[str, PredictionError]:
    """Return the errors of the constants on the runs held out, sweep by sweep."""
    runs = steady()
    runs = runs[_are_held_out(runs)]
    return {
        str(sweep): PredictionError.of(errors_of(median_runs(table)))
        for sweep, table in runs.groupby("sweep")
    }


def unseen() -> tuple[list[Measured], list[float]]:
    """Return the runs of `UNSEEN` and the error of each predicted step time in per cent.

    Runs that shared a host with another one count: users' runs share theirs, too.
    """
    table = dsnb.published("h200")
    runs = median_runs(table[table["sweep"].isin(UNSEEN) & (table["status"] == "ok")])
    return runs, errors_of(runs)


def confirmed() -> list[str]:
    """Return a row for each sweep of `UNSEEN`: the error that its settings would be given by the others, and theirs.

    The first is the geometric mean of what `expected_error` says of each setting.
    """
    table = dsnb.published("h200")
    sweeps = {
        name: median_runs(table[(table["sweep"] == name) & (table["status"] == "ok")])
        for name in UNSEEN
    }
    rows = []
    for name, runs in sweeps.items():
        others = [run for other, of_sweep in sweeps.items() if other != name for run in of_sweep]
        errors = by_kind(others, errors_of(others))
        limits = limited_by_cpu(stack([run.counts for run in runs]))
        names = [
            kinds(run.experiment, bool(by_cpu)) for run, by_cpu in zip(runs, limits, strict=True)
        ]
        expected = np.expm1(
            np.mean(
                [np.log1p(expected_error(of_run, errors)[1].mean_pct / 100) for of_run in names]
            )
        )
        error = PredictionError.of(errors_of(runs))
        rows += [
            f"| {name} | {error.settings} | {100 * expected:.1f} | {error.mean_pct:.1f} | {error.worst_pct:.1f} |"
        ]
    return rows


def elsewhere() -> tuple[dict[str, PredictionError], dict[str, PredictionError]]:
    """Return the errors on GPUs that the constants were not fitted to: by published table, and by GPU and nodes."""
    tables = {name: measured(dsnb.published(name), link) for name, link in PUBLISHED.items()}
    errors = {name: errors_of(runs) for name, runs in tables.items()}
    by_table = {name: PredictionError.of(of_table) for name, of_table in errors.items()}
    every_kind = [
        [
            *kinds_elsewhere(
                run.experiment,
                gpus.find(run.gpu_name).name,
                gpus.link(PUBLISHED[name]).nodes(run.experiment),
            )
        ]
        for name, runs in tables.items()
        for run in runs
    ]
    return by_table, grouped(every_kind, [*itertools.chain(*errors.values())])


def in_fp8() -> list[Measured]:
    """Return the runs with products in fp8, which are in no other error: two settings on H200."""
    runs = dsnb.published("h200")
    return measured(runs[runs["matmul"] == "fp8"])


def of_left_out_families() -> list[Measured]:
    """Return the runs on H200 and H100 of families that the constants were not fitted to, without offload."""
    tables = [dsnb.published(name).query("status == 'ok'") for name in ("h200", "h100")]
    return [
        run
        for table in tables
        for run in median_runs(table)
        if not is_fitted(shape(run.experiment.model).family) and run.experiment.offload == "none"
    ]


def by_launch_time() -> list[tuple[str, PredictionError, PredictionError, PredictionError]]:
    """Return the errors of settings that the CPU limits, with the launch time of each run, of its host, and the usual.

    The host's is the median of its runs with other settings. The settings are those of H200 of
    `UNSEEN`, those drawn for H100, and both.
    """
    found: dict[str, list[list[float]]] = {}
    for name, sweeps in (("h200", "|".join(f"^{sweep}$" for sweep in UNSEEN)), ("h100", "drawn")):
        every_run = dsnb.published(name).query("status == 'ok'").dropna(subset="launch_us")
        table = every_run[every_run["sweep"].str.contains(sweeps)]
        of_others = [
            _launch_us_beside(every_run, *key) for key in table[["host", "experiment"]].to_numpy()
        ]
        tables = (table, table.assign(launch_us=of_others), table.drop(columns="launch_us"))
        of_each = [median_runs(of_time) for of_time in tables]
        limited = np.flatnonzero(limited_by_cpu(stack([run.counts for run in of_each[0]]))).tolist()
        found[name] = [[errors_of(runs)[place] for place in limited] for runs in of_each]
    found["both"] = [list(itertools.chain(*errors)) for errors in zip(*found.values(), strict=True)]
    return [(name, *map(PredictionError.of, errors)) for name, errors in found.items()]  # type: ignore[misc]


def _launch_us_beside(runs: pd.DataFrame, host: str, experiment: str) -> float:
    """Return the median launch time of a host's runs with other settings; that of the usual host if it has none."""
    others = runs[(runs["host"] == host) & (runs["experiment"] != experiment)]["launch_us"]
    return float(others.median()) if len(others) else usual_launch_us()


def by_probe() -> list[str]:
    """Return the table of `docs/how-to/probe.md`: errors of runs that the CPU limits, with their host's probe."""
    rows = [
        "| host | runs | without a probe | with it | a launch in runs over the probe's |",
        "|---|---|---|---|---|",
    ]
    tables = {name: dsnb.published(name).query("status == 'ok'") for name in ("h100", "h200")}
    for host, probe in PROBES.items():
        table = tables[host.partition("-")[0]]
        of_host = table[table["host"] == host]
        runs = median_runs(of_host.drop(columns="launch_us"))
        adjusted = probed.adjusted(
            DEFAULT, probed.ratios({"gpu_name": H100, "figures": probe}, probed.REFERENCE)
        )
        settings = stack([run.counts for run in runs])
        limited, times_s = limited_by_cpu(settings, adjusted), [run.step_time_s for run in runs]
        of_both = (
            100 * (np.asarray(parts(settings, each).step_time_s) / times_s - 1)
            for each in (DEFAULT, adjusted)
        )
        usual, with_probe = (
            PredictionError.of(errors[limited].tolist()).mean_pct for errors in of_both
        )
        in_runs = of_host["launch_us"].median() / probe["launch_us"]
        words = f"{in_runs:.2f}" if in_runs > 0 else "not recorded"
        rows.append(
            f"| `{host}` | {limited.sum()} | {usual:.0f} % | {with_probe:.0f} % | {words} |"
        )
    return rows


def by_calibration() -> dict[str, tuple[PredictionError, PredictionError]]:
    """Return the errors of four sweeps, with constants fitted to other models' runs on their host, and without."""
    errors = {}
    for name, sweep in (("h100", "h100_predicted"), *(("h200", name) for name in UNSEEN[1:])):
        table = dsnb.published(name).query("status == 'ok'")
        runs = median_runs(table[table["sweep"] == sweep])
        on_host = median_runs(table[table["host"].isin(table.loc[table["sweep"] == sweep, "host"])])
        fitted = []
        for run in runs:
            others = [other for other in on_host if other.experiment.model != run.experiment.model]
            step_time_s = float(step_times([run.counts], calibrate(others)).step_time_s[0])
            fitted.append(100 * (step_time_s / run.step_time_s - 1))
        errors[sweep] = PredictionError.of(fitted), PredictionError.of(errors_of(runs))
    return errors


def usual_launch_us() -> float:
    """Return the launch time of the median host: that of each host is the median of its runs."""
    tables = [dsnb.published(name).dropna(subset="launch_us") for name in ("h100", "h200")]
    return float(pd.concat(tables).groupby("host")["launch_us"].median().median())


def errors_of(runs: list[Measured]) -> list[float]:
    """Return the error of each run in per cent, predicted with the constants of H200."""
    predicted_s = step_times([run.counts for run in runs]).step_time_s
    return [
        100 * (float(seconds) / run.step_time_s - 1)
        for seconds, run in zip(predicted_s, runs, strict=True)
    ]


def peaks() -> list[Peak]:
    """Return every measured peak of memory on H200 and H100 of this repository beside its prediction."""
    tables = [
        dsnb.published(name) for name in ("h200_gpt2_zero_precision", "h200_memory", "h200", "h100")
    ] + [_bars()]
    rows = [
        row
        for table in tables
        for row in table.drop_duplicates(["model", "experiment"]).to_dict("records")
    ]
    rows = [
        row
        for row in rows
        if row.get("status", "ok") == "ok" and row["experiment"] not in OLDER_CODE
    ]
    rows = [row for row in rows if row.get("matmul") != "fp8"]  # two settings, judged by a test
    experiments = [_as_measured(row) for row in rows]
    predicted = map(peak_memory, experiments, traces(experiments))
    return [
        Peak(experiment, memory.gib, row["peak_allocated_gib"])
        for experiment, memory, row in zip(experiments, predicted, rows, strict=True)
    ]


def by_kind_of_peak(peaks: list[Peak]) -> dict[str, PredictionError]:
    """Return the errors of predicted peaks by kind of setting, and of all of them."""
    return of_peaks(peaks, [kind(peak.experiment) for peak in peaks], ALL)


def of_peaks(peaks: list[Peak], names: list[str], of_all: str) -> dict[str, PredictionError]:
    """Return the errors of predicted peaks by a name for each, and of all of them."""
    groups: dict[str, list[float]] = {name: [] for name in sorted(set(names))}
    for peak, name in zip(peaks, names, strict=True):
        groups[name].append(abs(peak.error_pct))
    groups[of_all] = [abs(peak.error_pct) for peak in peaks]
    return {
        name: PredictionError(
            len(errors), round(sum(errors) / len(errors), 2), round(max(errors), 2)
        )
        for name, errors in groups.items()
    }


def _as_measured(row: dict[str, Any]) -> Experiment:
    """Return the settings of a row, which was accumulated in bf16 where accumulation in fp32 was not yet a setting."""
    settings = Experiment.of_row(row)
    native = (
        settings.strategy == "deepspeed"
        and settings.precision == "bf16"
        and settings.mixed_precision == "native"
    )
    older = {"grad_accum_dtype": "bf16"} if native and "grad_accum_dtype" not in row else {}
    return settings.model_copy(update={"device": "cuda", **older})


def lines(errors: dict[str, PredictionError]) -> list[str]:
    """Return the table of docs/explanation/prediction.md that says how large errors are, by kind of setting."""
    return [
        f"| {name} | {error.settings} | {error.mean_pct:.1f} | {error.worst_pct:.1f} | {error.bias_pct:+.1f} |"
        for name, error in errors.items()
    ]


def write_errors(table: str, errors: dict[str, PredictionError]) -> None:
    """Print a table of errors, and write it without kinds of too few settings."""
    print("\n".join(lines(errors)))
    enough = {name: error for name, error in errors.items() if error.settings >= MIN_SETTINGS}
    tuning.write_rows(f"errors.{table}", enough)


def compare_estimates() -> None:
    """Print the table of other estimates of memory."""
    measured_peaks = peaks()
    traced = traces([peak.experiment for peak in measured_peaks])
    print("\n".join(other_estimates.lines(measured_peaks, traced)))


def write_peaks() -> None:
    """Print the error of each peak of memory, and write those by kind."""
    measured_peaks = peaks()
    for peak in sorted(measured_peaks, key=lambda peak: peak.error_pct):
        name = peak.experiment.name_with_model
        print(f"{name}: {peak.allocated_gib:.2f} GiB measured, {peak.error_pct:+.2f} %")
    by_name = {name: error[:3] for name, error in by_kind_of_peak(measured_peaks).items()}
    tuning.write_rows("errors.peaks", by_name)


def write_elsewhere() -> None:
    """Print the errors on published tables, and write those by GPU and nodes."""
    by_table, by_gpu_and_nodes = elsewhere()
    print("\n".join(lines(by_table)))
    write_errors("elsewhere", by_gpu_and_nodes)


def write_unseen() -> None:
    """Print and write the errors on rows that were predicted before they were measured."""
    write_errors("times", by_kind(*unseen()))
    print("\n".join(confirmed()))


def write_fit() -> None:
    """Fit the constants for the median host, and write them with what they cover."""
    runs = fitted_runs()
    fitted = calibrate(runs, PRIOR)
    constants = fitted.on_host(usual_launch_us() / fitted.host_launch_us)
    digits = {name: float(f"{value:.3g}") for name, value in asdict(constants).items()}
    tuning.write_values("constants", digits)
    tuning.write_setting("constants", "settings", len(runs))
    covered = Coverage.of(runs, gpus.link())
    names = {words: sorted(found) for words, found in covered.names.items()}
    tuning.write_rows("covered.names", names)
    tuning.write_rows("covered.ranges", covered.ranges)


def print_each() -> None:
    """Print the error of each run and those by kind."""
    runs = h200_runs()
    errors = left_out(runs, PRIOR)
    for run, error in sorted(zip(runs, errors, strict=True), key=lambda pair: pair[1]):
        name = run.experiment.name_with_model
        print(f"{name}: {1e3 * run.step_time_s:.1f} ms measured, {error:+.1f} %")
    print("\n".join(lines(by_kind(runs, errors))))


COMMANDS = {
    "others": compare_estimates,
    "memory": write_peaks,
    "elsewhere": write_elsewhere,
    "calibrated": lambda: print(*by_calibration().items(), sep="\n"),
    "probes": lambda: print("\n".join(by_probe())),
    "launches": lambda: print(*by_launch_time(), sep="\n"),
    "unseen": write_unseen,
    "held-out": lambda: print("\n".join(lines(held_out()))),
    "fit": write_fit,
}


def main() -> None:
    """Run the command of the argument; without one, print the error of each run and those by kind."""
    command = COMMANDS[sys.argv[1]] if sys.argv[1:] else print_each
    command()


if __name__ == "__main__":
    main()
