"""Intervals and verdicts: known answers, and how often they err, simulated page by page."""

import math

import numpy as np
import pytest

from dsnb.analysis import intervals
from dsnb.analysis.intervals import Moments, Verdict
from tests.support.noisy_pages import KINDS, against_the_best, moments, noise

RELEVANCE, CONFIDENCE = 0.02, 0.95


def test_welch_by_hand():
    """Means 2 and 5; variances 1 and 4 over 3 and 4 runs: error^2 = 1/3 + 1; df = (4/3)^2 / (1/18 + 1/3) = 4.57."""
    base = Moments(np.array([2.0]), np.array([1.0]), np.array([3.0]))
    other = Moments(np.array([5.0]), np.array([4.0]), np.array([4.0]))
    found = intervals.welch(base, other)
    assert (found.estimate[0], found.error[0], found.degrees[0]) == (3, pytest.approx(math.sqrt(4 / 3)), 4)
    bounds = intervals.all_pairs(base, other, 2, CONFIDENCE)
    assert bounds.low[0] == pytest.approx(3 - 2.7764 * math.sqrt(4 / 3), abs=1e-3)
    assert bounds.high[0] == pytest.approx(3 + 2.7764 * math.sqrt(4 / 3), abs=1e-3)
    three = intervals.all_pairs(base, other, 3, CONFIDENCE)
    assert three.high[0] == pytest.approx(3 + 5.040 / math.sqrt(2) * math.sqrt(4 / 3), abs=2e-3)  # Harter: q(3, 4)


def verdict(estimate, low, high, fewest=5, relevance=RELEVANCE):
    bounds = intervals.Intervals(*(np.log1p(np.array([value])) for value in (estimate, low, high)))
    return intervals.verdicts(bounds, np.array([fewest]), relevance)[0]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.1, 0.07, 0.13), Verdict.LIKELY),
        ((-0.1, -0.13, -0.07), Verdict.LIKELY),
        ((0.03, 0.001, 0.06), Verdict.LIKELY),
        ((0.03, -0.001, 0.06), Verdict.UNCLEAR),
        ((0.015, 0.005, 0.025), Verdict.UNCLEAR),  # different, but perhaps by less than matters
        ((0.015, 0.011, 0.019), Verdict.NO_LARGER),  # different, and by less than matters
        ((0.001, -0.015, 0.019), Verdict.NO_LARGER),
        ((0.0, -0.021, 0.019), Verdict.UNCLEAR),
        ((0.0, 0.0, 0.0), Verdict.NO_LARGER),
        ((math.nan, math.nan, math.nan), Verdict.UNCLEAR),
    ],
)
def test_verdicts(interval, expected):
    assert verdict(*interval) == expected
    assert verdict(*interval, fewest=3) == Verdict.TOO_FEW


def test_four_is_the_fewest_for_which_a_rank_test_reaches_five_per_cent():
    assert [2 / math.comb(2 * n, n) <= 0.05 for n in (3, 4)] == [False, True]
    assert intervals.MIN_RUNS == 4


def test_equal_runs_have_an_interval_without_width():
    same, less = Moments(np.ones(1), np.zeros(1), np.full(1, 4.0)), Moments(np.zeros(1), np.zeros(1), np.full(1, 4.0))
    bounds = intervals.all_pairs(same, less, 2, CONFIDENCE)
    assert (bounds.low[0], bounds.high[0]) == (-1, -1)
    assert intervals.all_pairs_p(same, less, 2) == [0]
    assert intervals.all_pairs_p(same, same, 2) == [1]
    assert intervals.verdicts(intervals.all_pairs(same, same, 2, CONFIDENCE), same.count, 0) == [Verdict.NO_LARGER]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [2, 5, 20])
@pytest.mark.draws
def test_at_most_one_page_in_20_calls_equal_settings_different(kind, settings):
    """Also below four runs, where no verdict is given by default. Margin: three standard errors of the simulation."""
    random, pages = np.random.default_rng(settings), 6000 if settings < 20 else 2500
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
    for runs in (2, 3, 4, 5, 6):
        logs = noise(kind, random, pages, settings, runs)
        if logs.shape[-1] < 2:
            continue
        bounds, others = against_the_best(logs)
        likely = intervals.verdicts(bounds, np.full(others.shape, runs), 0.0, fewest_runs=2) == Verdict.LIKELY
        rate = float((likely & others).any(-1).mean())
        assert rate <= limit, (runs, rate)
        given = intervals.verdicts(bounds, np.full(others.shape, runs), RELEVANCE)
        assert runs >= 4 or set(given.flat) == {Verdict.TOO_FEW}


@pytest.mark.parametrize("settings", [2, 8])
@pytest.mark.draws
def test_a_table_of_changes_in_two_figures_errs_on_at_most_one_page_in_20(settings):
    """As `effects` and the explorer: speed and memory share the error rate, and speed chooses the base of both."""
    random, pages = np.random.default_rng(5), 3000
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
    for runs in (2, 3, 4, 5, 6):
        speed, memory = (noise(kind, random, pages, settings, runs) for kind in ("normal", "0.5 to 5 %"))
        share = 1 - (1 - CONFIDENCE) / 2
        bounds, others = against_the_best(speed, share)
        every, best = moments(memory), np.median(speed, axis=-1).argmax(-1)[:, None]
        base = Moments(*(np.take_along_axis(each, best, 1) for each in (every.mean, every.variance, every.count)))
        found = [bounds, intervals.all_pairs(base, every, settings, share)]
        wrong = np.logical_or(*(each.excludes_zero & others for each in found)).any(-1)
        assert wrong.mean() <= limit, runs
        counts = np.full(others.shape, runs)
        likely = [intervals.verdicts(each, counts, RELEVANCE) == Verdict.LIKELY for each in found]
        assert (np.logical_or(*likely) & others).any(-1).mean() <= (limit if runs >= 4 else 0)


