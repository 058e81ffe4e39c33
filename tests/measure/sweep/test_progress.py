"""The progress of a sweep: what it says while runs go on, and how it estimates the time left."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from dsnb.base.files import json_files
from dsnb.measure.sweep import progress
from dsnb.measure.sweep.params import Run
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def runs(tmp_path):
    experiment = Experiment(model="gpt2-tiny", device="cpu", warmup_steps=5, steps=15)
    (tmp_path / "run1").mkdir()
    (tmp_path / "run2").mkdir()
    return [
        Run("zs0", experiment, repeat, RunPaths(tmp_path / f"run{repeat}"))
        for repeat in (1, 2, 3, 4)
    ]


def test_time_left_counts_the_run_under_way(clock, runs):
    shown = progress.Progress(total=5, todo=runs, enabled=False)
    shown.begin(runs[0])
    assert shown._left_s() is None
    clock.now += 5
    json_files.append_line(runs[0].paths.steps, {"step": 5})
    assert shown._left_s() == pytest.approx(4 * 20 - 5)  # 5 s for a quarter: 20 s a run
    clock.now += 5
    shown.end(
        runs[0],
        Result("ok", None, {}, {}, {"tokens_per_s": 10.0, "loss_last": 1.0}, runs[0].paths.dir),
    )
    assert shown._left_s() == pytest.approx(3 * 10)
    shown.begin(runs[1])
    clock.now += 4  # it has made no step yet
    assert shown._left_s() == pytest.approx(3 * 10 - 4)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_it_prints_one_line_a_run_and_on_a_terminal_what_goes_on(
    clock, runs, monkeypatch, is_terminal
):
    written = io.StringIO()
    monkeypatch.setattr(
        progress,
        "Console",
        lambda **_: Console(file=written, width=200, force_terminal=is_terminal, color_system=None),
    )
    ok = Result("ok", None, {}, {}, {"tokens_per_s": 1234.5, "loss_last": 2.5}, runs[0].paths.dir)
    oom = Result("oom", "rank 0: [red]memory[/]", {}, {}, {"tokens_per_s": None}, runs[1].paths.dir)
    with progress.Progress(total=3, todo=runs[:2]) as shown:
        for run, result in ((runs[0], ok), (runs[1], oom)):
            shown.begin(run)
            json_files.append_line(
                run.paths.steps, {"step": 4, "loss": 2.25, "step_time_s": 8.0, "tokens": 1024}
            )
            clock.now += 7
            shown._live.refresh()
            shown.end(run, result)
    ended = [
        "1 of 3 runs are finished and are not repeated",
        "run 2/3  zs0 run1: ok, 1,234 tokens/s, loss 2.500  (7 s, 7 s left)",
        "run 3/3  zs0 run2: oom, rank 0: [red]memory[/]  (7 s, 0 s left)",
    ]
    assert is_terminal or written.getvalue().splitlines() == ended
    assert all(line in written.getvalue() for line in ended)
    assert ("step 4, loss 2.250, 128 tokens/s, 63 s left" in written.getvalue()) == is_terminal
