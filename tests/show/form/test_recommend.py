"""`dsnb.recommend` with runs on this machine, of a light server or made up, and what it writes."""

import json
import re
import signal
import subprocess
import sys

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.base.system import hardware
from dsnb.prediction.predict import on_gpu
from dsnb.prediction.recommend import held_by_host
from dsnb.prediction.target import Target
from dsnb.settings.exchange import deepspeed_plain, files
from dsnb.settings.params_file import combinations, read_params
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.form import measure
from dsnb.show.form.measure import Measuring, decide_by_runs
from dsnb.show.form.recommend import write
from tests import ROOT
from tests.prediction.made_up import trace_nothing
from tests.results.statistics.test_comparisons import runs_of
from tests.settings.records.test_result import make
from tests.support.small_sweep import light_server
from tests.support.waiting import WAIT_S, wait_until

SMALL = {"precision": "fp32", "strategy": "deepspeed", "zero_stage": [0, 1], "loss": "whole", "steps": 3,
         "activation_checkpointing": False, "checkpoint_every": 1, "micro_batch_size": 2}  # fmt: skip
QUESTION = {"gpus": 1, "seq_len": 32, "global_batch": 2}


@pytest.fixture
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


@pytest.mark.usefixtures("_no_torch")
def test_what_is_written_is_what_is_recommended(tmp_path):
    found = dsnb.recommend(
        "opt-1.3b", "H100", gpus=8, tokens=1e10, settings={"strategy": "deepspeed"}
    )
    said = write(tmp_path / "new", found)
    params = tmp_path / "new" / "params.yaml"
    assert said[0] == f"Written: {params}; to verify it by runs: dsnb sweep {params}"
    sweep = dsnb.load_sweep(params)
    experiments = [dsnb.Experiment(**settings) for settings in combinations(read_params(params))]
    assert experiments == list(found.experiments[: len(found.table)])
    assert [one.name_with_model for one in experiments] == found.table["experiment"].tolist()
    assert sorted(run.repeat for run in sweep.runs) == sorted([1, 2, 3, 4] * len(experiments))
    for place, experiment in zip(("", "alternative_1", "alternative_2"), experiments, strict=False):
        folder = tmp_path / "new" / place
        assert json.loads((folder / "deepspeed.json").read_text()) == deepspeed_plain(experiment)
        for name, content in files.files(experiment, folder).items():
            assert (folder / name).read_text() == content
    adapted = next(sentence for sentence in said if "adapt(model" in sentence)
    assert "has no mask" in adapted


