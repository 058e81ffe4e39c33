"""The factor of another loop: known from the first run on, named, and replaced by a fit only where that is better."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsnb.prediction import loop, predict, traces
from dsnb.prediction.calibration import Measured, left_out, measured, model_of
from dsnb.prediction.check.claims import Seen
from dsnb.prediction.check.logged import claims
from dsnb.prediction.check.verdict import check
from dsnb.prediction.gpus import Link, find
from dsnb.prediction.predict import Hardware
from dsnb.prediction.recommend import Scope, recommend
from dsnb.prediction.step_time import DEFAULT, count_step, step_times
from dsnb.prediction.target import Budget, Target
from dsnb.results.runs.load import load_runs
from dsnb.settings.programs import DSNB
from tests.prediction.made_up import TRACE, given, of_record, runs, trace_nothing
from tests.support import recorded

SIZES = [{"micro_batch_size": size} for size in (2, 4, 8, 16, 32, 64)]
TRAINER = "transformers Trainer"


def slower(times, settings, more_s=0.0):
    """Return runs of a loop that takes some times as long as dsnb's."""
    made = runs(*settings)
    return [
        replace(run, step_time_s=times * run.step_time_s + more_s, loop=TRAINER) for run in made
    ]


def step_s(experiment, constants):
    counts = count_step(experiment, find("H200"), Link())
    return float(step_times([counts], constants).step_time_s[0])


def test_a_loop_1_4_times_slower_is_predicted_within_15_per_cent_after_3_runs():
    other = given(seq_len=512, micro_batch_size=24)
    found = loop.of_runs(slower(1.4, SIZES[:3], more_s=0.005))
    true_s = 1.4 * step_s(other, DEFAULT) + 0.005
    assert step_s(other, found.constants) == pytest.approx(true_s, rel=0.15)
    assert found.times == pytest.approx(1.4, rel=0.05)
    assert not found.is_fitted


def test_one_run_gives_the_factor():
    found = loop.of_runs(slower(1.4, SIZES[:1]))
    assert (found.runs, found.within_pct, found.errors) == (1, 0, None)
    assert found.times == pytest.approx(1.4)
    for one in (given(), given(zero_stage=3, gpus=8), given(compile="default")):
        assert step_s(one, found.constants) == pytest.approx(1.4 * step_s(one, DEFAULT), rel=0.01)


def test_the_factor_is_the_median_of_settings_and_repeats_are_one():
    times = [1.0, 1.2, 1.2, 1.2, 1.3]  # the second setting ran three times
    made = runs(*SIZES[:3])
    of_setting = [made[0], made[1], made[1], made[1], made[2]]
    measured_runs = []
    for run, factor in zip(of_setting, times, strict=True):
        measured_runs.append(replace(run, step_time_s=factor * run.step_time_s, loop=TRAINER))
    found = loop.of_runs(measured_runs)
    assert found.times == pytest.approx(1.2)
    assert found.runs == 3
    assert found.within_pct == pytest.approx(20)  # 1.2 / 1.0


def test_the_factor_is_named():
    three = loop.of_runs(slower(1.38, SIZES[:3]))
    assert three.sentence == (
        "Calibrated: the loop of transformers Trainer takes 1.38 times as long as dsnb predicts of its own, "
        "by 3 measured settings, all within 0 % of that."
    )
    one = loop.of_runs(slower(1.38, SIZES[:1]))
    assert one.sentence == (
        "Calibrated: the loop of transformers Trainer takes 1.38 times as long as dsnb predicts of its own, "
        "by 1 measured setting."
    )
    own = loop.of_runs([replace(run, loop=DSNB) for run in slower(1.38, SIZES[:1])])
    assert own.sentence == (
        "Calibrated: your runs take 1.38 times as long as dsnb predicts of its own, by 1 measured setting; "
        "all constants were fitted."
    )


