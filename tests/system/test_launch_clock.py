"""Clocks that are set, machines that sleep: what ends a run and what it is said to have taken."""

import json
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from dsnb.launcher.run import Supervisor
from dsnb.run_folder.paths import RunPaths
from dsnb.sweep.run import is_finished
from dsnb.system import launch_clock
from dsnb.system.launch_clock import Stopwatch


class Clocks:
    """The clocks of a machine, which go on by what each test says."""

    def __init__(self, monkeypatch):
        self.monotonic_s, self.asleep_s = 1000.0, 50.0
        monkeypatch.setattr(launch_clock.time, "monotonic", lambda: self.monotonic_s)
        monkeypatch.setattr(launch_clock.time, "clock_gettime", lambda _: self.monotonic_s + self.asleep_s)

    def work(self, seconds):
        self.monotonic_s += seconds

    def sleep(self, seconds):
        self.asleep_s += seconds


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


class Ranks:
    """Ranks that never end by themselves; every look at them makes something happen."""

    def __init__(self, happens):
        self.happens, self.over = happens, False

    def ended(self):
        self.happens(self)
        return self.over

    def external_failure(self):
        return None

    def exit_codes(self):
        return {}


@pytest.fixture
def watch(tmp_path, small, monkeypatch):
    """Supervise ranks for which no time passes but what a test says."""
    monkeypatch.setattr("dsnb.launcher.run.POLL_S", 0.0)

    def until_end(happens, **limits):
        run = RunPaths(tmp_path)
        return Supervisor(small(**limits), run, Ranks(happens), Stopwatch(), tqdm(disable=True)).until_end()

    return until_end


def test_a_stopwatch_knows_work_from_sleep(clocks):
    stopwatch = Stopwatch()
    clocks.work(7.0)
    clocks.sleep(2.0)
    assert (stopwatch.elapsed_s(), stopwatch.suspended_s()) == (7.0, 0.0)
    clocks.sleep(3600.0)
    assert (stopwatch.elapsed_s(), stopwatch.suspended_s()) == (7.0, 3602.0)


def test_a_run_that_the_machine_slept_through_is_interrupted(clocks, watch):
    ended = watch(lambda _: clocks.sleep(3600.0), time_limit_s=100.0, step_timeout_s=100.0)
    assert ended == ("interrupted", "the machine was suspended for 3,600 s during the run; start the sweep again")


def test_sleep_at_the_very_end_counts_too(clocks, watch):
    def happens(ranks):
        clocks.sleep(10.0)
        ranks.over = True

    assert watch(happens) == ("interrupted", "the machine was suspended for 10 s during the run; start the sweep again")


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        ({"time_limit_s": 100.0}, "no end within the time limit of 100 s, 0 of 5 steps done"),
        ({"step_timeout_s": 50.0}, "no step within step_timeout_s of 50 s, 0 of 5 steps done"),
    ],
)
def test_limits_are_of_the_time_that_passed(clocks, watch, limits, cause):
    assert watch(lambda _: clocks.work(1.0), **limits) == ("timeout", cause)


def test_an_interrupted_run_is_made_again(run_small, small, monkeypatch):
    monkeypatch.setattr(Stopwatch, "suspended_s", lambda _: 3600.0)
    result, run = run_small(worker="tests.workers.silent")
    assert (result.status, json.loads(run.result.read_text())["status"]) == ("interrupted", "interrupted")
    assert not is_finished(SimpleNamespace(paths=run, experiment=small(), lane=""))
