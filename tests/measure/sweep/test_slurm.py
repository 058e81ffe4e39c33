"""Runs as Slurm jobs, on a small real Slurm: submitted, followed, and ended in every way that jobs end."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.sweep import allocation, job, slurm
from dsnb.measure.sweep.allocation import Allocation
from dsnb.measure.sweep.progress import Progress
from dsnb.measure.sweep.run import run_all, run_sweep
from dsnb.measure.sweep.slurm import Record, SlurmExecutor
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from tests import ROOT
from tests.support import slurm as small_slurm
from tests.support.small_sweep import ONE_RUN, light_server
from tests.support.waiting import WAIT_S, wait_until

PAIR = "zs1_fp32_gpus2_bs2_sl32_stdlib_nodes2"
POLL_S = 0.3
SHARED = "is the outputs folder on a file system that the nodes share?"


@pytest.fixture(scope="module")
def cluster():
    """A small Slurm, whose jobs train with ranks without torch."""
    with small_slurm.running() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **light_server(),
            "SLURM_CONF": running.environment["SLURM_CONF"],
        }.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def params(params):
    params.write_text(ONE_RUN)
    return params


def load(params, asked, out="out", **overrides):
    return allocation.load(params, asked, overrides, output=params.parent / out)


def jobs_for(sweep, asked, said):
    return SlurmExecutor(
        asked, sweep.name, sweep.runs, said.append, POLL_S, 0.5, "tests.support.jobs"
    )


def refused(call, *arguments, **named):
    """Give the problems that a call raises."""
    with pytest.raises((SettingsError, LaunchError)) as caught:
        call(*arguments, **named)
    return str(caught.value)


def job_of(run):
    return (json_files.read_json(run.paths.slurm) or {}).get("job")


@pytest.mark.process
def test_a_sweep_is_submitted_followed_finished_and_summarised(cluster, params):
    """One run on both nodes; another test has one on a single node."""
    params.write_text(ONE_RUN + "include: [{zero_stage: 1, gpus: auto}]\n")
    words = [
        "--slurm",
        "--nodes",
        "2",
        "--gpus-per-node",
        "1",
        "--time",
        "9",
        "--output",
        str(params.parent / "out"),
    ]
    command = [sys.executable, "-m", "dsnb", "sweep", str(params), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr + done.stdout
    run = RunPaths(params.parent / "out" / PAIR / "run1")
    stopping, line = done.stderr.splitlines()
    assert stopping.startswith("stop with ")
    assert " in job " in line
    assert ": ok, " in line
    assert " left)" not in line
    assert "Best so far" in done.stdout
    assert "ZeRO 1, fp32, micro-batch 2" in done.stdout
    assert len(json_files.read_lines(run.steps)) == 5
    assert run.job_log.read_text() == "ok: as planned\n"
    assert [node["host"] for node in json_files.read_json(run.nodes)["nodes"]] == ["n1", "n2"]
    assert cluster.command("squeue", "--noheader", "--format=%i").split() == []


@pytest.mark.process
def test_every_end_of_a_job_is_a_status_with_its_cause(cluster, params):
    """In a folder whose name would run commands, or be a pattern of Slurm's, if anybody took it for one."""
    asked = Allocation()
    sweep = load(
        params, asked, out="a'; touch hacked; echo %j $(touch hacked) \"b", seed=[0, 1, 2, 3, 4]
    )
    ok, fails, silent, lost, cancelled = sweep.runs
    real = replace(cancelled, experiment=cancelled.experiment.model_copy(update={"steps": 10**6}))
    json_files.write_text(lost.paths.dir / "seconds", "100")
    json_files.write_text(fails.paths.dir / "die", "")
    json_files.write_text(silent.paths.dir / "silent", "")
    said = []

    def disturb():
        wait_until((lost.paths.dir / "began").exists, "the job on n2 has begun")
        cluster.kill("n2")
        wait_until(lambda: json_files.read_lines(real.paths.steps), "the real job trains")
        cluster.command("scancel", job_of(real))

    def start(run):
        """Let the real job train, and the one whose node will fail be on the second node."""
        executor.module = "dsnb.measure.sweep.job" if run is real else "tests.support.jobs"
        executor.allocation = replace(
            asked, extra_options={"nodelist": "n2" if run is lost else "n1"}
        )
        return executor.start(run)

    disturber = threading.Thread(target=disturb, daemon=True)
    disturber.start()
    with Progress(len(sweep.runs), sweep.runs, enabled=False, show_eta=False) as shown:
        executor = jobs_for(sweep, asked, said)
        run_all([ok, fails, silent, lost, real], start, shown, executor.cancel, 0.1)
    disturber.join()
    cluster.start("n2")
    wait_until(
        lambda: "idle" in cluster.command("sinfo", "--noheader", "--nodes=n2", "--format=%T"),
        "n2 is back",
    )
    results = [Result.of(RunRecord(run.paths)) for run in sweep.runs]
    assert [(result.status, result.cause) for result in results] == [
        ("ok", None),
        ("interrupted", f"job {job_of(fails)} ended as FAILED on n1: no such thing"),
        (
            "interrupted",
            f"job {job_of(silent)} ended as COMPLETED on n1: it left no result: {SHARED}",
        ),
        (
            "interrupted",
            f"job {job_of(lost)} ended as NODE_FAIL on n2: `sinfo -R` lists failed nodes",
        ),
        ("interrupted", f"job {job_of(real)} ended as CANCELLED on n1"),
    ]
    assert results[-1].summary["loss_last"] is not None
    assert said == []
    assert not list(params.parent.rglob("hacked")) + list(ROOT.glob("hacked"))
    wait_until(lambda: cluster.command("squeue", "--noheader") == "", "the cancelled job has ended")


