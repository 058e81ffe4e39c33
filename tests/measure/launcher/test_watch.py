"""How a launch is watched and judged, on a fake clock with fake ranks: limits, lost hosts, phases of the run."""

import signal
from types import SimpleNamespace

import pytest

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.launcher import hosts, outcome, run
from dsnb.measure.launcher.outcome import Outcome
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord

BEGAN_S = 1000.0
LIMITS = {"time_limit_s": 100.0, "step_timeout_s": 30.0}


class FakeRanks:
    """Ranks of a schedule: `steps_at_s` are recorded then, `codes_at_s` end then, all `end_at_s` after the launch."""

    host_of, external_failure, kills = {}, None, 0

    def __init__(self, experiment, steps_at_s=(), end_at_s=1e9, codes_at_s=None, lost_at_s=1e9):
        self.experiment, self.steps_at_s, self.end_at_s = experiment, steps_at_s, end_at_s
        self.codes_at_s, self.lost_at_s = codes_at_s or {}, lost_at_s
        self.now_s = 0.0

    def ended(self):
        return self.now_s >= self.end_at_s

    def exit_codes(self):
        return {rank: 1 for rank, at_s in self.codes_at_s.items() if self.now_s >= at_s}

    def oom_kills(self):
        return self.kills


@pytest.fixture
def watch_ranks(small, tmp_path, monkeypatch):
    """Watch ranks, each look a second after the last one; return the outcome and when it was known."""

    def watch(**schedule):
        ranks = FakeRanks(small(warmup_steps=1, steps=4, **LIMITS), **schedule)
        state = SimpleNamespace(step=0, total=5)

        def read():
            before, state.step = state.step, sum(at <= ranks.now_s for at in ranks.steps_at_s)
            return state.step > before

        def tick(_):
            ranks.now_s += 1.0
            assert ranks.now_s < 300, "the run is watched for ever"
            if ranks.now_s >= ranks.lost_at_s:
                ranks.external_failure = "host b was lost"

        state.read = read
        progress = SimpleNamespace(state=state, refresh=lambda at_once=False: None)
        monkeypatch.setattr(launch_clock, "now_s", lambda: BEGAN_S + ranks.now_s)
        monkeypatch.setattr("dsnb.measure.launcher.run.time", SimpleNamespace(sleep=tick))
        found = run.watch(RunPaths(tmp_path), ranks.experiment, ranks, BEGAN_S, progress)
        return found, ranks.now_s

    return watch


@pytest.mark.parametrize(
    ("schedule", "cause", "at_s"),
    [
        ({}, "no step within step_timeout_s of 30 s, 0 of 5 steps done", 31),
        # Each step begins the limit anew.
        ({"steps_at_s": (20, 45)}, "no step within step_timeout_s of 30 s, 2 of 5 steps done", 76),
        ({"steps_at_s": (25, 50, 75, 99)}, "no end within the time limit of 100 s, 4 of 5 steps done", 101),
        # After the last step there is none to wait for.
        ({"steps_at_s": (1, 2, 3, 4, 5)}, "no end within the time limit of 100 s, 5 of 5 steps done", 101),
    ],
)  # fmt: skip
def test_a_run_that_exceeds_a_limit_times_out(watch_ranks, schedule, cause, at_s):
    assert watch_ranks(**schedule) == (Outcome("timeout", cause), at_s)


@pytest.mark.parametrize(
    ("schedule", "at_s"),
    [
        ({"end_at_s": 12}, 12),
        ({"steps_at_s": (9, 40, 69), "end_at_s": 99}, 99),
        ({"codes_at_s": {1: 10}}, 16),  # the others wait for it, perhaps forever
        ({"codes_at_s": {1: 28}}, 34),  # no limit is exceeded in this time
        ({"codes_at_s": {1: 10, 0: 14}}, 16),  # since the first one
        ({"codes_at_s": {1: 10}, "end_at_s": 12}, 12),
    ],
)
def test_ranks_that_end_or_fail_tell_their_outcome_themselves(watch_ranks, schedule, at_s):
    assert watch_ranks(**schedule) == (None, at_s)


def test_a_lost_host_ends_the_run_at_once(watch_ranks):
    assert watch_ranks(lost_at_s=7) == (Outcome("failed", "host b was lost"), 7)


def test_a_folder_that_is_removed_ends_the_launch(watch_ranks, tmp_path):
    tmp_path.rmdir()
    with pytest.raises(LaunchError, match=r"was removed during the run: start the sweep again$"):
        watch_ranks()


FAILED = {"rank": 0, "status": "failed", "cause": "it fell over", "in_communication": False}
SHORT = {
    "rank": 1,
    "status": "oom",
    "cause": "OutOfMemoryError: CUDA",
    "phase": "backward",
    "step": 3,
}
SHORT |= {"allocated_gib": 70.0, "reserved_gib": 75.5, "requested_gib": 4.25}
SERVER = "the fork server ended during the run, and its ranks with it"
OF_SHORT = (
    "rank 1: out of memory in the backward pass of step 3, with 70.00 GiB allocated (75.50 GiB reserved) "
    "and 4.25 GiB more requested (74.25 GiB needed at least): OutOfMemoryError: CUDA"
)
TIMEOUT = Outcome("timeout", "no end within the time limit")


