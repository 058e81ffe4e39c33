"""Readers of installed packages, found by entry points."""

import doctest
import sys
from importlib.metadata import EntryPoint

import pytest

import dsnb
from dsnb.base.errors import DsnbWarning, LogError
from dsnb.results import logs
from dsnb.results.logs import console

LOG = """\
tinytrain: batch 64 of 1024 tokens, 8 GPUs
tinytrain: step 1 loss 9.5 time 5.0s
tinytrain: step 2 loss 9.0 time 2.0s
tinytrain: step 3 loss 8.5 time 2.0s
tinytrain: done
"""


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Return a function that installs a module as a reader."""
    readers, marks = [*console.READERS], [*console.MARKS]

    def add(source):
        (tmp_path / "tinytrain_reader.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        point = EntryPoint("tinytrain", "tinytrain_reader", console.GROUP)
        monkeypatch.setattr(console, "entry_points", lambda group: [point])
        console.load_plugins.cache_clear()

    yield add
    console.READERS[:], console.MARKS[:] = readers, marks
    console.load_plugins.cache_clear()
    sys.modules.pop("tinytrain_reader", None)


def test_the_example_of_the_docstring_reads_a_log(install, tmp_path):
    """All figures that follow from steps are derived as for any other program."""
    examples = doctest.DocTestParser().get_examples(logs.__doc__)
    install("".join(example.source for example in examples))
    path = tmp_path / "a.log"
    path.write_text(LOG)
    (run,) = dsnb.load_runs(path).to_dict("records")
    assert (run["source"], run["status"], run["gpus"]) == ("tinytrain log", "ok", 8)
    assert run["step_time_mean_s"] == 2.0  # without the first one
    assert run["tokens_per_s"] == 64 * 1024 / 2
    assert run["loss_last"] == 8.5
    assert list(dsnb.load_steps(path)["phase"]) == ["warmup", "timed", "timed"]


def test_without_its_reader_it_is_no_log(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(LOG)
    with pytest.raises(LogError, match="is not a log that dsnb can read"):
        dsnb.load_runs(path)


def test_a_broken_reader_is_reported_once_and_other_logs_are_read(install, tmp_path):
    install("raise RuntimeError('boom')")
    path = tmp_path / "trainer.log"
    path.write_text("{'loss': 2.0}\n{'loss': 1.0}\n")
    what = "log reader 'tinytrain' cannot be used: tinytrain_reader could not be loaded"
    with pytest.warns(DsnbWarning, match=f"{what} .RuntimeError: boom.") as caught:
        runs = [dsnb.load_runs(path) for _ in range(2)]
    assert [len(table) for table in runs] == [1, 1]
    assert len([warning for warning in caught if what in str(warning.message)]) == 1