SCRIPT = """
import sys
from pathlib import Path
from dsnb.measure.sweep import allocation
from dsnb.measure.sweep.progress import Progress
from dsnb.measure.sweep.run import run_all
from dsnb.measure.sweep.slurm import SlurmExecutor
asked = allocation.Allocation()
sweep = allocation.load(sys.argv[1], asked, {"seed": [0, 1, 2]}, output=sys.argv[2])
todo = [run for run in sweep.runs if not run.paths.result.exists()]
with Progress(3, todo, enabled=False, show_eta=False) as shown:
    jobs = SlurmExecutor(asked, "small", todo, print, 0.3, 0.5, "tests.support.jobs")
    run_all(todo, jobs.start, shown, jobs.cancel)
"""


@pytest.mark.process
def test_a_killed_submitter_is_taken_over_from_and_an_interrupted_one_cancels(cluster, params):
    sweep = load(params, Allocation(), seed=[0, 1, 2])
    long, other, failing = sweep.runs
    for run in (long, other):
        json_files.write_text(run.paths.dir / "seconds", "100")
    json_files.write_text(failing.paths.dir / "die", "")
    command = [sys.executable, "-c", SCRIPT, str(params), str(params.parent / "out")]
    first = psutil.Popen(command, cwd=ROOT)
    wait_until(
        lambda: all(job_of(run) and (run.paths.dir / "began").exists() for run in sweep.runs),
        "3 jobs",
    )
    numbers = [job_of(run) for run in sweep.runs]
    first.kill()
    first.wait()
    failing.paths.result.unlink(missing_ok=True)  # it may have been seen to end
    # As if it had been killed between Slurm's answer and its own note of it.
    note = json_files.read_json(other.paths.slurm)
    json_files.write_json(other.paths.slurm, {**note, "job": None})
    second = psutil.Popen(command, cwd=ROOT)
    wait_until(lambda: failing.paths.result.exists(), "the jobs are taken over")
    assert [job_of(run) for run in sweep.runs] == [numbers[0], None, numbers[2]]
    assert {*cluster.command("squeue", "--noheader", "--format=%i").split()} >= {*numbers[:2]}
    second.send_signal(signal.SIGINT)
    assert second.wait(WAIT_S) == -signal.SIGINT
    assert not set(cluster.command("squeue", "--noheader", "--format=%i").split()) & set(numbers)
    results = [Result.of(RunRecord(run.paths)) for run in sweep.runs]
    assert [(result.status, result.cause) for result in results] == [
        *[("interrupted", "stopped by the user")] * 2,
        ("interrupted", f"job {numbers[2]} ended as FAILED on n1: no such thing"),
    ]


def test_a_job_that_goes_on_with_other_settings_is_not_taken_for_this_run(params, monkeypatch):
    def refuse():
        raise slurm.SlurmError("no answer")

    (run,) = load(params, Allocation()).runs
    job.begin(run)
    json_files.write_json(run.paths.slurm, {"name": "dsnb-small-1", "job": "7"})
    monkeypatch.setattr(
        slurm, "queue", lambda: {"dsnb-small-1": Record("7", "dsnb-small-1", "RUNNING")}
    )
    assert refused(jobs_for, load(params, Allocation(), steps=5), Allocation(), []) == (
        f"{run.paths.dir} is being executed by job 7 with other settings (steps was 4 and is 5): "
        "wait for it, cancel it with `scancel 7`, or choose another --output"
    )
    assert refused(run_sweep, params, output=params.parent / "out", progress=False) == (
        f"{run.paths.dir} is still queued or running as Slurm job 7: continue with --slurm, or cancel it with scancel"
    )
    another = {"another": Record("7", "another", "RUNNING")}  # Slurm has used the number again
    monkeypatch.setattr(slurm, "queue", lambda: another)
    assert slurm.find_active([run.paths]) == ""
    monkeypatch.setattr(slurm, "queue", refuse)
    assert refused(slurm.find_active, [run.paths]) == (
        f"{run.paths.dir} was submitted to Slurm, and its job may still be active (no answer); if it has ended, "
        f"delete {run.paths.slurm}"
    )
    said = "Slurm does not answer (no answer): start the sweep again when it does"
    assert refused(jobs_for, load(params, Allocation()), Allocation(), []) == said
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    said = "squeue is not found: --slurm needs Slurm's commands; start it on a login node of the cluster"
    assert refused(jobs_for, load(params, Allocation()), Allocation(), []) == said


