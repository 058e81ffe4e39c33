"""What a plan may be asked for, and the GPUs that a month would need."""

import math

import numpy as np
import pytest

from dsnb.errors import SettingsError
from dsnb.settings import planning


def test_numbers_are_finite_and_whole_numbers_are_integers():
    assert [planning.is_number(value) for value in (1, 2.5, np.float64(3), np.int64(-1))] == [True] * 4
    assert not any(map(planning.is_number, (True, "3", None, math.nan, math.inf, np.bool_(1), [1])))
    assert [planning.is_whole(value) for value in (0, -1, np.int64(8))] == [True] * 3
    assert not any(map(planning.is_whole, (True, 8.0, 1.5, "8", None, math.nan)))


def test_every_value_that_is_not_allowed_is_named():
    planning.check(1e9, {"price": 0}, power_w=None)
    with pytest.raises(SettingsError) as caught:
        planning.check("many", {"prices['A']": math.inf}, power_w=-1)
    assert caught.value.problems == [
        "tokens is 'many': give a finite number of more than 0",
        "prices['A'] is inf: give a finite number of 0 or more",
        "power_w is -1: give a finite number of 0 or more",
    ]


def test_the_gpus_that_finish_in_thirty_days():
    assert planning.gpus_needed(720) == 1  # 30 days of 24 hours
    assert planning.gpus_needed(721) == 2
    assert planning.gpus_needed(1440, days=1) == 60
