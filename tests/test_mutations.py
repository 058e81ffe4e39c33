"""The list of mutations fits the code, and a mutation is noticed by a test that fails on it, and only on it."""

import json
import os
import subprocess
import sys
import textwrap

import psutil
import pytest

from benchmarks.mutations import listed
from tests import ROOT

AREA = "def area(width, height):\n    return width * height\n"
TESTS = """
import subprocess
import sys

from shapes import area


def test_area():
    assert area(2, 3) == 6


def test_of_a_broken_machine():
    assert area(1, 1) == 2


def test_area_of_nothing():
    assert area(0, 3) == 0


def test_another_process_has_the_mutation_too():
    code = "import shapes; print(shapes.area(2, 5))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"10\\n"


def test_that_leaves_a_process():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open("pid", "w").write(str(process.pid))


def test_that_hangs():
    test_that_leaves_a_process()
    subprocess.run(["sleep", "600"])
"""
TRY = """
import json
import sys
from pathlib import Path

from benchmarks.mutations import trials
from benchmarks.mutations.listed import Mutation

root, home = map(Path, sys.argv[1:])
"""


@pytest.fixture
def tried(tmp_path):
    """Run a script on a made-up package, in a process of its own because it forks; return what it prints."""
    root = tmp_path / "made up"
    root.mkdir()
    (root / "shapes.py").write_text(AREA)
    (root / "test_shapes.py").write_text(TESTS)

    def run(script):
        words = [sys.executable, "-c", TRY + textwrap.dedent(script), root, tmp_path / "home"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_every_mutation_fits_the_code():
    mutations = listed.read()
    assert [fault for mutation in mutations for fault in listed.faults(mutation)] == []
    assert len({(each.file, each.old, each.new) for each in mutations}) == len(mutations)
    rooms = {path.name for path in (ROOT / "dsnb").iterdir() if (path / "__init__.py").exists()}
    assert {each.room for each in mutations} == rooms


def test_a_mutation_that_fits_no_more_is_refused():
    quotes = '"' * 3
    wrong = listed.Mutation("base", "", "dsnb/version.py", quotes, "(", ("tests/none.py",))
    assert listed.faults(wrong) == [
        f"dsnb/version.py has 2 times, instead of once: {quotes}",
        "dsnb/version.py would be no Python with: (",
        "there is no test tests/none.py",
    ]


def test_rooms_folders_and_files_select_mutations():
    mutations = listed.read()
    of_metrics = listed.selected(mutations, ["dsnb/base/formulas/metrics.py"])
    assert {each.file for each in of_metrics} == {"dsnb/base/formulas/metrics.py"}
    assert listed.selected(mutations, ["base/formulas/metrics.py"]) == of_metrics
    assert {each.room for each in listed.selected(mutations, ["base"])} == {"base"}
    assert listed.selected(mutations, ["base/form"]) == []
    assert listed.selected(mutations, []) == mutations


def test_verdicts_on_a_made_up_package(tried):
    verdicts = tried("""
        def mutation(new, *tests):
            names = tuple(f"test_shapes.py::{test}" for test in tests)
            return Mutation("shapes", new, "shapes.py", "width * height", new, names)

        workers = [trials.Worker(root, home)]
        mutations = [
            mutation("width + height", "test_area_of_nothing", "test_area"),
            mutation("height * width", "test_area_of_nothing", "test_area"),
            mutation("2 * width * height", "test_another_process_has_the_mutation_too"),
            mutation("3 * width * height", "test_of_a_broken_machine"),
            mutation("4 * width * height", "test_that_is_missing"),
        ]
        outcomes = trials.try_mutations(mutations, workers, limit_s=60)
        print(json.dumps([[each.verdict, each.reason.partition("\\n")[0]] for each in outcomes]))
    """)
    assert verdicts == [
        ["noticed", "test_shapes.py::test_area_of_nothing"],
        ["SURVIVED", "2 tests passed"],
        ["noticed", "test_shapes.py::test_another_process_has_the_mutation_too"],
        [
            "ERROR",
            "test_shapes.py::test_of_a_broken_machine fails, or takes too long, without the mutation, too",
        ],
        ["ERROR", "pytest could not run the tests:"],
    ]


@pytest.mark.parametrize(
    ("test", "limit_s", "ends"),
    [("test_that_leaves_a_process", 60, True), ("test_that_hangs", 2, False)],
)
def test_processes_end_with_the_trial(tried, test, limit_s, ends):
    has_ended, pid = tried(f"""
        trials.prepare(home.parent / "log", libraries=())
        worker = trials.Worker(root, home)
        (ended,) = trials.run([trials.Job(("test_shapes.py::{test}",))], [worker], {limit_s})
        print(json.dumps([ended.record is not None, int((worker.tree / "pid").read_text())]))
    """)
    assert has_ended == ends
    assert not psutil.pid_exists(pid)
