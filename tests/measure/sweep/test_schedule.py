"""Sub-clusters and lanes: which hosts make which runs, side by side, and what an interrupt or a failure leaves."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import yaml
from rich.console import Console

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.measure.sweep import allocation, job, progress
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import LocalJob, run_sweep
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from tests import ROOT
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended


@pytest.fixture(autouse=True)
def hosts(tmp_path):
    (tmp_path / "hosts").write_text("".join(f"n{number} slots=2\n" for number in range(1, 6)))


def load(params, *sizes, **overrides):
    overrides = {"hostfile": str(params.parent / "hosts"), **overrides}
    return allocation.load_groups(params, sizes, overrides, output=params.parent / "out")


def test_every_experiment_is_made_on_every_group_repeats_outermost(params):
    sweep, notes = load(params, 2, 4, gpus=[1, 2])  # the groups say how many GPUs there are
    runs = [(run.stage, run.lane, run.name, run.repeat) for run in sweep.runs]
    zs0, zs3 = ("zs0_fp32_gpus4_bs2_sl32_stdlib_nodes2", "zs3_fp32_gpus4_bs2_sl32_stdlib_nodes2")
    pairs = [(0, "n1@n2", zs0, 1), (0, "n3@n4", zs0, 2), (0, "n1@n2", zs3, 1), (0, "n3@n4", zs3, 2)]
    again = [(stage, lane, name, number + 2) for stage, lane, name, number in pairs]
    large = [
        (1, "n1@n2@n3@n4", name.replace("4_bs", "8_bs").replace("nodes2", "nodes4"))
        for name in (zs0, zs3)
    ]
    assert runs == [*pairs, *again, *[(*one, number) for number in (1, 2) for one in large]]
    experiment = sweep.runs[1].experiment
    assert (experiment.include, experiment.gpus, experiment.nodes) == ("n3@n4", 4, 2)
    assert [host.name for host in experiment.hosts] == ["n3", "n4"]
    assert notes == [f"sub-clusters of {size}: unused hosts: n5" for size in (2, 4)]


def test_filters_come_first_and_other_numbers_of_gpus_are_other_experiments(params):
    (params.parent / "hosts").write_text("n1 slots=2\nn2 slots=4\nn3 slots=4\nn4 slots=4\n")
    sweep, _ = load(params, 1, exclude="n4@n3:1")
    assert {(run.lane, run.experiment.gpus, run.repeat) for run in sweep.runs} == {
        *(
            (lane, gpus, repeat)
            for lane, gpus in (("n1", 2), ("n2", 4), ("n3:0,2,3", 3))
            for repeat in (1, 2)
        ),
    }
    with pytest.raises(SettingsError, match="sub-cluster needs hosts: name them with --hostfile"):
        load(params, 1, hostfile="")


def test_the_params_file_that_is_kept_is_for_all_groups(params):
    sweep = load(params, 1, 2, repeats=3, gpus=[1, 2])[0]
    kept = params.with_name("kept.yaml")
    kept.write_text(yaml.safe_dump(sweep.params))
    again = allocation.load_groups(kept, (1, 2), output=params.parent / "out")[0]
    assert (again.runs, again.params) == (sweep.runs, sweep.params)


def times(runs):
    return [json.loads((run.paths.dir / "times.json").read_text()) for run in runs]


def run_jobs(sweep, monkeypatch):
    """Execute a sweep by jobs that train nothing, and return the lines that are shown."""
    written = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=written, width=300))
    monkeypatch.setattr(
        "dsnb.measure.sweep.run.LocalJob", lambda run: LocalJob(run, "tests.support.jobs")
    )
    run_sweep(sweep)
    return written.getvalue().splitlines()


@pytest.mark.process
def test_lanes_go_on_side_by_side_and_stages_one_after_the_other(
    params, monkeypatch, tmp_path_factory
):
    monkeypatch.setenv("DSNB_TEST_MEETING", str(tmp_path_factory.mktemp("meeting")))
    sweep = load(params, 2, 4, zero_stage=0)[0]
    lines = run_jobs(sweep, monkeypatch)
    first, second, large = (
        [run for run in sweep.runs if run.lane == lane]
        for lane in ("n1@n2", "n3@n4", "n1@n2@n3@n4")
    )
    for lane in (first, second, large):
        spans = times(lane)
        assert all(before["ended"] <= after["began"] for before, after in itertools.pairwise(spans))
    assert max(one["ended"] for one in times(first + second)) <= min(
        one["began"] for one in times(large)
    )
    assert len(lines) == 6
    zs0 = sweep.runs[0].name
    assert any(f"{zs0} run1 on n1, n2: ok, 1,000 tokens/s" in line for line in lines[:2])
    assert lines[-1].startswith(
        f"run 6/6  {sweep.runs[-1].name} run2 on n1, n2, n3, n4: ok, 1,000 tokens/s"
    )
    assert lines[-1].endswith(" 0 s left)")


@pytest.mark.process
def test_a_job_that_fails_stops_no_other(params, monkeypatch):
    sweep = load(params, 1)[0]
    runs = [run for run in sweep.runs if run.lane in {"n1", "n2", "n3"} and run.repeat < 6]
    plans = [("die", ""), ("kill", "before"), ("kill", "during"), ("kill", "at the end")]
    for run, (how, when) in zip(runs, plans, strict=False):
        run.paths.dir.mkdir(parents=True)
        (run.paths.dir / how).write_text(when)
    run_jobs(replace(sweep, runs=runs), monkeypatch)
    ends = [
        (result.status, result.cause)
        for result in (Result.of(RunRecord(run.paths)) for run in runs)
    ]
    assert ends == [
        ("interrupted", "the job ended with exit code 7: no such thing"),
        ("interrupted", "the job was killed by signal 9 (SIGKILL) before its run began"),
        ("interrupted", "the job was killed by signal 9 (SIGKILL) during its run"),
        ("ok", None),  # all of its steps are recorded
        *[("ok", None)] * (len(runs) - 4),
    ]
    assert len(runs) > 4
    assert (
        Result.of(RunRecord(runs[3].paths)).summary["tokens_per_s"]
        == runs[3].experiment.tokens_per_step
    )  # 1 s a step


SCRIPT = """
import sys
from dsnb.measure.sweep import allocation, run
LocalJob = run.LocalJob
run.LocalJob = lambda of: LocalJob(of, "tests.support.jobs")
run.run_sweep(allocation.load_groups(sys.argv[1], [2], {"hostfile": sys.argv[2]}, output=sys.argv[3])[0])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.process
def test_jobs_end_with_the_sweep_however_it_ends(params, number):
    out = params.parent / "out"
    environment = {**os.environ, "DSNB_TEST_JOB_S": "60"}
    words = [sys.executable, "-c", SCRIPT, str(params), str(params.parent / "hosts"), str(out)]
    sweep = psutil.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(out.rglob("began"))) == 2, "two jobs have begun")
    family = sweep.children(recursive=True)
    assert len(family) == 2
    sweep.send_signal(number)
    assert sweep.wait(WAIT_S) == -number
    wait_until_ended(one.pid for one in family)
    found = [json.loads(file.read_text())["status"] for file in out.rglob("result.json")]
    assert found == (["interrupted"] * 2 if number == signal.SIGINT else [])


def test_which_settings_of_a_finished_run_have_changed(params):
    """A run of a group is not taken for that of another; one on hosts and one here are the same if the device was."""
    run = load(params, 2)[0].runs[0]
    json_files.write_json(run.paths.experiment, {**run.experiment.model_dump(), "include": "n4@n5"})
    assert job.changed_settings(run, RunRecord(run.paths)) == "include was 'n4@n5' and is 'n1@n2'"
    assert job.changed_settings(replace(run, lane=""), RunRecord(run.paths)) == ""
    run = load_sweep(params, {"device": "cpu"}, output=params.parent / "out").runs[0]
    settings = run.experiment.model_dump()
    json_files.write_json(run.paths.experiment, {**settings, "device": "auto"})
    assert job.changed_settings(run, RunRecord(run.paths)) == ""
    json_files.write_json(run.paths.experiment, {**settings, "device": "cuda"})
    assert job.changed_settings(run, RunRecord(run.paths)) == "device was 'cuda' and is 'cpu'"
