"""The examples of CONTRIBUTING are those that other tests run: its notes say which."""

import ast
import doctest
import inspect
import textwrap
import tomllib

import pytest

from docs.code_blocks import blocks
from dsnb.prediction import shapes
from dsnb.results import logs
from dsnb.results.logs import console
from dsnb.settings.strategies import registry
from tests import ROOT
from tests.prediction import test_gpus

BLOCKS = blocks(ROOT / "CONTRIBUTING.md")
STRATEGY, READER, COUNTS = (block for block in BLOCKS if block.language == "python")


def of_strategies():
    folder = ROOT / "tests" / "settings" / "strategies" / "examples"
    return (folder / "ddp_rounded.py").read_text()


def of_readers():
    examples = doctest.DocTestParser().get_examples(logs.__doc__)
    return "".join(example.source for example in examples)


def of_counts():
    _, source = inspect.getdoc(shapes).split("# odd_llama/work.py")
    return textwrap.dedent(source.split("\n", 1)[1])


@pytest.mark.parametrize(
    ("block", "tested"), [(STRATEGY, of_strategies), (READER, of_readers), (COUNTS, of_counts)]
)
def test_an_example_is_the_one_that_another_test_runs(block, tested):
    assert ast.dump(ast.parse(block.text)) == ast.dump(ast.parse(tested()))
    assert len(block.text.splitlines()) <= 40


def test_the_example_of_a_gpu_is_the_one_that_another_test_runs():
    (gpu,) = (block for block in BLOCKS if block.text.startswith("name,"))
    assert gpu.text == test_gpus.EXAMPLE


def test_the_groups_of_entry_points_are_those_that_are_read():
    lines = "".join(block.text for block in BLOCKS if block.language == "toml")
    groups = tomllib.loads(lines)["project"]["entry-points"]
    assert [*groups] == [registry.GROUP, console.GROUP, shapes.GROUP]


def test_the_tests_that_run_the_examples_exist():
    notes = [block.reason.split() for block in BLOCKS]
    files = [file for file, *_ in notes if file.startswith("tests/")]
    assert len(files) == 4
    assert [file for file in files if not (ROOT / file).is_file()] == []