@pytest.mark.process
@pytest.mark.skipif(bool(hardware.gpus()), reason="the light server is for CPU ranks")
def test_stopped_by_ctrl_c_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    fixed = [
        word for name, value in SMALL.items() for word in ("--set", f"{name}={json.dumps(value)}")
    ]
    words = [
        sys.executable,
        "-m",
        "dsnb",
        "recommend",
        "gpt2-tiny",
        "--measure",
        "2",
        "--output",
        str(out),
        *fixed,
    ]
    words += ["--gpus", "1", "--seq-len", "32", "--global-batch", "2"]
    with subprocess.Popen(
        words, cwd=ROOT, env=light_server(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as one:
        wait_until(lambda: len([*out.glob("*/run*/result.json")]) == 2, "two results")
        one.send_signal(signal.SIGINT)
        said = one.stderr.read().decode().splitlines()
        assert one.wait(WAIT_S) == 130
    assert said[-1] == "interrupted: finished runs are kept, start the same command again to go on"
    assert any(line.startswith("measuring setting 1: zs") for line in said)
    before = {file: file.stat().st_mtime_ns for file in out.glob("*/run*/result.json")
              if json.loads(file.read_text())["status"] == "ok"}  # fmt: skip
    assert len(before) >= 2
    words += ["--minutes", "0.01"]
    done = subprocess.run(
        words, cwd=ROOT, env=light_server(), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert (
        before.items()
        <= {file: file.stat().st_mtime_ns for file in out.glob("*/run*/result.json")}.items()
    )
    assert re.search(r"Measured: [2-5] runs of 2 settings; the time was over\.", done.stdout), (
        done.stdout
    )


class Runs:
    """Made-up runs: tokens/s of each setting by its micro-batch, None for one that fails."""

    def __init__(self, rates):
        self.rates, self.made = rates, []

    def execute(self, measuring):
        for name, candidate in measuring.started.items():
            done = sum(row["experiment"] == name for row in self.made)
            rate = self.rates[candidate.run.micro_batch_size]
            for repeat in range(done + 1, candidate.repeats + 1):
                noise = 1 + 0.001 * (repeat % 3)
                row = candidate.run.model_dump() | {
                    "sweep": "s",
                    "experiment": name,
                    "repeat": repeat,
                }
                row |= {"host": "h", "cause": "out of memory"}
                status = (
                    {"status": "oom"}
                    if rate is None
                    else {"status": "ok", "tokens_per_s": rate * noise}
                )
                self.made.append(row | status)
        measuring._longest_s = 60.0
        return pd.DataFrame(self.made)


@pytest.fixture
def made(monkeypatch):
    """Return a function that lets runs be made up with these tokens/s."""

    def made_up(rates):
        runs = Runs(rates)
        monkeypatch.setattr(Measuring, "execute", lambda measuring: runs.execute(measuring))
        monkeypatch.setattr(
            measure.local, "shared_servers", lambda devices: measure.local.contextlib.nullcontext()
        )

    return made_up


@pytest.mark.usefixtures("_no_torch")
def test_a_setting_that_fails_makes_room_for_the_next_one(made, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "gpus", lambda: ())
    made({1: 100.0, 2: None})
    settings = {**SMALL, "zero_stage": 1, "micro_batch_size": [2, 1]}
    found = dsnb.recommend(
        "gpt2-tiny", **QUESTION, settings=settings, measure=1, output=tmp_path / "out"
    )
    best = "gpt2-tiny_zs1_fp32_gpus1_bs1_sl32_ga2"
    assert found.table["experiment"].tolist() == [best]
    assert found.table["tokens_per_s"][0] == pytest.approx(100.1)
    said = "\n".join(found.sentences)
    assert said.startswith(
        "Train with ZeRO 1, fp32, micro-batch 1, 2 accumulated (measured) on 1 CPU rank, 100 tokens/s"
    )
    assert "\nMeasured: 2 runs of 2 settings; decided.\n" in said
    assert "\nNot recommended because it failed: zs1_fp32_gpus1_bs2_sl32: out of memory." in said
    assert found.folder == tmp_path / "out"
    assert not [*tmp_path.rglob("report.html")]


@pytest.mark.parametrize(
    ("rates", "minutes", "runs", "end"),
    [
        ({1: 100, 2: 110, 4: 120, 8: 999}, None, {1: 4, 2: 4, 4: 4}, "decided"),
        ({1: None, 2: 110, 4: 120, 8: 130}, None, {1: 1, 2: 4, 4: 4, 8: 4}, "decided"),
        (
            {1: 100, 2: 250, 4: None, 8: None},
            None,
            {1: 1, 2: 1, 4: 1, 8: 1},  # more than twice as fast
            "decided; no further setting was tried after 2 ran out of memory",
        ),
        (
            {1: None, 2: None, 4: 120, 8: 130},
            None,
            {1: 1, 2: 1},
            "nothing could be measured: zs0_fp32_gpus1_bs1_sl32: "
            "out of memory\nnothing could be measured: zs0_fp32_gpus1_bs2_sl32: out of memory",
        ),
        ({1: 100, 2: 110, 4: 120, 8: 130}, 2.5, {1: 1, 2: 1, 4: 1}, "the time was over"),
    ],
)
def test_runs_go_on_until_the_best_is_decided(made, tmp_path, rates, minutes, runs, end):
    asked = [
        dsnb.Experiment(
            model="gpt2-tiny", device="cpu", precision="fp32", micro_batch_size=size, seq_len=32
        )
        for size in rates
    ]
    made(rates)
    measuring = Measuring(tmp_path, on_gpu("H200", "nvlink"), {}, minutes)
    try:
        table, ended = decide_by_runs(measuring, 3, lambda _: asked)
    except SettingsError as error:
        table, ended = measuring.execute(), str(error)
    assert ended == end
    counts = table["experiment"].value_counts()
    assert {
        size: int(counts[one.name])
        for size, one in zip(rates, asked, strict=True)
        if one.name in counts
    } == runs
    made(dict.fromkeys(rates))
    with pytest.raises(
        SettingsError, match="nothing could be measured: zs0_fp32_gpus1_bs1_sl32: out of memory"
    ):
        decide_by_runs(
            Measuring(tmp_path, on_gpu("H200", "nvlink"), {}, None), 3, lambda _: asked[:1]
        )


@pytest.mark.usefixtures("_no_torch")
def test_a_step_that_takes_long_is_measured_with_fewer_micro_batches():
    on = on_gpu("H200", "nvlink")
    one = dsnb.Experiment(model="opt-13b", device="cuda", gpus=8, zero_stage=3, micro_batch_size=4, grad_accum=128,
                          seq_len=2048)  # fmt: skip
    made = measure.candidate(one, on, {})
    assert 2 <= made.run.grad_accum < 20
    assert (made.run.steps, made.run.warmup_steps) == (5, 3)
    whole, short = dsnb.predict([one, made.run], "H200", probe=False)["tokens_per_s"]
    assert made.factor == pytest.approx(whole / short)
    assert measure.candidate(one, on, {"steps": 20}).run.steps == 20


def test_runs_of_a_shortened_setting_have_the_speed_of_the_whole_one(monkeypatch, tmp_path):
    """The made runs have 100 and 200 tokens/s; whole settings are three times as fast."""
    short = dsnb.Experiment(model="gpt2-tiny", device="cpu", precision="fp32", steps=5)
    measuring = Measuring(tmp_path / "out", on_gpu("H200", "nvlink"), {}, minutes=None)
    measuring.started[short.name] = measure.Candidate(short, short, factor=3.0, repeats=2)

    def run_last(sweep):
        make(sweep.runs[-1])
        return [Result.of(RunRecord(sweep.runs[-1].paths))]

    monkeypatch.setattr(measure, "run_sweep", run_last)
    assert measuring.execute()["tokens_per_s"].tolist() == [300, 600]


@pytest.mark.usefixtures("_no_torch")
def test_only_one_task_on_the_gpu_of_this_machine_is_measured():
    asked = [
        dsnb.Experiment(model=name, device="cuda", precision="fp32")
        for name in ("gpt2-tiny", "gpt2")
    ]
    words = r"measure is for one task, but there are 2 \(gpt2-tiny, sequence \d+; gpt2, sequence \d+\): ask for one"
    with pytest.raises(SettingsError, match=words):
        dsnb.recommend(asked, measure=1)
    with pytest.raises(
        SettingsError, match="gpu is 'T4', but runs are measured on this machine, which has"
    ):
        dsnb.recommend("gpt2-tiny", "T4", measure=2)
    with pytest.raises(SettingsError, match="measure is -1: give the number of settings to run"):
        dsnb.recommend("gpt2-tiny", measure=-1)


def test_the_first_run_ends_with_the_time_and_counts_as_not_started(monkeypatch, tmp_path):
    asked = dsnb.Experiment(
        model="gpt2-tiny", device="cpu", precision="fp32", seq_len=32, time_limit_s=500
    )
    measuring = Measuring(tmp_path / "out", on_gpu("H200", "nvlink"), {}, minutes=5)
    limits = []

    def time_out(sweep):
        (run,) = sweep.runs
        limits.append(run.experiment.time_limit_s)
        make(run)
        measuring._until = 0.0
        result = Result("timeout", "no end within the time limit", {}, {}, {}, run.paths.dir)
        result.write()
        return [result]

    monkeypatch.setattr(measure, "run_sweep", time_out)
    monkeypatch.setattr(
        measure.local, "shared_servers", lambda devices: measure.local.contextlib.nullcontext()
    )
    with pytest.raises(
        SettingsError,
        match="nothing could be measured: there was no time for any run; give more minut",
    ):
        decide_by_runs(measuring, 2, lambda _: [asked])
    (limit,) = limits
    assert 290 < limit <= 300
    assert not [*tmp_path.rglob("result.json")]


@pytest.mark.skipif(bool(hardware.gpus()), reason="with a GPU, its memory decides")
def test_a_model_that_this_machine_cannot_hold_is_refused_before_anything_is_traced(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(hardware, "available_memory_gib", lambda: 24.0)
    monkeypatch.setattr(
        "dsnb.prediction.traces._make", lambda *_: pytest.fail("a model was traced")
    )
    with pytest.raises(SettingsError) as caught:
        dsnb.recommend(
            "bloom-7b1", measure=2, gpus=1, settings={"strategy": "plain"}, output=tmp_path / "out"
        )
    # 7.07e9 parameters: fp32 weights, gradients and two moments are 105 GiB.
    said = re.fullmatch(
        r"bloom-7b1 needs at least (\d+) GiB of host memory on 1 CPU rank \(by plain_fp32_gpus1_.*\), and this "
        r"machine has 24 GiB free: measure a smaller model, or predict without measure",
        str(caught.value),
    )
    assert said
    assert 105 <= float(said[1]) < 125
    assert not (tmp_path / "out").exists()


def test_shortages_are_settings_that_ran_out_of_memory():
    statuses = ["oom", "oom", "oom", "failed", "ok"]
    runs = pd.DataFrame({"experiment": ["a", "a", "b", "c", "d"], "status": statuses})
    assert measure.shortages(runs) == 2


def test_settings_that_are_too_large_are_not_tried(monkeypatch):
    asked = [
        dsnb.Experiment(
            model="gpt2", device="cpu", precision="fp32", micro_batch_size=size, seq_len=1024
        )
        for size in (1, 2, 64)
    ]
    monkeypatch.setattr(hardware, "available_memory_gib", lambda: 12.0)
    assert [one.micro_batch_size for one in held_by_host(asked)] == [
        1,
        2,
    ]  # 64 x 1024 logits of fp32 alone are 12.3 GiB


def test_the_memory_of_the_gpu_that_runs_decides_what_is_tried(monkeypatch, tmp_path):
    """On an unknown GPU speeds are ordered as on an H200, whose memory it does not have."""
    part = hardware.InstalledGpu(0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-1", 10.0, (9, 0))
    monkeypatch.setattr(hardware, "gpus", lambda: (part,))
    asked = []

    def stop(scope, target, budget):
        asked.append(target)
        raise SettingsError("stopped")

    monkeypatch.setattr("dsnb.prediction.recommend.recommend", stop)
    with pytest.raises(SettingsError, match="stopped"):
        dsnb.recommend("gpt2", measure=2, gpus=1, output=tmp_path / "out")
    assert (asked[0].gpu, asked[0].gpu_memory_gib) == ("H200", 10.0)
    for memory_gib, used_gib in ((10.0, 10.0), (200.0, 139.8), (None, 139.8)):
        assert Target("H200", gpu_memory_gib=memory_gib).hardware.gpu.memory_gib == used_gib


def test_the_length_of_a_run_on_a_cpu_is_estimated_from_its_operations():
    """Of 124 million parameters, 64 tokens are 6 x 124e6 x 64 operations, 0.96 s at 5e10/s: 11 steps are 10 s."""
    one = dsnb.Experiment(model="gpt2", device="cpu", precision="fp32", micro_batch_size=1, seq_len=64)  # fmt: skip
    made = measure.candidate(one, on_gpu("H200", "nvlink"), {})
    assert (made.run.steps, made.run.warmup_steps, made.factor) == (11, 3, 1.0)


TINY = dsnb.Experiment(
    model="gpt2-tiny", device="cpu", precision="fp32", seq_len=32, time_limit_s=100
)


def test_the_longest_run_decides_what_ends_in_time_and_a_settings_own_limit_stays(
    monkeypatch, tmp_path
):
    """Of 90 s, two runs of 80 s need more."""
    measuring = Measuring(tmp_path / "out", on_gpu("H200", "nvlink"), {}, minutes=1.5)
    measuring.started[TINY.name] = measure.Candidate(TINY, TINY, factor=1.0, repeats=2)
    walls = [80.0, 1.0]
    limits = []

    def run_last(sweep):
        run = sweep.runs[-1]
        limits.append(run.experiment.time_limit_s)
        make(run)
        return [Result("ok", None, {}, {"wall": walls.pop(0)}, {}, run.paths.dir)]

    monkeypatch.setattr(measure, "run_sweep", run_last)
    monkeypatch.setattr(measure.time, "monotonic", lambda: measuring._until - 90.0)
    measuring.execute()
    assert walls == []
    assert limits == [90.0, 90.0]  # less than its own 100 s
    assert measuring.has_time(1)
    assert not measuring.has_time(2)
    monkeypatch.setattr(measure.time, "monotonic", lambda: measuring._until - 5000.0)
    measuring.started[TINY.name].repeats = 3
    walls.append(1.0)
    measuring.execute()
    assert limits[2:] == [100.0]


def test_runs_are_resumed_as_they_were_made_and_on_their_device(tmp_path):
    """A run that was shortened in another way than now is taken as it is: with the factor 1."""
    on = on_gpu("H200", "nvlink")
    whole = dsnb.Experiment(model="opt-13b", device="cuda", gpus=8, zero_stage=3, micro_batch_size=4, grad_accum=128,
                            seq_len=2048)  # fmt: skip
    fresh = measure.candidate(whole, on, {})
    assert fresh.factor != 1.0
    before = whole.model_copy(update={"grad_accum": 16, "steps": 7})
    for run, factor in ((fresh.run, fresh.factor), (before, 1.0)):
        measuring = Measuring(tmp_path / str(factor), on, {}, None)
        measuring.paths.params.parent.mkdir()
        content = measure.params_of("x", "", [run]).model_dump(exclude_defaults=True)
        measuring.paths.params.write_text(plain_yaml.dump(content))
        measuring.resume([whole.model_copy(update={"device": "cpu"})])
        assert measuring.started == {}
        measuring.resume([whole])
        (started,) = measuring.started.values()
        assert (started.run, started.factor) == (run, factor)


def test_undecided_settings_are_the_best_and_those_near_it(tmp_path):
    rates = {
        "fast": [100.0, 104, 96, 100],
        "near": [99.0, 103, 95, 99],
        "half": [50.0],
        "late": [60.0],
    }
    assert measure.undecided(runs_of(**rates)) == ["fast", "near", "late"]  # 50 x 1.9 is below 100
    assert measure.undecided(runs_of(fast=[100.0])) == []
    measuring = Measuring(tmp_path, on_gpu("H200", "nvlink"), {}, None)
    for name, repeats in {"a": 3, "b": 1}.items():
        measuring.started[name] = measure.Candidate(TINY, TINY, factor=1.0, repeats=repeats)
    measuring.repeat(["a", "b"])
    assert [one.repeats for one in measuring.started.values()] == [3, 2]


@pytest.mark.usefixtures("_no_torch")
def test_no_configuration_of_an_earlier_recommendation_is_left_behind(tmp_path):
    earlier = dsnb.recommend("opt-1.3b", "H100", gpus=8, tokens=1e10, settings={"strategy": "deepspeed"})  # fmt: skip
    write(tmp_path, earlier)
    assert (tmp_path / "deepspeed.json").exists()
    said = write(
        tmp_path,
        dsnb.recommend("opt-1.3b", "H100", gpus=8, tokens=1e10, settings={"strategy": "fsdp"}),
    )
    assert "deepspeed" not in said[1]
    assert not list(tmp_path.glob("deepspeed*.json"))