def test_all_constants_are_fitted_where_that_predicts_left_out_settings_better():
    """A slow host lengthens small steps only, so no factor fits small and large ones."""
    host = DEFAULT.on_host(4)
    settings = [{"seq_len": 128, "micro_batch_size": 2**power} for power in range(10)]
    made = []
    for run in runs(*settings):
        seconds = float(step_times([run.counts], host).step_time_s[0])
        made.append(replace(run, step_time_s=seconds, loop=TRAINER))
    found = loop.of_runs(made)
    assert found.is_fitted
    assert found.constants.host_launch_us > 2 * DEFAULT.host_launch_us
    assert "all constants were fitted" in found.sentence
    by_factor = np.abs(np.log1p(np.array(left_out(made, DEFAULT, loop.slowed)) / 100)).mean()
    by_fit = np.abs(np.log1p(np.array(left_out(made)) / 100)).mean()
    assert by_fit < by_factor


@pytest.mark.parametrize(
    ("errors", "than", "is_better"),
    [
        ([5, 5, 5, 5, 5, 5], [20, 20, 20, 20, 20, 21], True),
        ([20, 20, 20, 20, 20, 20], [5, 5, 5, 5, 5, 5], False),
        ([5, 5, 5, 5, 5, 60], [8, 9, 8, 9, 8, 20], False),  # by chance
        ([5.0] * 6, [5.1] * 6, False),  # by too little
    ],
)
def test_a_fit_is_better_by_more_than_chance(errors, than, is_better):
    assert loop.is_better(errors, than) == is_better


def test_the_range_is_the_spread_of_the_runs_once_there_are_three():
    usual = Hardware(find("H200"), Link())
    factors = [1.3, 1.4, 1.5]
    made = [
        replace(run, step_time_s=factor * run.step_time_s, loop=TRAINER)
        for run, factor in zip(runs(*SIZES[:3]), factors, strict=True)
    ]
    three = usual.calibrated(made).speed_ranges(given(), False).printed
    assert three.on == "3 settings, all"
    # Each is predicted by the median of the two others.
    others = [math.sqrt(1.4 * 1.5), math.sqrt(1.3 * 1.5), math.sqrt(1.3 * 1.4)]
    logs = [math.log(other / own) for other, own in zip(others, factors, strict=True)]
    student = 1.638 * math.sqrt(sum(one**2 for one in logs) / 3)
    assert three.high == pytest.approx(math.exp(student), abs=0.001)
    two = usual.calibrated(made[:2]).speed_ranges(given(), False).printed
    assert "other programs" in two.on


def test_runs_of_another_program_are_measured_with_its_name_and_peak():
    row = {
        "model": "opt-1.3b",
        "strategy": "ddp",
        "precision": "bf16",
        "gpus": 1,
        "seq_len": 512,
        "micro_batch_size": 8,
        "gpu_name": "NVIDIA H200",
        "step_time_mean_s": 1.0,
        "program": "transformers Trainer 5.23.0",
        "peak_allocated_gib": 40.0,
        "optimizer": "adamw_torch_fused",
        "lora_rank": 0,
        "mixed_precision": "native",
        "attention": "flash_attention_2",
        "compile": "off",
        "grad_accum": 1,
        "activation_checkpointing": False,
    }
    (run,) = measured(pd.DataFrame([row]))
    assert (run.loop, run.peak_gib) == (TRAINER, 40.0)
    assert (run.experiment.optimizer, run.experiment.attention) == ("adamw", "sdpa")
    (own,) = measured(pd.DataFrame([{**row, "program": None}]))
    assert own.loop == DSNB


def test_a_recorded_model_is_the_configuration_in_its_folder(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64}
    (tmp_path / "model.json").write_text(json.dumps(config))
    recorded = {"model": "MyModel", "run_dir": str(tmp_path)}
    assert model_of(recorded) == str(tmp_path / "model.json")
    assert model_of({"model": "gpt2", "run_dir": str(tmp_path)}) == "gpt2"
    assert model_of({"model": "MyModel", "run_dir": str(tmp_path / "none")}) == "MyModel"


@pytest.fixture(scope="module")
def recorded_folder(tmp_path_factory):
    """Three settings of a script's own model on a GPU, as its recorder writes them."""
    root = tmp_path_factory.mktemp("own")
    config = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 1024}
    for size in (2, 4, 8):
        run = recorded.record(
            recorded.ONE_RANK,
            root / f"bs{size}" / "run1",
            model="MyModel",
            micro_batch_size=size,
            device="cuda",
        )
        (run.dir / "model.json").write_text(json.dumps({**config, "vocab_size": 512}))
        about = json.loads(run.environment.read_text())
        gpu = {"name": "NVIDIA H200", "memory_gib": 140.4}
        run.environment.write_text(json.dumps({**about, "gpus": [gpu]}))
    return root


