"""Which jobs of a sweep are started when, and how they end: jobs, notebooks and the clock are fakes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dsnb.base.errors import DsnbWarning, KernelDiedError, LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.sweep import job, run
from dsnb.measure.sweep.params import Run, load_sweep
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from tests.support import whole

OK = Result("ok", None, {0: 0}, {"wall": 1.0}, {}, None)


class Jobs:
    """Starts fake jobs that end in the order of `lengths`, by the name of the run; notes all that happens."""

    def __init__(self, lengths=None, most=99):
        self.lengths, self.most, self.events, self.active = lengths or {}, most, [], 0
        self.queued, self.refused = 0, []

    def start(self, started):
        if self.active == self.most:
            self.refused.append(started.name)
            return None
        self.active += 1
        self.events.append(f"start {started.name}")
        looks = iter(range(self.lengths.get(started.name, 1)))
        return SimpleNamespace(
            run=started, running=True, location="here", poll=lambda: self.poll(started, looks)
        )

    def poll(self, started, looks):
        if next(looks, None) is not None:
            return None
        self.active -= 1
        return OK

    def begin(self, started):
        self.events.append(f"begin {started.name}")

    def end(self, ended, result, location):
        assert (result, location) == (OK, "here")
        self.events.append(f"end {ended.name}")

    def cancel(self, jobs):
        self.events.append(f"cancel {' '.join(each.run.name for each in jobs)}")


def runs_of(small, tmp_path, *described):
    """Return runs from texts such as `a lane 0`: name, lane and stage."""
    words = [text.split() for text in described]
    return [
        Run(name, small(), 1, RunPaths(tmp_path / name), lane.strip("-"), int(stage))
        for name, lane, stage in words
    ]


def executed(jobs, todo):
    run.run_all(todo, jobs.start, jobs, jobs.cancel, poll_s=0.0)
    return [event for event in jobs.events if not event.startswith("begin")]


def test_a_lane_has_one_run_at_a_time_and_a_stage_waits_for_the_one_before(small, tmp_path):
    todo = runs_of(small, tmp_path, "d x@y 1", "a x 0", "b x 0", "c y 0")
    assert executed(Jobs({"a": 2, "b": 1, "c": 9}), todo) == [
        "start a", "start c", "end a", "start b", "end b", "end c", "start d", "end d",
    ]  # fmt: skip


def test_runs_without_a_lane_are_jobs_side_by_side_as_many_as_there_can_be(small, tmp_path):
    todo = runs_of(small, tmp_path, "a - 0", "b - 0", "c - 0")
    assert executed(Jobs(), todo)[:3] == ["start a", "start b", "start c"]
    assert executed(Jobs({"a": 5, "b": 1}, most=2), todo) == [
        "start a", "start b", "end b", "start c", "end c", "end a",
    ]  # fmt: skip
    one_by_one = Jobs({"a": 3, "b": 3}, most=1)
    assert executed(one_by_one, todo)[::2] == ["start a", "start b", "start c"]
    assert "".join(one_by_one.refused).lstrip("b").strip("c") == ""  # none is tried before its turn


def test_an_error_cancels_all_jobs_and_waits_for_their_ends(small, tmp_path):
    class Broken(Jobs):
        def end(self, ended, result, location):
            raise KeyboardInterrupt

    jobs = Broken({"a": 3, "b": 6})
    with pytest.raises(KeyboardInterrupt):
        executed(jobs, runs_of(small, tmp_path, "a - 0", "b - 0"))
    assert jobs.events[-1] == "cancel b"
    assert jobs.active == 0


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (None, "interrupted", "the notebook ended without starting the run"),
        (KernelDiedError("the kernel died"), "interrupted", "the kernel died"),
        (SettingsError("gpus is 3"), "failed", "SettingsError: gpus is 3"),
        (LaunchError("no port\nis free"), "interrupted", "LaunchError: no port"),
        (ValueError(600 * "x"), "interrupted", f"ValueError: {488 * 'x'}"),
    ],
)
def test_a_notebook_that_leaves_no_result_is_one(
    small, tmp_path, monkeypatch, error, status, cause
):
    given = {}

    def execute(template, target, values):
        given.update(template=template.stem, target=target, values=values)
        if error:
            raise error

    monkeypatch.setattr("dsnb.measure.execute.notebook.execute", execute)
    made = Run("a", small(seed=5), 1, RunPaths(tmp_path / "a" / "run1"))
    result = job.execute(made)
    assert (result.status, result.cause) == (status, cause)
    assert json_files.read_json(made.paths.result)["status"] == status
    assert (given["template"], given["target"]) == ("10_run", made.paths.notebook)
    assert given["values"]["seed"] == 5
    assert given["values"]["run_dir"] == str(made.paths.dir)
    assert "gradient_clipping" not in given["values"]  # the default


def test_an_interrupt_is_recorded_and_goes_on(small, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsnb.measure.execute.notebook.execute", interrupt)
    made = Run("a", small(), 1, RunPaths(tmp_path / "a" / "run1"))
    with pytest.raises(KeyboardInterrupt):
        job.execute(made)
    record = json_files.read_json(made.paths.result)
    assert (record["status"], record["cause"]) == ("interrupted", "stopped by the user")


def test_a_result_that_the_launch_wrote_stands(small, tmp_path, monkeypatch):
    made = Run("a", small(), 1, RunPaths(tmp_path / "a" / "run1"))

    def execute(*_):
        Result("nan", "x", {0: 0}, {"wall": 3.0}, {}, made.paths.dir).write()
        raise ValueError("the cell after it")

    monkeypatch.setattr("dsnb.measure.execute.notebook.execute", execute)
    result = job.execute(made)
    assert (result.status, result.cause, result.phases_s) == ("nan", "x", {"wall": 3.0})


@pytest.fixture
def finished(params, tmp_path):
    """Give the first run of a sweep, which is finished."""
    sweep = run.with_inputs(load_sweep(params, output=tmp_path / "out"))
    made = sweep.runs[0]
    job.begin(made)
    whole.leave(made.paths, made.experiment.steps)
    Result("ok", None, {0: 0}, {"wall": 1.0}, {}, made.paths.dir).write()
    return made


def changed(made, **settings):
    return replace(made, experiment=made.experiment.model_copy(update=settings))


def test_a_run_with_other_settings_or_files_is_refused_and_supervision_may_change(finished):
    assert run.is_finished(finished)
    assert run.is_finished(finished, retry=True)
    assert run.is_finished(changed(finished, time_limit_s=7.0, master_port=5))
    with pytest.raises(SettingsError, match=r"with other settings \(seed was 0 and is 5\): choose"):
        run.is_finished(changed(finished, seed=5))
    text = finished.paths.dir.parent.parent / "text.txt"
    with_text = replace(finished, inputs={str(text): "other"})
    json_files.write_json(
        finished.paths.experiment,
        {**json_files.read_json(finished.paths.experiment), "inputs": {str(text): "digest"}},
    )
    with pytest.raises(SettingsError, match=r"text\.txt has changed since .* was measured with it"):
        run.is_finished(with_text)


def test_a_damaged_run_is_repeated_with_a_warning(finished):
    finished.paths.steps.unlink()
    with pytest.warns(DsnbWarning, match=r"steps\.jsonl is missing; the run is repeated$"):
        assert not run.is_finished(finished)


def test_hosts_of_a_lane_belong_to_a_run_and_what_hosts_decide_is_not_compared(finished):
    record = RunRecord(finished.paths)

    def differences(lane="", **settings):
        return job.changed_settings(replace(changed(finished, **settings), lane=lane), record)

    assert differences() == ""
    assert differences(include="n1", device="auto") == ""
    assert differences("n1", include="n1") == "include was '' and is 'n1'"
    assert differences(device="cuda") == "device was 'cpu' and is 'cuda'"
    assert differences(allocator="default") == "allocator was 'expandable' and is 'default'"
    settings = json_files.read_json(finished.paths.experiment)
    del settings["allocator"]
    json_files.write_json(finished.paths.experiment, settings)
    record = RunRecord(finished.paths)
    assert differences(allocator="default") == ""  # older than the setting


def test_a_job_reads_its_run_from_the_folder(finished):
    found = job.load_run(finished.paths)
    assert (found.name, found.repeat) == (finished.name, finished.repeat)
    assert found.experiment == finished.experiment
    assert found.inputs == finished.inputs
    finished.paths.experiment.unlink()
    with pytest.raises(SettingsError, match=r"holds no settings: start the sweep again$"):
        job.load_run(finished.paths)
