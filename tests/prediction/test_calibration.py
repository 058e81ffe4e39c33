"""Constants fitted to measured runs, and errors on runs left out of the calibration, as the page states them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dsnb
from benchmarks import left_out_families, prediction_errors
from benchmarks.prediction_errors import PRIOR, usual_launch_us
from dsnb.prediction.accuracy import (
    ALL,
    DEFAULT_COVERAGE,
    ELSEWHERE,
    FAMILY,
    FAMILY_ERRORS,
    LEFT_OUT,
    LEFT_OUT_COVERAGE,
    MIN_SETTINGS,
    TIME_ERRORS,
    Coverage,
    PredictionError,
    by_kind,
    expected_error,
)
from dsnb.prediction.calibration import calibrate, left_out, measured
from dsnb.prediction.gpus import Link, find, link
from dsnb.prediction.predict import Hardware
from dsnb.prediction.step_time import DEFAULT, FITTED_SETTINGS, step_times
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import runs

SMALL = {"model": "gpt2", "micro_batch_size": 1, "seq_len": 128}
USUAL = {
    "model": "opt-1.3b",
    "zero_stage": 1,
    "gpus": 2,
    "micro_batch_size": 8,
    "seq_len": 1024,
    "device": "cuda",
}


def assert_stated(found, stated):
    """Compare errors by kind with those stated; linear algebra elsewhere may round the last digit."""
    enough = {name: errors for name, errors in found.items() if errors.settings >= MIN_SETTINGS}
    assert enough.keys() == stated.keys()
    for name, errors in enough.items():
        assert tuple(errors) == pytest.approx(tuple(stated[name]), abs=0.11)


@pytest.mark.docs
def test_the_stated_errors_are_those_of_settings_that_nothing_was_fitted_to():
    made, errors = prediction_errors.unseen()
    assert_stated(by_kind(made, errors), TIME_ERRORS)
    fitted = {run.counts for run in prediction_errors.fitted_runs()}
    assert not fitted & {run.counts for run in made}


def test_published_tables_of_gpus_that_nothing_was_calibrated_on():
    by_table, by_gpu_and_nodes = prediction_errors.elsewhere()
    assert_stated(by_gpu_and_nodes, ELSEWHERE)
    assert sum(one.settings for one in by_table.values()) == ELSEWHERE[ALL].settings
    assert by_table["lambda_1cc_opt"].worst_pct < 15  # with SDPA, OPT-350M is 33 % off


def test_the_stated_errors_of_families_are_those_of_families_that_nothing_was_fitted_to():
    made = prediction_errors.of_left_out_families()
    assert_stated(left_out_families.by_family(made), FAMILY_ERRORS)
    found = left_out_families.covered(made)
    assert {words: frozenset(names) for words, names in found.items()} == LEFT_OUT_COVERAGE
    assert not LEFT_OUT_COVERAGE[FAMILY] & DEFAULT_COVERAGE.names[FAMILY]


def test_errors_of_families_by_hand():
    """A Llama in half and a Qwen3 in twice the predicted time; a Llama that takes 1.25 times as long."""
    made = runs({"model": "llama-3.2-1b"}, {"model": "qwen3-0.6b"}, {"model": "llama-3.2-1b"})
    factors = (0.5, 2, 1.25)
    made = [
        replace(run, step_time_s=factor * run.step_time_s)
        for run, factor in zip(made, factors, strict=True)
    ]
    found = left_out_families.by_family(made)
    assert {name: tuple(error) for name, error in found.items()} == {
        "llama, limited by the CPU": (2, 58.1, 100.0, 26.5),  # the roots of 2 * 1.25 and 2 / 1.25
        "qwen3, limited by the CPU": (1, 100.0, 100.0, -50.0),
        f"{LEFT_OUT}, limited by the CPU": (3, 71.0, 100.0, -7.2),
    }


def test_a_run_has_no_part_in_its_own_prediction():
    """A model, or a setting, that takes twice as long as the others predict is predicted at half its time."""
    made = runs({}, {"micro_batch_size": 16}, {"model": "gpt2-xl"})
    made[2] = replace(made[2], step_time_s=2 * made[2].step_time_s)
    errors = left_out(made)
    assert errors[2] == pytest.approx(-50)
    assert errors[0] > 5  # predicted from the slow one
    alike = runs({"micro_batch_size": 4}, {}, {"micro_batch_size": 16})
    alike[1] = replace(alike[1], step_time_s=2 * alike[1].step_time_s)
    assert left_out([*alike, alike[1]])[1] == pytest.approx(-50)  # its repeat is left out with it


@pytest.mark.parametrize(
    ("record", "masked"),
    [
        ({"attention_used": "sdpa", "compile": "default"}, True),  # by transformers
        ({"attention_used": "sdpa", "compile": "off"}, False),
        ({"attention_used": "sdpa"}, False),
        ({"attention_used": "causal_sdpa", "compile": "default"}, False),
        ({"attention_used": "causal_sdpa", "attention_kernel": "cudnn, masked"}, True),
        ({"attention_used": "causal_sdpa", "attention_kernel": "cudnn, partly masked"}, False),
        ({}, False),
    ],
)
def test_a_run_is_predicted_with_the_mask_that_it_had(record, masked):
    """Attention of OPT-1.3B is 24 x 7 products of 2048 x (1024 + 128) / 2 keys; with a mask, 1.6 x 1024."""
    row = {
        "model": "opt-1.3b", "micro_batch_size": 8, "seq_len": 1024, "device": "cuda", "gpu_name": "NVIDIA H200",
        "step_time_mean_s": 1.0, **record,
    }  # fmt: skip
    (run,) = measured(pd.DataFrame([row]))
    keys = 1.6 * 1024 if masked else (1024 + 128) / 2
    assert run.counts.attention_flops == pytest.approx(24 * 7 * 2 * 8 * 1024 * 2048 * keys)


def test_errors_by_hand_are_factors():
    """Half and twice the measured time are both wrong by a factor of two."""
    assert PredictionError.of([-50, 100]) == PredictionError(2, 100.0, 100.0, 0.0)
    assert PredictionError.of([25, -20, 25]) == PredictionError(
        3, 25.0, 25.0, 7.7
    )  # the cube root of 1.25
    measured_on = {
        "few": PredictionError.of([1.0] * (MIN_SETTINGS - 1)),
        "enough": PredictionError.of([1.0] * MIN_SETTINGS),
    }
    assert expected_error(measured_on, measured_on)[0] == "enough"
    made = runs(
        {"strategy": "ddp", "gpus": 2, "micro_batch_size": 64}, {"micro_batch_size": 64}, SMALL
    )
    errors = by_kind(made, [25, -20, 100])
    assert len(errors) == 9
    assert errors["DDP, limited by the GPU, several GPUs"] == (1, 25.0, 25.0, 25.0)
    assert errors["limited by the CPU, one GPU"] == (1, 100.0, 100.0, 100.0)
    assert errors["limited by the GPU"] == (2, 25.0, 25.0, 0.0)
    assert errors[ALL] == (
        3,
        46.2,
        100.0,
        26.0,
    )  # the cube roots of 1.25 * 1.25 * 2 and 1.25 / 1.25 * 2


def unlike(gpu="H200", covered=DEFAULT_COVERAGE, path=None, **settings):
    experiment = Experiment(**{**USUAL, **settings})
    return covered.outside(experiment, gpu, path or Link())


def test_what_is_outside_is_said():
    assert unlike() == []
    odd = {"gpus": 16, "micro_batch_size": 1, "seq_len": 64, "zero_stage": 2, "optimizer": "muon"}
    assert unlike("A100", path=link("ib:400"), **odd) == [
        "no calibration run used optimizer muon, only adafactor, adamw",
        "the number of tokens in a micro-batch is 64, calibration runs have 256 to 32,768",
        "the number of GPUs is 16, calibration runs have 1 to 4",
        "the number of nodes is 2, calibration runs have 1",
    ]
    both = {"gpus": 4, "zero_stage": 0, "tensor_parallel": 2}
    assert unlike(**both) == []
    why = "no calibration run used strategy ZeRO 0 with tensor parallel and pipeline parallel"
    assert unlike(**both, pipeline_parallel=2)[0] == why  # too many were used to name them
    copied = {"strategy": "fsdp", "gpus": 4, "shard_size": 2, "zero_stage": 0}
    why = "no calibration run used strategy fsdp with copies of shards"
    assert unlike(**copied)[0] == why
    row = {**USUAL, "gpu_name": "NVIDIA L4", "step_time_mean_s": 1.0}
    covered = Coverage.of(measured(pd.DataFrame([row])), Link())
    assert unlike("L4", covered) == []
    why = "no calibration run used mode of compilation compiled, only eager"
    assert unlike("L4", covered, compile="default") == [why]
    why = "no calibration run used GPU A100, only L4"
    assert unlike("A100", covered) == [why]
    why = "no calibration run used models of the family llama, only opt"
    assert unlike("L4", covered, model="llama-3.2-1b")[0] == why


@pytest.fixture(scope="module")
def h200():
    return prediction_errors.h200_runs(with_held_out=False)


def predicted(runs, constants):
    return np.asarray(step_times([run.counts for run in runs], constants).step_time_s)


def test_a_single_run_moves_what_it_depends_on_and_nothing_else(h200):
    run = next(run for run in h200 if run.experiment.strategy == "plain")
    slow = replace(run, step_time_s=1.2 * float(predicted([run], DEFAULT)[0]))
    found = calibrate([slow])
    assert 1.05 < float(predicted([run], found)[0] / predicted([run], DEFAULT)[0]) < 1.2
    assert found.matmul_efficiency < DEFAULT.matmul_efficiency
    assert found.link_efficiency == pytest.approx(DEFAULT.link_efficiency)
    assert found.host_gather_us == pytest.approx(DEFAULT.host_gather_us)
    assert calibrate([]) is DEFAULT
    assert vars(calibrate([slow] * 50)) == pytest.approx(
        vars(found)
    )  # repeats of a setting count once


def test_a_slow_host_is_known_by_its_launch_time_and_slows_other_settings():
    row = {**USUAL, "gpu_name": "NVIDIA H200", "step_time_mean_s": 1.0}
    times_us = (DEFAULT.host_launch_us, 2 * DEFAULT.host_launch_us, 1e9)
    usual, slow, odd = measured(
        pd.DataFrame([{**row, "launch_us": time_us} for time_us in times_us])
    )
    assert slow.counts.host_launches == pytest.approx(2 * usual.counts.host_launches)
    assert odd.counts == usual.counts
    as_predicted = replace(slow, step_time_s=float(predicted([slow], DEFAULT)[0]))
    on = Hardware(find("H200"), Link()).calibrated([as_predicted])
    assert on.constants.host_launch_us == pytest.approx(2 * DEFAULT.host_launch_us, rel=0.01)


def test_the_default_constants_are_those_that_fit_the_measured_runs(h200):
    found = calibrate(h200, PRIOR)
    found = found.on_host(usual_launch_us() / found.host_launch_us)
    assert vars(DEFAULT) == pytest.approx(vars(found), rel=0.005)
    assert len(h200) == FITTED_SETTINGS
    covered = Coverage.of(h200, Link())
    assert covered.ranges == DEFAULT_COVERAGE.ranges
    assert covered.names == DEFAULT_COVERAGE.names


def test_small_clusters_tell_large_ones():
    """Lambda's runs on 1 to 16 H100 calibrate; those on 512 are within 2 %."""
    table = dsnb.published("lambda_1cc_opt").assign(gradient_clipping=1.0)
    runs = measured(table, "ib:400")
    constants = calibrate([run for run in runs if run.experiment.gpus <= 16])
    large = [run for run in runs if run.experiment.gpus == 512]
    assert len(large) == 2
    assert predicted(large, constants) == pytest.approx(
        [run.step_time_s for run in large], rel=0.02
    )


