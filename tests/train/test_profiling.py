"""`profile: true`: what it measures, that it disturbs nothing, and that no profiler can cost a run."""

import shutil
import time

import pytest

import dsnb
from dsnb.files import records
from dsnb.launcher import run
from dsnb.launcher.folder import remove_leftovers
from dsnb.render import run_card
from dsnb.run_folder.paths import RunPaths
from tests.support import lazy

torch = lazy.Module("torch")
profiling, trainers = lazy.Module("dsnb.train.profiling"), lazy.Module("dsnb.train.trainer")

PARTS = ("forward_s", "backward_s", "optimizer_s")
ATTEMPTS = 3


def event(name, begin_us, end_us, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_us, "dur": end_us - begin_us}


def test_communication_in_a_gpus_trace_is_that_of_its_kernels():
    events = [
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 100, 300),
        event("ncclDevKernel_AllGather_RING_LL(...)", 250, 500),
        event("ampere_sgemm", 0, 150),
        event("adam", 400, 420),
        event("nccl:all_reduce", 0, 9000, "user_annotation"),
        event("nccl:all_reduce", 0, 9000, "gpu_user_annotation"),
        event("c10d::allreduce_", 0, 9000, "cpu_op"),
        event("ProfilerStep#1", 0, 700, "user_annotation"),
        event("ProfilerStep#1", 0, 650, "gpu_user_annotation"),
        {"ph": "i", "name": "nccl", "ts": 3},
    ]
    assert profiling.communication_s(events, "cuda") == (pytest.approx(400e-6), pytest.approx(330e-6))
    assert profiling.step_s_of(events) == pytest.approx(700e-6)


def test_communication_on_a_cpu_is_that_of_gloo():
    events = [
        event("gloo:all_reduce", 0, 100, "user_annotation"),
        event("gloo:all_reduce", 50, 150, "user_annotation"),
        event("c10d::allreduce_", 0, 9000, "cpu_op"),
    ]
    assert profiling.communication_s(events, "cpu") == (pytest.approx(150e-6), None)
    assert profiling.communication_s(events, "cuda") == (None, None)  # without kernels
    assert profiling.communication_s([], "cpu") == (None, None)
    assert profiling.step_s_of([]) is None


class Sleeper:
    """Sleeps 1, 2, 3 and 4 units of time in the parts of each micro-batch, and another one at the end of a step."""

    def __init__(self, *units_s):
        self.section, self.units_s = trainers.no_section, iter(units_s)

    def step(self, micro_batches):
        unit_s = next(self.units_s)
        for _ in micro_batches:
            for units, part in enumerate(("forward", "backward", "optimizer", "communication"), start=1):
                with self.section(part):
                    time.sleep(unit_s * units)
        time.sleep(unit_s)
        return torch.zeros(()), False


@pytest.mark.alone
def test_a_sleepers_parts_are_its_sleeps():
    waits, trainer = [], Sleeper(0.03, 0.01, 0.02)
    split = profiling.time_parts(trainer, [1, 2], lambda: waits.append("device"), lambda: waits.append("ranks"))
    slept = {"forward_s": 0.04, "backward_s": 0.08, "optimizer_s": 0.12, "handover_s": 0.16, "step_s": 0.42}
    assert all(split[part] >= slept[part] for part in slept), "the step with the median time"
    assert split == pytest.approx(slept, abs=0.09)  # a busy machine wakes a sleeper late
    assert waits.count("ranks") == 3
    assert waits.count("device") == 3 * (1 + 2 + 2 * 8)  # before a step, at its edges and at those of its parts
    assert trainer.section is trainers.no_section


@pytest.fixture(scope="module")
def profiled(small, tmp_path_factory):
    """Train with and without a profile; return the folder of both.

    If the machine paused the processes between two parts of the profiled step, it is profiled again.
    """
    folder = tmp_path_factory.mktemp("profiled") / "sweep"
    for name in ("plain", "profiled"):
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder / name, ignore_errors=True)
            experiment = small(gpus=2, strategy="ddp", profile=name == "profiled")
            run.launch(experiment, folder / name / "run1", progress=False).raise_for_status()
            profile = records.read_json(RunPaths(folder / name / "run1").profile) or {"step_s": 0}
            if sum(profile.get(part) or 0 for part in PARTS) >= 0.95 * profile["step_s"]:
                break
    return folder


