"""What a run shows before its first step: its phase, from the files in its folder, and for how long."""

import threading
from types import SimpleNamespace

import pytest

from dsnb.launcher import progress
from dsnb.run_folder.paths import RunPaths


@pytest.mark.parametrize(
    ("settings", "phases"),
    [
        ({}, ["starting", "building the model", "first step"]),
        ({"compile": "default"}, ["starting", "building the model", "compiling, first step"]),
        ({"launcher": "deepspeed"}, ["starting", "importing, building the model", "first step"]),
    ],
)
def test_the_phase_follows_from_the_files(small, tmp_path, settings, phases):
    run, found = RunPaths(tmp_path), []
    for path in (None, run.console, run.steps):
        if path:
            path.touch()
        found.append(progress.phase(small(**settings), run))
    assert found == phases


def test_seconds_count_from_the_begin_of_each_phase():
    clock = iter([10.0, 10.0, 14.4, 20.0, 20.0, 21.0]).__next__
    timer = progress.PhaseTimer(clock)
    assert [timer.text(name) for name in ("a", "a", "b", "b")] == ["a: 0 s", "a: 4 s", "b: 0 s", "b: 1 s"]


def test_a_phase_ticks_while_the_launch_waits(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    shown, twice = [], threading.Event()

    def take(text):
        shown.append(text)
        if len(shown) == 2:
            twice.set()

    with progress.ticking(SimpleNamespace(disable=False, set_postfix_str=take), "importing"):
        assert twice.wait(10)
    assert set(shown) == {"importing: 0 s"}
    after = len(shown)
    with progress.ticking(SimpleNamespace(disable=True), "importing"):
        pass
    assert len(shown) == after