def test_rows_of_other_programs():
    """What a row does not tell has its default; the version in a column `deepspeed` is no setting."""
    row = {
        "model": "gpt2",
        "gpus": 1.0,
        "compile": False,
        "deepspeed": "0.19.8",
        "zero_stage": float("nan"),
    }
    one = Experiment.of_row(row)
    assert (one.gpus, one.compile, one.deepspeed, one.zero_stage, one.precision) == (
        1,
        "off",
        {},
        0,
        "bf16",
    )
    key = "deepspeed.zero_optimization.stage3_max_live_parameters"
    assert Experiment.of_row({**row, key: 5}).deepspeed == {
        "zero_optimization.stage3_max_live_parameters": 5
    }
    assert (
        Experiment.of_row({**row, key: 5.0}).name == Experiment.of_row({**row, key: 5}).name
    )  # in a column with gaps
    bad = [
        {"gpu_name": "Z9"},
        {"gpu_name": None},
        {"model": "a/b"},
        {"status": "oom"},
        {"tokens_per_s": None},
    ]
    good = {
        **row,
        "gpu_name": "NVIDIA H200",
        "tokens_per_s": 2048.0,
        "micro_batch_size": 8,
        "seq_len": 128,
    }
    table = pd.DataFrame([good, *({**good, **change} for change in bad)])
    assert [run.step_time_s for run in measured(table)] == [0.5]