def test_recorded_folders_calibrate(recorded_folder):
    table = load_runs(recorded_folder)
    hardware = predict.on_gpu("H200", "nvlink", table)
    assert (hardware.loop.program, hardware.loop.runs) == (TRAINER, 3)
    ratios = []
    for run in measured(table):
        assert run.experiment.model.endswith("model.json")
        ratios.append(run.step_time_s / step_s(run.experiment, DEFAULT))
    assert hardware.loop.times == pytest.approx(np.median(ratios))


def test_recorded_folders_are_checked(recorded_folder):
    found = claims(load_runs(recorded_folder), {}, "", None, Seen())
    verdicts = [check(one) for one in found]
    slowest = min(verdicts, key=lambda verdict: verdict.ratio)
    assert len(found) == 3
    assert slowest.kind == "slow"  # a CPU ran it
    assert slowest.lines[0].startswith("MyModel, 1 GPU H200, plain, 8 x 128 tokens, transformers T")


def with_peak(more_bytes, program=TRAINER, size=8):
    """Return a run whose peak is above the predicted one by some bytes of each logit."""
    one = given(micro_batch_size=size)
    counts = count_step(one, find("H200"), Link())
    (trace,) = of_record([one])
    peak = predict.peak_memory(one, trace).gib
    logits = one.micro_batch_tokens * 50_272  # OPT's vocabulary
    peak_gib = peak + more_bytes * logits / 2**30
    return Measured(one, "NVIDIA H200", 1.0, counts, loop=program, peak_gib=peak_gib)


def test_larger_peaks_of_another_loop_add_bytes_to_each_logit(monkeypatch):
    monkeypatch.setattr(traces, "attempts", of_record)
    assert loop.more_bytes_per_logit([with_peak(10.0), with_peak(12.0, size=16)]) == pytest.approx(
        11
    )
    assert loop.more_bytes_per_logit([with_peak(0.1)]) == 0  # within the error of predictions
    assert loop.more_bytes_per_logit([with_peak(10.0, DSNB)]) == 0
    found = loop.of_runs([with_peak(10.0)])
    size = given(micro_batch_size=2)
    assert found.more_gib(size) == pytest.approx(10 * 2 * 2048 * 50_272 / 2**30)
    assert "Its peaks of memory are 10.0 bytes a logit larger." in found.sentence
    plain = Hardware(find("H200"), Link())
    usual = predict._memory_columns(size, TRACE, plain, math.nan)
    more = predict._memory_columns(size, TRACE, replace(plain, loop=found), math.nan)
    assert more["peak_allocated_gib"] - usual["peak_allocated_gib"] == pytest.approx(
        found.more_gib(size)
    )
    assert more["headroom_gib"] < usual["headroom_gib"]


def test_recommend_uses_the_factor_and_says_it(monkeypatch):
    trace_nothing(monkeypatch)
    rows = [
        {
            "program": "own",
            "experiment": run.experiment.name,
            "step_time_mean_s": run.step_time_s,
            "gpu_name": "NVIDIA H200",
            **run.experiment.model_dump(exclude={"deepspeed", "program"}),
        }
        for run in slower(1.38, SIZES[:3])
    ]

    def answer(**chosen):
        scope = Scope("opt-1.3b", 1, 512, 64)
        (found,) = recommend(scope, Target("H200", **chosen), Budget(1e9))
        return found

    usual = answer()
    own = answer(calibrate=pd.DataFrame(rows))
    assert "your loop takes 1.38 times as long" in " ".join(own.sentences)
    assert "Calibrated" not in " ".join(usual.sentences)
    by_name = [one.table.set_index("experiment")["step_time_s"] for one in (usual, own)]
    times = (by_name[1] / by_name[0]).dropna()
    assert len(times)
    assert times.to_numpy() == pytest.approx(1.38, rel=0.01)


def test_a_loop_as_fast_as_dsnb_changes_no_prediction():
    found = loop.of_runs(slower(1.0, SIZES[:3]))
    assert vars(found.constants) == pytest.approx(vars(DEFAULT))