@pytest.mark.parametrize(("settings", "runs", "least"), [(2, 4, 0.99), (2, 5, 0.99), (8, 5, 0.97), (20, 5, 0.88)])
@pytest.mark.draws
def test_a_difference_of_ten_per_cent_is_found(settings, runs, least):
    """At 2 % noise, in nine of ten comparisons at five runs."""
    logs = 0.02 * np.random.default_rng(0).standard_normal((3000, settings, runs))
    logs[:, 0] += math.log(1.1)
    bounds, others = against_the_best(logs)
    likely = intervals.verdicts(bounds, np.full(others.shape, runs), RELEVANCE) == Verdict.LIKELY
    assert likely[others].mean() >= least


@pytest.mark.parametrize("spread", [0.002, 0.005, 0.02])
def test_all_intervals_of_a_page_hold_and_no_difference_is_denied(spread):
    """Settings that differ by about 2 %: nineteen of twenty pages cover, and deny no difference that there is."""
    random, pages = np.random.default_rng(1), 4000
    truth = 0.02 * random.standard_normal((pages, 8, 1))
    logs = truth + spread * random.standard_normal((pages, 8, 5))
    bounds, _ = against_the_best(logs)
    best = np.median(logs, axis=-1).argmax(-1)[:, None]
    actual = truth[..., 0] - np.take_along_axis(truth[..., 0], best, 1)
    holds = (bounds.low <= actual) & (actual <= bounds.high)
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
    assert (~holds).any(-1).mean() <= limit
    denied = intervals.verdicts(bounds, np.full(actual.shape, 5), RELEVANCE) == Verdict.NO_LARGER
    assert (denied & (np.abs(np.expm1(actual)) > RELEVANCE)).any(-1).mean() <= limit


@pytest.mark.parametrize(("settings", "spread"), [(2, 0.005), (8, 0.003)])
@pytest.mark.draws
def test_equality_is_found_where_noise_is_small(settings, spread):
    bounds, others = against_the_best(spread * np.random.default_rng(3).standard_normal((2000, settings, 5)))
    found = intervals.verdicts(bounds, np.full(others.shape, 5), RELEVANCE) == Verdict.NO_LARGER
    assert found[others].mean() > 0.9


@pytest.mark.parametrize("settings", [1, 8])
@pytest.mark.draws
def test_settings_before_and_after_err_on_at_most_one_page_in_20(settings):
    """As `dsnb.compare`: each setting before and after, half of them 5 % faster after, all with 1 % noise."""
    random, pages = np.random.default_rng(2), 2000
    changed = np.arange(settings) % 2 * 0.05
    logs = 0.01 * random.standard_normal((2, pages, settings, 5))
    before, after = moments(logs[0]), moments(logs[1] + changed[:, None])
    bounds = intervals.all_pairs(before, after, 2 * settings, CONFIDENCE)
    likely = intervals.verdicts(bounds, np.full((pages, settings), 5), 0.0) == Verdict.LIKELY
    wrong = likely[:, changed == 0].any(-1).mean()
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
    assert settings == 1 or likely[:, changed > 0].mean() > 0.6


def test_two_figures_share_the_error_rate():
    assert intervals.of_one_figure(0.95) == pytest.approx(0.975)


def test_a_difference_of_percentages_by_hand():
    """Means 50 and 60; variances 8 and 8 over 4 runs: error 2, 6 degrees of freedom, t(6, 97.5 %) = 2.4469."""
    base = Moments(np.array([50.0]), np.array([8.0]), np.array([4.0]))
    other = Moments(np.array([60.0]), np.array([8.0]), np.array([4.0]))
    bounds = intervals.all_pairs(base, other, 2, CONFIDENCE)
    on_level = intervals.Intervals(bounds.estimate, bounds.low, bounds.high, level=base.mean)
    assert [one[0] for one in on_level.changes] == pytest.approx(
        [10 / 50, (10 - 2 * 2.4469) / 50, (10 + 2 * 2.4469) / 50], abs=1e-5
    )
    assert intervals.verdicts(on_level, np.array([4]), 0.02) == [Verdict.LIKELY]
    assert intervals.verdicts(on_level, np.array([4]), 0.3) == [Verdict.NO_LARGER]  # 30 % of 50 are 15 points
    idle = intervals.Intervals(bounds.estimate, bounds.low, bounds.high, level=np.zeros(1))
    assert np.isnan(idle.changes[0]).all()  # nothing is relative to 0


@pytest.mark.parametrize("settings", [2, 8])
@pytest.mark.parametrize(("low", "high"), [(40, 60), (90, 99)])
@pytest.mark.draws
def test_intervals_of_percentages_cover_the_true_difference(settings, low, high):
    """Beta-distributed shares, as utilization is, with known means: 3 points of noise, less of it near 100; 5 runs."""
    random, pages = np.random.default_rng(7), 3000
    truth = random.uniform(low, high, (pages, settings, 1))
    mean, noise_of = truth / 100, 0.03 * np.minimum(1, (100 - truth) / 5)
    size = mean * (1 - mean) / noise_of**2 - 1  # of a beta distribution with this mean and standard deviation
    shares = 100 * random.beta(mean * size, (1 - mean) * size, (pages, settings, 5))
    bounds, _ = against_the_best(shares)
    best = np.median(shares, axis=-1).argmax(-1)[:, None]
    actual = truth[..., 0] - np.take_along_axis(truth[..., 0], best, 1)
    missed = ((bounds.low > actual) | (bounds.high < actual)).any(-1)
    assert missed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pages)
