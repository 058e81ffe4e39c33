"""Which settings a params file describes: its grid, less what is excluded, and what is included."""

import pytest

from dsnb.base.errors import SettingsError
from dsnb.settings.params_file import combinations, validated


def described(*names, **fields):
    """Return these settings of every experiment of a file."""
    file = validated({"name": "some", **fields}, "some.yaml")
    return [tuple(settings.get(name) for name in names) for settings in combinations(file)]


def test_a_grid_is_multiplied_in_order_and_replaces_defaults():
    fields = {
        "defaults": {"gpus": 8, "zero_stage": 3},
        "grid": {"zero_stage": [0, 1], "seed": [5, 6]},
    }
    assert described("gpus", "zero_stage", "seed", **fields) == [
        (8, 0, 5),
        (8, 0, 6),
        (8, 1, 5),
        (8, 1, 6),
    ]


def test_without_a_grid_there_is_one_experiment_unless_others_are_included():
    assert described("zero_stage", defaults={"zero_stage": 2}) == [(2,)]
    included = [{"zero_stage": 1}, {"zero_stage": [2, 3]}]
    assert described("zero_stage", include=included) == [(1,), (2,), (3,)]


def test_an_excluded_entry_has_all_its_values_and_what_is_included_stays():
    """Stage 1 is excluded with 8 sequences only, which is the default; the included one stays."""
    fields = {
        "grid": {"zero_stage": [0, 1], "micro_batch_size": [4, 8]},
        "exclude": [{"zero_stage": 1, "micro_batch_size": 8}],
        "include": [{"zero_stage": 1, "micro_batch_size": 8}],
    }
    stages = described("zero_stage", "micro_batch_size", **fields)
    assert stages == [(0, 4), (0, 8), (1, 4), (1, 8)]
    by_default = {"grid": {"zero_stage": [0, 1]}, "exclude": fields["exclude"]}
    assert described("zero_stage", **by_default) == [(0,)]


def test_repeats_count_in_the_number_of_runs():
    grid = {"seed": list(range(101))}
    assert len(described("seed", grid=grid, repeats=99)) == 101  # 9,999 runs
    with pytest.raises(SettingsError, match=r"^grid: 10,100 runs: at most 10,000 are allowed"):
        described("seed", grid=grid, repeats=100)


def test_the_order_is_random_unless_it_is_said():
    assert validated({"name": "some"}, "some.yaml").order == "random"
