"""How often verdicts err: pages of settings that are equal in truth, and pages on which one is 10 % faster.

`python -m benchmarks.verdict_errors` prints the tables of docs/explanation/statistics.md; about a
minute on one core.
"""

import math

import numpy as np

from dsnb.results.statistics import intervals
from dsnb.results.statistics.intervals import Verdict
from tests.support.noisy_pages import KINDS, against_the_best, noise

PAGES = 20_000


def errors_pct(kind: str, settings: int, runs: int) -> float:
    """Return the share of pages on which an interval excludes equality, in per cent."""
    random, wrong, chunk = np.random.default_rng(7), 0, 2000
    for _ in range(PAGES // chunk):
        logs = noise(kind, random, chunk, settings, runs)
        if logs.shape[-1] < 2:
            return math.nan
        bounds, others = against_the_best(logs)
        excludes_zero = (bounds.low > 0) | (bounds.high < 0)
        wrong += int((excludes_zero & others).any(-1).sum())
    return 100 * wrong / PAGES


def found_pct(settings: int, runs: int, noise_pct: float, fewest_runs: int) -> float:
    """Return how many comparisons with a setting that is 10 % faster than all others are `likely`, in per cent."""
    logs = noise_pct / 100 * np.random.default_rng(8).standard_normal((5000, settings, runs))
    logs[:, 0] += math.log(1.1)
    bounds, others = against_the_best(logs)
    likely = (
        intervals.verdicts(bounds, np.full(others.shape, runs), 0.02, fewest_runs) == Verdict.LIKELY
    )
    return 100 * float(likely[others].mean())


def main() -> None:
    """Print both tables."""
    for kind in [*KINDS, "unknown shared hosts"]:
        for settings in (2, 5, 20):
            rates = [f"{errors_pct(kind, settings, runs):.1f}" for runs in (2, 3, 4, 5, 6)]
            print(f"| {kind} | {settings} | {' | '.join(rates)} |", flush=True)
    for noise_pct in (2.0, 5.0):
        for settings in (2, 5, 8, 20):
            rates = [
                f"{found_pct(settings, runs, noise_pct, 2):.1f}" for runs in (2, 3, 4, 5, 6, 8, 10)
            ]
            print(f"| {noise_pct:g} % | {settings} | {' | '.join(rates)} |", flush=True)


if __name__ == "__main__":
    main()