@pytest.mark.alone
def test_a_profile_adds_a_breakdown_and_a_trace_to_the_same_steps(profiled):
    plain, paths = (RunPaths(profiled / name / "run1") for name in ("plain", "profiled"))
    profile = records.read_json(paths.profile)
    assert profile["missing"] == {}
    assert all(profile[part] > 0 for part in PARTS)
    parts_s = sum(profile[part] for part in PARTS)
    assert parts_s <= profile["step_s"]
    assert parts_s == pytest.approx(profile["step_s"], rel=0.05, abs=0.002)
    assert 0 < profile["communication_s"] <= profile["traced_step_s"]
    assert profile["exposed_communication_s"] is None
    names = {event["name"] for event in profiling.read_events(paths.trace)}
    assert {"forward", "backward", "optimizer", "gloo:all_reduce"} <= names
    assert "gloo:barrier" not in names
    assert paths.trace.stat().st_size < 500_000
    steps = [records.read_lines(each.steps) for each in (plain, paths)]
    assert [row.keys() for row in steps[0]] == [row.keys() for row in steps[1]]
    assert [row["loss"] for row in steps[0]] == [row["loss"] for row in steps[1]]
    workers = [records.read_json(each.worker) for each in (plain, paths)]
    assert workers[0].keys() == workers[1].keys()
    assert workers[1]["timed_to_s"] <= workers[1]["ended_s"] <= profile["from_s"] <= profile["ended_s"]
    result = records.read_json(paths.result)
    assert result["phases_s"]["profile"] == pytest.approx(profile["ended_s"] - workers[1]["ended_s"])
    assert not [path for path in (plain.profile, plain.trace) if path.exists()]


@pytest.mark.alone
def test_the_figures_reach_every_table_and_the_card_of_the_run(profiled, monkeypatch):
    runs = dsnb.load_runs(profiled)
    plain, measured = (runs[runs["experiment"] == name].iloc[0] for name in ("plain", "profiled"))
    folder = profiled / "profiled" / "run1"
    profile = records.read_json(RunPaths(folder).profile)
    figures = [*PARTS, "communication_s"]
    assert [measured[name] for name in figures] == [profile[name] for name in figures]
    assert plain[figures].isna().all()
    monkeypatch.chdir(profiled)
    shown = run_card.card(run.Result(**records.read_json(RunPaths(folder).result), run_dir=folder)).text
    assert '<a href="profiled/run1/trace.json.gz">' in shown
    assert "profile_missing" not in shown


def test_a_run_that_is_repeated_loses_its_old_profile(tmp_path):
    paths = RunPaths(tmp_path / "run1")
    paths.dir.mkdir()
    for path in (paths.profile, paths.trace):
        path.write_text("{}")
    remove_leftovers(paths)
    assert not list(paths.dir.iterdir())


@pytest.mark.parametrize("broken", ["profilers", "rank", "hang"])
def test_no_profiler_can_cost_a_run(run_small, monkeypatch, broken):
    monkeypatch.setenv("DSNB_TEST_PROFILE", broken)
    monkeypatch.setattr(run, "GRACE_PERIOD_S", 0.5)
    result, paths = run_small(worker="tests.workers.badprofile", gpus=2, profile=True)
    assert (result.status, result.cause) == ("ok", None), result.message()
    assert result.summary["tokens_per_s"] > 0
    profile = records.read_json(paths.profile)
    assert profile["step_s"] > sum(result.summary[name] for name in PARTS) * 0.99
    assert result.summary["communication_s"] is None
    why = {"profilers": "RuntimeError: no counters on this host"}.get(broken, profiling.CUT_OFF)
    assert profile["missing"] == {"trace": why, "communication": why}
    assert result.summary["profile_missing"] == f"trace: {why}; communication: {why}"
    told = {"rank": "", "hang": "dsnb: the profile took too long and is left unfinished"}
    assert told.get(broken, f"dsnb: no trace in the profile: {why}") in paths.console.read_text()
