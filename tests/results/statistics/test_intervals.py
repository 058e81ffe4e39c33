"""Intervals and verdicts: known answers, and how often they err, simulated page by page."""

import math

import numpy as np
import pandas as pd
import pytest

from dsnb.results.statistics import intervals
from dsnb.results.statistics.intervals import Moments, Setting, Verdict, settings_of
from tests.support.noisy_pages import KINDS, against_the_best, noise

RELEVANCE, CONFIDENCE = 0.02, 0.95


def test_welch_by_hand():
    """Means 2 and 5; variances 1 and 4 over 3 and 4 runs: error^2 = 1/3 + 1; df = (4/3)^2 / (1/18 + 1/3) = 4.57."""
    base = Moments(np.array([2.0]), np.array([1.0]), np.array([3.0]))
    other = Moments(np.array([5.0]), np.array([4.0]), np.array([4.0]))
    estimate, error, degrees = intervals.welch(base, other)
    assert (estimate[0], error[0], degrees[0]) == (3, pytest.approx(math.sqrt(4 / 3)), 4)
    bounds = intervals.all_pairs(base, other, 2, CONFIDENCE)
    assert bounds.low[0] == pytest.approx(3 - 2.7764 * math.sqrt(4 / 3), abs=1e-3)
    assert bounds.high[0] == pytest.approx(3 + 2.7764 * math.sqrt(4 / 3), abs=1e-3)
    three = intervals.all_pairs(base, other, 3, CONFIDENCE)
    assert three.high[0] == pytest.approx(
        3 + 5.040 / math.sqrt(2) * math.sqrt(4 / 3), abs=2e-3
    )  # Harter: q(3, 4)


def verdict(estimate, low, high, fewest=5, relevance=RELEVANCE):
    bounds = intervals.Intervals(*(np.log1p(np.array([value])) for value in (estimate, low, high)))
    return intervals.verdicts(bounds, np.array([fewest]), relevance)[0]


def test_a_run_that_is_not_ok_counts_in_no_value():
    statuses = ["ok", "nan", "ok", "ok"]
    rates = [100.0, 900.0, 104.0, None]
    runs = pd.DataFrame({"experiment": "a", "status": statuses, "tokens_per_s": rates})
    setting = settings_of(runs, "experiment", "tokens_per_s")["a"]
    assert np.exp(setting.values) == pytest.approx([100, 104])
    assert setting.median == 102
    assert setting.failed == 1
    assert setting.unusable == 1


def test_a_host_counts_as_the_mean_of_its_runs():
    hosts = ("a", "a", "b", "a")
    setting = Setting(np.array([1.0, 2.0, 4.0, 6.0]), hosts, median=3.0, failed=0, unusable=0)
    assert setting.by_host.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.1, 0.07, 0.13), Verdict.LIKELY),
        ((0.03, -0.001, 0.06), Verdict.UNCLEAR),
        (
            (0.015, 0.005, 0.025),
            Verdict.UNCLEAR,
        ),  # different, but perhaps by less than the relevance
        ((0.015, 0.011, 0.019), Verdict.NO_LARGER),  # different, by less than the relevance
        ((0.0, 0.0, 0.0), Verdict.NO_LARGER),
        ((math.nan, math.nan, math.nan), Verdict.UNCLEAR),
    ],
)
def test_verdicts(interval, expected):
    assert verdict(*interval) == expected
    assert verdict(*interval, fewest=3) == Verdict.TOO_FEW


PAGES = 2000
LIMIT = 0.05 + 3 * math.sqrt(0.05 * 0.95 / PAGES)
"""One page in twenty, and three standard errors of the simulation."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.draws
def test_at_most_one_page_in_20_calls_equal_settings_different(kind):
    """Also below four runs, where no verdict is given by default."""
    for settings, runs in ((2, 2), (2, 4), (2, 5), (8, 2), (8, 4), (8, 5)):
        logs = noise(kind, np.random.default_rng(settings), PAGES, settings, runs)
        if logs.shape[-1] < 2:
            continue
        bounds, others = against_the_best(logs)
        counts = np.full(others.shape, runs)
        likely = intervals.verdicts(bounds, counts, 0.0, fewest_runs=2) == Verdict.LIKELY
        assert float((likely & others).any(-1).mean()) <= LIMIT, (settings, runs)
        assert runs >= 4 or set(intervals.verdicts(bounds, counts, RELEVANCE).flat) == {
            Verdict.TOO_FEW
        }


STUDENT = [(1, 0.05, 12.706), (120, 0.05, 1.980), (3, 0.001, 12.924)]
"""Degrees of freedom, probability and t: Abramowitz and Stegun (1964), table 26.10."""
HARTER = [
    (3, 2, 8.33),
    (3, 10, 3.88),
    (5, 20, 4.23),
    (10, 5, 6.99),
    (10, 120, 4.56),
    (20, 5, 8.21),
    (20, 60, 5.24),
]
"""Groups, degrees of freedom and upper 5 %: Tables of Range and Studentized Range (1960), Ann. Math. Statist. 31."""


def test_the_studentized_range_is_that_of_published_tables():
    for degrees, probability, t in STUDENT:  # of two groups it is Student's t
        assert intervals.quantile(probability, 2, degrees) / math.sqrt(2) == pytest.approx(
            t, rel=3e-4
        )
    for groups, degrees, q in HARTER:
        assert intervals.quantile(0.05, groups, degrees) == pytest.approx(q, abs=0.006)
    for value in (0.1, 5.0, 300.0):  # with one degree of freedom it is Cauchy's distribution
        exact = 1 - 2 / math.pi * math.atan(value / math.sqrt(2))
        assert intervals.exceedance(value, 2, 1) == pytest.approx(exact, rel=2e-3)
    assert (intervals.exceedance(0, 5, 4), intervals.exceedance(math.inf, 5, 4)) == (1, 0)
    assert math.isnan(intervals.exceedance(math.nan, 5, 4))
    assert intervals.exceedance(intervals.quantile(0.05, 300, 6), 300, 6) == pytest.approx(0.05)


def test_the_hosts_of_a_hostfile_are_the_hosts_of_a_run():
    runs = pd.DataFrame({"hosts": ["a,b", None, None], "host": ["a", "c", None]})
    assert intervals.hosts(runs) == ["a,b", "c", None]


def test_equal_values_have_the_degrees_of_freedom_of_both_and_changes_are_ratios():
    base = Moments(np.array([0.0]), np.array([0.0]), np.array([4.0]))
    other = Moments(np.array([0.1]), np.array([0.0]), np.array([5.0]))
    assert intervals.welch(base, other, 1.0)[2] == [4 + 5 - 2]
    bounds = intervals.all_pairs(base, other, 2, CONFIDENCE)
    assert [ends[0] for ends in bounds.changes] == pytest.approx([math.expm1(0.1)] * 3)


@pytest.mark.parametrize("t", [1e-6, 0.001, 0.02, 0.5, 0.71, 3.0])
def test_range_of_two_is_students_t_also_for_equal_means(t):
    # With two degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2).
    expected = 1 - t / math.sqrt(2 + t**2)
    assert intervals.exceedance(math.sqrt(2) * t, 2, 2) == pytest.approx(expected, abs=1e-4)