@pytest.mark.process
def test_what_slurm_refuses_and_what_it_lets_wait(cluster, params):
    said = []
    sweep = load(params, Allocation(partition="nope"))
    rejected = refused(jobs_for(sweep, Allocation(partition="nope"), said).start, sweep.runs[0])
    assert rejected == f"Slurm rejects {sweep.runs[0].name} run1: Invalid partition name specified"
    asked = Allocation(nodes=3)
    sweep = load(params, asked, gpus="auto")
    assert sweep.runs[0].experiment.gpus == 3
    executor = jobs_for(sweep, asked, said)
    waiting = executor.start(sweep.runs[0])
    wait_until(
        lambda: waiting.poll() or any("NodeLimit" in row for row in said), "Slurm says why it waits"
    )
    time.sleep(2 * POLL_S)
    assert waiting.poll() is None
    assert said[-1] == f"job {waiting.id} waits: PartitionNodeLimit"
    assert len(said) == len({*said}) <= 2  # Slurm may begin with a vaguer one
    assert not waiting.running
    executor.cancel()
    assert wait_until(waiting.poll, "the job is cancelled").cause == "stopped by the user"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "--nodes is 0: give a whole number of at least 1"),
        ({"extra_options": {"": "1"}}, "--sbatch-option is '=1': write it like 'mem=200G' or 'exclusive'"),
        ({"extra_options": {"wrap": "ls"}},
         "--sbatch-option is 'wrap': dsnb sets that itself; use the options of `dsnb sweep`"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options, message):
    assert refused(Allocation, **options) == message


def test_a_run_asks_for_what_it_needs(params):
    asked = Allocation(
        nodes=4, gpus_per_node=8, partition="gpu", time_min=30, extra_options={"exclusive": ""}
    )
    runs = load(params, asked, gpus=[1, 8, 16, "auto"]).runs
    assert [(run.experiment.gpus, run.experiment.nodes) for run in runs] == [
        (1, 1),
        (8, 1),
        (16, 2),
        (32, 4),
    ]
    options = asked.options(runs[2].experiment.model_copy(update={"device": "auto"}))
    command = slurm.sbatch_command("dsnb-x", Path("/a b/50%/job.log"), options, ["python", "$x y"])
    assert command == [
        "sbatch", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--partition=gpu", "--time=30",
        "--exclusive", "--job-name=dsnb-x", "--output=/a b/50%%/job.log", "--open-mode=truncate", "--no-requeue",
        "--parsable", "--wrap=exec python '$x y'",
    ]  # fmt: skip
    assert refused(load, params, asked, gpus=[33, 9]).splitlines() == [
        "gpus is 33 and nodes is 1: a job may have 4 nodes with 8 each; raise --nodes or --gpus-per-node",
        "gpus is 9: 2 nodes cannot share that equally; use a multiple of 2",
    ]


@pytest.mark.parametrize(
    ("record", "status", "cause"),
    [
        (Record("7", "x", "OUT_OF_MEMORY", nodes="n1"), "oom",
         "job 7 ended as OUT_OF_MEMORY on n1: it used more host memory than requested: set --sbatch-option mem=..."),
        (Record("7", "x", "PREEMPTED"), "interrupted", "job 7 ended as PREEMPTED"),
        (Record("7", "x", "TIMEOUT"), "timeout", "job 7 ended as TIMEOUT: raise --time, or lower steps"),
        (None, "interrupted", f"Slurm no longer lists job 7, and {{dir}} has no result: {SHARED}"),
    ],
)  # fmt: skip
def test_slurms_states_are_statuses(tmp_path, record, status, cause):
    assert slurm.job_outcome(RunPaths(tmp_path), "7", record) == (
        status,
        cause.format(dir=tmp_path),
    )


@pytest.mark.parametrize(
    ("status", "codes", "state", "left"),
    [
        ("ok", {0: 0}, "TIMEOUT", True),  # it had been done before
        (
            "failed",
            {0: -15, 1: -15},
            "TIMEOUT",
            False,
        ),  # the ranks saw Slurm's signal before the launch did
        ("interrupted", {}, "FAILED", True),
    ],
)
def test_what_a_run_says_of_itself_stands_unless_slurm_knows_better(
    tmp_path, status, codes, state, left
):
    written = Result(status, "its own", codes, {"wall": 2.0}, {"loss_last": 3.0}, tmp_path)
    written.write()
    result = slurm.final_result(RunPaths(tmp_path), "7", Record("7", "x", state))
    assert (result == written) == left
    assert (result.summary, result.phases_s) == (written.summary, written.phases_s)
    assert json.loads((tmp_path / "result.json").read_text())["cause"] == result.cause
