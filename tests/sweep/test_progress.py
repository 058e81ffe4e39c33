"""The progress of a sweep: what it says while runs go on, and how it estimates the time left."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings.experiment import Experiment
from dsnb.sweep import progress
from dsnb.sweep.params import Run


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def run(tmp_path):
    return Run("zs0", Experiment(model="gpt2-tiny", device="cpu"), 1, RunPaths(tmp_path / "zs0" / "run1"))


def test_time_left_counts_the_run_under_way(clock, run, tmp_path):
    shown = progress.Progress(total=5, todo=[run] * 4, enabled=False)
    with shown:
        shown.begin(run)
        assert shown._time_left_s() is None
        clock.now += 5
        assert shown._time_left_s(part=0.25) == 4 * 20 - 5  # 5 s for a quarter: 20 s a run
        clock.now += 5
        shown.end(run, Result("ok", None, {}, {}, {"tokens_per_s": 10.0, "loss_last": 1.0}, tmp_path))
        assert shown._time_left_s() == 3 * 10
        shown.begin(run)
        clock.now += 4
        assert shown._time_left_s(part=0.5) == 3 * 10 - 4


def test_without_a_terminal_it_prints_one_line_a_run(clock, run, tmp_path, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=written, width=200))
    with progress.Progress(total=3, todo=[run] * 2) as shown:
        for result in (
            Result("ok", None, {}, {}, {"tokens_per_s": 1234.5, "loss_last": 2.5}, tmp_path),
            Result("oom", "rank 0: [red]memory[/]", {}, {}, {"tokens_per_s": None}, tmp_path),
        ):
            shown.begin(run)
            clock.now += 7
            shown.end(run, result)
    assert written.getvalue().splitlines() == [
        "1 of 3 runs are finished and are not repeated",
        "run 2/3  zs0 run1: ok, 1,234 tokens/s, loss 2.500  (7 s, 7 s left)",
        "run 3/3  zs0 run1: oom, rank 0: [red]memory[/]  (7 s, 0 s left)",
    ]


def test_an_interrupt_while_the_watch_begins_is_all_that_is_raised(run, monkeypatch):
    def interrupted(thread):
        raise KeyboardInterrupt

    shown = progress.Progress(total=1, todo=[run], enabled=False)
    monkeypatch.setattr(progress.threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), shown:
        shown.begin(run)
