"""Every public name has an example in its docstring, and the examples print what they say.

They may use `dsnb`, `pd` and `Path`, and write into the current folder, which is empty.
"""

import doctest
import inspect
from pathlib import Path

import pandas as pd
import pytest

import dsnb
from dsnb.base.system import hardware

STARTS_PROCESSES = ("launch", "predict", "recommend", "run_sweep", "write_report")
NAMES = [
    pytest.param(name, marks=pytest.mark.process if name in STARTS_PROCESSES else ())
    for name in dsnb.__all__
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def example(name):
    """Return the example of a public name."""
    given = {"dsnb": dsnb, "pd": pd, "Path": Path}
    docstring = inspect.getdoc(getattr(dsnb, name)) or ""
    return doctest.DocTestParser().get_doctest(docstring, given, f"dsnb.{name}", None, None)


@pytest.mark.parametrize("name", dsnb.__all__)
def test_every_public_name_has_an_example_of_which_no_line_is_skipped(name):
    lines = example(name).examples
    assert [line for line in lines if f"dsnb.{name}" in line.source], f"{name} has no example"
    assert not [line for line in lines if doctest.SKIP in line.options]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSNB_OUTPUTS", raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", hardware.default_device())  # else DeepSpeed prints a guess
    printed = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    results = runner.run(example(name), out=printed.append)
    assert results.failed == 0, "".join(printed)
