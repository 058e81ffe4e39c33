"""How well few runs predict the rest of a model's settings in another loop: `python -m benchmarks.loop_factor`.

The step times of the published H200 runs (eager, bf16, without LoRA, tensor parallelism and
offload) are changed as another loop would change them. Some settings of a model calibrate, and the
others of that model are predicted: without runs, with one factor, with the fit of all constants,
and with what `dsnb.prediction.loop` takes. The constants were fitted to such runs, so the errors
without runs are flattering where nothing is changed.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

import dsnb
from dsnb.prediction.calibration import Measured, calibrate, measured
from dsnb.prediction.loop import of_runs, slowed
from dsnb.prediction.step_time import DEFAULT, Constants, step_times

LEAST_SETTINGS = 10
"""Settings of a model, at least."""
DRAWS = 3
NUMBERS = (1, 3, 6)
LOOPS = {
    "unchanged": (1.0, 0.0),
    "x 1.15": (1.15, 0.0),
    "x 1.15 + 3 ms": (1.15, 0.003),
    "x 1.4 + 5 ms": (1.4, 0.005),
}
"""A loop -> the factor of its step, and the seconds that each micro-batch takes longer."""
WAYS: dict[str, Callable[[Sequence[Measured]], Constants]] = {
    "factor": slowed,
    "fit": calibrate,
    "taken": lambda runs: of_runs(runs).constants,
}


def eligible() -> list[Measured]:
    """Return each setting that another loop is made of, with the median of its runs."""
    found: dict[str, list[Measured]] = {}
    for run in measured(dsnb.published("h200")):
        one = run.experiment
        is_plain = one.compile == "off" and one.precision == "bf16" and not one.lora_rank
        is_whole = one.tensor_parallel * one.pipeline_parallel == 1 and one.offload == "none"
        if is_plain and is_whole:
            found.setdefault(one.name_with_model, []).append(run)
    medians = []
    for runs in found.values():
        middle = statistics.median_low(run.step_time_s for run in runs)
        medians += [run for run in runs if run.step_time_s == middle][:1]
    return medians


def by_model(runs: Sequence[Measured]) -> list[list[Measured]]:
    """Return the runs of each model that has enough settings."""
    groups: dict[str, list[Measured]] = {}
    for run in runs:
        groups.setdefault(run.experiment.model, []).append(run)
    return [group for group in groups.values() if len(group) >= LEAST_SETTINGS]


def changed(run: Measured, times: float, more_s: float) -> Measured:
    """Return a run as another loop would take it."""
    step_time_s = times * run.step_time_s + more_s * run.experiment.grad_accum
    return replace(run, step_time_s=step_time_s, loop="another loop")


def error_pct(runs: Sequence[Measured], constants: Constants) -> float:
    """Return the mean error of predicted step times as a factor, in per cent."""
    predicted_s = np.asarray(step_times([run.counts for run in runs], constants).step_time_s)
    measured_s = np.array([run.step_time_s for run in runs])
    return 100 * math.expm1(float(np.abs(np.log(predicted_s / measured_s)).mean()))


def errors(groups: Sequence[Sequence[Measured]], number: int, seed: int = 0) -> dict[str, float]:
    """Return the mean error of each way with a number of runs of each model."""
    generator = np.random.default_rng(seed)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for group in groups:
        for _ in range(DRAWS):
            order = generator.permutation(len(group))
            known = [group[place] for place in order[:number]]
            rest = [group[place] for place in order[number:]]
            for way, constants in WAYS.items():
                found[way].append(error_pct(rest, constants(known)))
    return {way: float(np.mean(values)) for way, values in found.items()}


def main() -> None:
    """Print the table."""
    groups = by_model(eligible())
    print(f"{sum(map(len, groups))} settings of {len(groups)} models; mean errors in %")
    print(f"{'loop':14} {'no run':>7}", *(f"{n} runs: {' / '.join(WAYS):>22}" for n in NUMBERS))
    for name, (times, more_s) in LOOPS.items():
        as_loop = [[changed(run, times, more_s) for run in group] for group in groups]
        cells = [f"{np.mean([error_pct(group, DEFAULT) for group in as_loop]):7.1f}"]
        for number in NUMBERS:
            found = errors(as_loop, number)
            cells.append(" / ".join(f"{value:.1f}" for value in found.values()).rjust(30))
        print(f"{name:14}", *cells)


if __name__ == "__main__":
    main()
