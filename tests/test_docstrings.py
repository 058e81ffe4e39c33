"""The examples of functions that are not public; `test_public_names.py` runs those of public names."""

import doctest
import importlib

import pytest

MODULES = (
    "results.runs.labels",
    "results.runs.table",
    "results.statistics.flags",
    "results.statistics.memory_use",
    "results.statistics.scaling",
    "results.statistics.tasks",
    "settings.checks",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_say(name):
    module = importlib.import_module(f"dsnb.{name}")
    failed, count = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert count > 0
    assert failed == 0
