"""The distribution beside published tables: Student's t, and the studentized range."""

import math

import pytest

from dsnb.analysis import intervals


@pytest.mark.parametrize(
    ("degrees", "probability", "t"),
    [
        (1, 0.05, 12.706), (2, 0.05, 4.303), (4, 0.05, 2.776), (10, 0.05, 2.228), (120, 0.05, 1.980),
        (1, 0.01, 63.657), (5, 0.01, 4.032), (3, 0.001, 12.924), (30, 0.001, 3.646),
    ],
)  # fmt: skip
def test_two_groups_are_students_t(degrees, probability, t):
    """Abramowitz and Stegun (1964), table 26.10."""
    assert intervals.quantile(probability, 2, degrees) / math.sqrt(2) == pytest.approx(t, rel=3e-4)


@pytest.mark.parametrize(
    ("groups", "degrees", "q"),
    [
        (3, 2, 8.33), (3, 3, 5.91), (3, 10, 3.88), (5, 20, 4.23), (10, 5, 6.99), (10, 120, 4.56),
        (20, 5, 8.21), (20, 20, 5.71), (20, 60, 5.24),
    ],
)  # fmt: skip
def test_upper_five_per_cent(groups, degrees, q):
    """Harter (1960), Tables of Range and Studentized Range, Annals of Mathematical Statistics 31."""
    assert intervals.quantile(0.05, groups, degrees) == pytest.approx(q, abs=0.006)


@pytest.mark.parametrize("value", [0.1, 1.0, 5.0, 300.0])
def test_one_degree_of_freedom_is_cauchys_distribution(value):
    exact = 1 - 2 / math.pi * math.atan(value / math.sqrt(2))
    assert intervals.exceedance(value, 2, 1) == pytest.approx(exact, rel=2e-3)


def test_the_ends():
    assert intervals.exceedance(0, 5, 4) == 1
    assert intervals.exceedance(math.inf, 5, 4) == 0
    assert math.isnan(intervals.exceedance(math.nan, 5, 4))
    assert intervals.exceedance(intervals.quantile(0.05, 300, 6), 300, 6) == pytest.approx(0.05)
    assert intervals.quantile(1e-5, 2, 1) / math.sqrt(2) == pytest.approx(2 / math.pi / 1e-5, rel=1e-3)
