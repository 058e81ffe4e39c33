"""The examples in the docstrings of the functions that read and compare runs print what they say."""

import doctest
import importlib

import pytest

MODULES = (
    "runs.labels",
    "runs.load",
    "runs.table",
    "statistics.comparisons",
    "statistics.flags",
    "statistics.memory_use",
    "statistics.rampup",
    "statistics.scaling",
    "statistics.summary",
    "statistics.tasks",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_say(name):
    module = importlib.import_module(f"dsnb.results.{name}")
    failed, count = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert count > 0
    assert failed == 0
