"""The lines of a recommendation: no one contradicts another, and bad news are one sentence."""

import pytest

from dsnb.prediction import brief
from dsnb.prediction.search import SearchResult
from tests.prediction.made_up import given, searching, trace_nothing

STAGES = [given(zero_stage=stage, gpus=8) for stage in (0, 1, 3)]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def lines(search, result=None, **options):
    result = result or search.best()
    return {one.role: one for one in brief.lines(search, result, **options)}


def alternatives(search):
    found = brief.lines(search, search.best())
    return [one.cells[1:] for one in found if one.role == "alternative"]


def test_a_faster_alternative_within_two_percent_counts_as_equal_and_is_less_simple():
    search = searching(STAGES, [100.0, 101.0, 80.0])
    first, second = alternatives(search)
    assert first[:2] == ("ZeRO 1", "equal")
    assert first[-1] == "less simple"
    assert second[:2] == ("ZeRO 3", "25 % longer")


def test_a_difference_smaller_than_the_error_of_predicted_ratios_is_marked():
    far = searching(STAGES[:2], [100.0, 40.0])
    near = searching(STAGES[:2], [100.0, 97.0])
    assert [alternatives(one)[0][-1] for one in (far, near)] == ["", "within the error"]


def test_the_figure_and_its_range_have_one_unit():
    """A billion tokens at 12,000 a second take 23.1 hours, and at 10,000 more than a day."""
    search = searching(STAGES[:1], [12e3], tokens_per_s_low=10e3, tokens_per_s_high=14e3)
    assert lines(search)["time"].cells[1:3] == ("23.1 hours", "19 to 28")


def test_bad_news_replace_the_nearest_run_in_one_sentence():
    usual = lines(searching(STAGES[:1], [100_000.0]))
    assert "Nearest: " in usual["predicted"].cells[0]
    tight = lines(searching(STAGES[:1], [100_000.0], tight=True))
    assert "predicted" not in tight
    assert "memory is tight, so the speed is not promised" in tight["warned"].cells[0]
    assert tight["time"].cells[1].startswith("at least ")


def test_a_smaller_number_of_gpus_that_fits_is_told():
    search = searching(STAGES[:1], [100_000.0])
    for least, words in ((1, "; 1 GPU would be enough"), (8, "; half the GPUs are too few")):
        assert lines(search, least_gpus=least)["memory"].cells[-1].endswith(words)
    assert lines(search)["memory"].cells[-1].endswith(" GiB left")


def test_names_of_experiments_are_in_no_line():
    fitting = searching(STAGES, [100.0, 90.0, 80.0])
    too_large = searching(STAGES, 100.0, fits=False, peak_allocated_gib=150.0)
    nothing = SearchResult(too_large.table, too_large.table.head(0), [])
    found = [*brief.lines(fitting, fitting.best()), *brief.lines(too_large, nothing)]
    assert not [cell for one in found for cell in one.cells if "_zs" in cell]
    assert found[-1].cells[0].startswith("No setting fits: the smallest, ZeRO ")
