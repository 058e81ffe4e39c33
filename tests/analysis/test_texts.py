"""Numbers as text, rounded once."""

import math

import pytest

from dsnb.analysis.texts import fill, fixed, significant
from dsnb.runs.labels import span


def test_three_digits_count_or_all_before_the_point():
    numbers = {0: "0", 0.045678: "0.0457", 1.905: "1.91", 26: "26", 99.96: "100", 408_529.4: "408,529"}
    assert {value: significant(value) for value in numbers} == numbers


def test_a_half_is_rounded_up_and_only_an_exact_one_is_a_half():
    assert [fixed(value, 2) for value in (0.125, 0.375, 1.005, 26.975)] == ["0.13", "0.38", "1.00", "26.98"]
    assert fixed(1234567.5, 0) == "1,234,568"
    assert significant(2.5, 1) == "3"


def test_a_range_has_as_many_digits_as_it_supports():
    ranges = {
        (31.2, 56.4): "30 to 60", (8.1, 16.1): "8 to 17", (12.312, 12.441): "12.31 to 12.45", (0.4, 12): "0.4 to 12.0",
        (16193, 16193): "16,193", (math.nan, math.nan): "", (1234, 9876): "1,000 to 10,000", (5.0, 5.0): "5",
    }  # fmt: skip
    assert {ends: span(*ends) for ends in ranges} == ranges


@pytest.mark.parametrize(
    ("template", "facts", "text"),
    [
        ("Train [{model} ]on {place}.", {"model": "", "place": "1 GPU"}, "Train on 1 GPU."),
        ("Train [{model} ]on {place}.", {"model": "gpt2"}, ""),
        ("[{a}[ of {b}] GiB]", {"a": 1}, "1 GiB"),
        ("{n} {n:setting is|settings are} out", {"n": 1}, "1 setting is out"),
        ("{name}", {"name": "[{other}]"}, "[{other}]"),  # what is filled in is no template
    ],
)
def test_a_template_leaves_out_what_is_unknown(template, facts, text):
    assert fill(template, facts) == text