@pytest.mark.parametrize(
    ("on_hosts", "lost", "kills", "failure", "ended_by", "expected"),
    [
        (False, None, 0, FAILED, None, ("failed", "rank 0: it fell over")),
        (False, None, 0, FAILED, TIMEOUT, TIMEOUT),
        (False, None, 0, SHORT, None, ("oom", OF_SHORT)),
        (False, SERVER, 0, FAILED, None, ("interrupted", SERVER)),
        (False, SERVER, 2, FAILED, None, ("oom", f"{SERVER}: the machine's memory ran out")),
        (False, SERVER, 0, SHORT, None, ("oom", OF_SHORT)),  # memory ran out before
        (True, "host b was lost", 0, FAILED, None, ("failed", "host b was lost; rank 0: it fell over")),
        (True, "it fell over", 0, FAILED, None, ("failed", "it fell over")),  # told once
        (True, "host b was lost", 0, FAILED, Outcome("failed", "host b was lost"), ("failed", "host b was lost")),
        (True, "host b was lost", 0, SHORT, Outcome("failed", "host b was lost"), ("oom", OF_SHORT)),
    ],
)  # fmt: skip
def test_what_was_lost_is_the_cause_unless_memory_ran_out_before(
    small, tmp_path, on_hosts, lost, kills, failure, ended_by, expected
):
    paths = RunPaths(tmp_path)
    experiment = small(gpus=2)
    json_files.write_json(paths.experiment, experiment.model_dump())
    json_files.append_line(paths.failures, failure)
    ranks = FakeRanks(experiment)
    if on_hosts:
        ranks = type("HostRanks", (FakeRanks, hosts.HostRanks), {"external_failure": None})(
            experiment
        )
    ranks.external_failure, ranks.kills = lost, kills
    assert run.outcome_of(RunRecord(paths), ranks, {0: 1, 1: 1}, ended_by) == expected


@pytest.mark.parametrize(
    ("steps", "worker", "profile", "status"),
    [
        (4, {"ended_s": 1.0}, None, "ok"),
        (3, {"ended_s": 1.0}, None, "timeout"),
        (5, {"ended_s": 1.0}, None, "timeout"),
        (4, {}, None, "timeout"),
        (4, {"ended_s": 1.0}, {}, "timeout"),  # its profile is not complete
        (4, {"ended_s": 1.0}, {"ended_s": 2.0}, "ok"),
        (4, {"first_bad_step": 2}, None, "nan"),
        (4, {"weights_moved": False}, None, "untrained"),
        (4, {"compiled_graphs": 0}, None, "failed"),
    ],
)
@pytest.mark.parametrize("before", ["timeout", "interrupted"])
def test_a_run_with_all_its_steps_has_finished_however_it_was_ended(
    small, tmp_path, steps, worker, profile, status, before
):
    paths = RunPaths(tmp_path)
    experiment = small(steps=4, profile=profile is not None)
    json_files.write_json(paths.experiment, experiment.model_dump())
    rows = [{"step": step, "phase": "timed", "loss": 1.0} for step in range(1, steps + 1)]
    json_files.write_lines(paths.steps, rows)
    if worker:
        json_files.write_json(paths.worker, worker)
    if profile:
        json_files.write_json(paths.profile, profile)
    expected = before if status == "timeout" else status
    assert outcome.settled(RunRecord(paths), Outcome(before, "x")).status == expected
    assert outcome.settled(RunRecord(paths), Outcome("oom", "x")) == ("oom", "x")


@pytest.mark.parametrize(
    ("error", "on_hosts", "expected"),
    [
        (KeyboardInterrupt(), False, ("interrupted", "stopped by the user")),
        (SettingsError("gpus is 3"), False, ("failed", "gpus is 3")),
        (LaunchError("no port is free"), False, ("interrupted", "no port is free")),
        (LaunchError("host b was not reached"), True, ("failed", "host b was not reached")),
        (OSError("broken"), True, ("interrupted", "OSError: broken")),
    ],
)
def test_an_error_of_the_launcher_says_nothing_about_the_settings(small, error, on_hosts, expected):
    experiment = small().model_copy(update={"hostfile": "hosts" if on_hosts else ""})
    assert outcome.stopped_by(error, experiment) == expected


@pytest.mark.parametrize(
    ("worker", "profile", "phases"),
    [
        ({}, {}, {"wall": 60.0}),
        ({"ended_s": 50.0}, {}, {"stop": 10.0, "wall": 60.0}),
        ({"ended_s": 50.0}, {"ended_s": 57.5}, {"profile": 7.5, "stop": 2.5, "wall": 60.0}),
        ({"ended_s": 61.0}, {}, {"wall": 60.0}),  # the clock of a host has jumped
        ({"ended_s": 50.0, "phases_s": {"build": 3.0}}, {}, {"build": 3.0, "stop": 10.0, "wall": 60.0}),
    ],
)  # fmt: skip
def test_the_phases_of_a_run_add_up_to_its_wall_time(
    small, tmp_path, monkeypatch, worker, profile, phases
):
    paths = RunPaths(tmp_path)
    json_files.write_json(paths.experiment, small().model_dump())
    for path, content in ((paths.worker, worker), (paths.profile, profile)):
        if content:
            json_files.write_json(path, content)
    monkeypatch.setattr(launch_clock, "now_s", lambda: BEGAN_S + 60.0)
    codes = {0: 0, 1: -signal.SIGKILL}
    result = run.finish(RunRecord(paths), codes, BEGAN_S, Outcome("failed", "it fell over"))
    assert result.phases_s == phases
    written = json_files.read_json(paths.result)
    assert written["exit_codes"] == {"0": 0, "1": -9}
    assert (written["status"], written["cause"]) == ("failed", "it fell over")
    assert written["phases_s"] == phases
