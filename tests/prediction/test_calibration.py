"""Constants recovered from made-up runs, and what the model says of measured ones that it was not fitted to."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dsnb
from benchmarks import prediction_errors
from benchmarks.prediction_errors import PRIOR
from dsnb.formulas import metrics
from dsnb.prediction.calibration import DEFAULT_COVERAGE, Coverage, calibrate, measured, recorded
from dsnb.prediction.gpus import Link
from dsnb.prediction.step_time import DEFAULT, FITTED_SETTINGS, step_times
from tests.prediction.made_up import communication_s, step_time


@pytest.fixture(scope="module")
def h200():
    return prediction_errors.h200_runs(with_held_out=False)


def predicted(runs, constants):
    return np.asarray(step_times([run.setting for run in runs], constants).step_time_s)


def of(runs):
    return np.array([run.step_time_s for run in runs])


def test_constants_are_recovered_from_noisy_runs_with_outliers(h200):
    truth = replace(
        PRIOR, matmul_efficiency=0.6, memory_efficiency=0.55, host_launch_us=60.0, host_gather_us=120.0,
        link_efficiency=0.4, cpu_parameter_ns=3.0,
    )  # fmt: skip
    noise = np.random.default_rng(0).normal(0, 0.03, len(h200))
    noise[::15] += 1.0  # a run in fifteen takes 2.7 times as long
    times = predicted(h200, truth) * np.exp(noise)
    found = calibrate([replace(run, step_time_s=seconds) for run, seconds in zip(h200, times, strict=True)], PRIOR)
    assert found.matmul_efficiency == pytest.approx(0.6, rel=0.05)
    assert found.host_launch_us == pytest.approx(60, rel=0.1)
    assert found.memory_efficiency == pytest.approx(0.55, rel=0.1)
    assert found.host_gather_us == pytest.approx(120, rel=0.15)
    assert found.cpu_parameter_ns == pytest.approx(3.0, rel=0.15)
    assert found.link_efficiency == pytest.approx(0.4, rel=0.3)  # drawn to 0.66, where it starts
    assert found.network_efficiency == PRIOR.network_efficiency  # no run has a network


def test_a_single_run_moves_what_it_depends_on_and_nothing_else(h200):
    run = next(run for run in h200 if run.experiment.strategy == "plain")
    slow = replace(run, step_time_s=1.2 * float(predicted([run], DEFAULT)[0]))
    found = calibrate([slow])
    assert 1.05 < float(predicted([run], found)[0] / predicted([run], DEFAULT)[0]) < 1.2
    assert found.matmul_efficiency < DEFAULT.matmul_efficiency
    assert (found.link_efficiency, found.host_gather_us) == pytest.approx(
        (DEFAULT.link_efficiency, DEFAULT.host_gather_us)
    )
    assert calibrate([]) is DEFAULT
    assert vars(calibrate([slow] * 50)) == pytest.approx(vars(found))  # repeats of a setting count once


def test_the_default_constants_are_those_that_fit_the_measured_runs(h200):
    found = calibrate(h200, PRIOR)
    assert {name: getattr(DEFAULT, name) for name in vars(DEFAULT)} == pytest.approx(vars(found), rel=0.005)
    assert len(h200) == FITTED_SETTINGS
    # A single row has an offloaded optimizer, which covers nothing.
    covered = Coverage.of(h200, Link())
    assert covered.ranges == DEFAULT_COVERAGE.ranges
    assert {**covered.names, "offload": frozenset({"none"})} == DEFAULT_COVERAGE.names


def test_small_clusters_tell_large_ones():
    """Lambda's runs on 1 to 16 H100 calibrate; those on 512 are within 2 %."""
    table = dsnb.published("lambda_1cc_opt").assign(gradient_clipping=1.0)
    runs = measured(table, "ib:400")
    constants = calibrate([run for run in runs if run.experiment.gpus <= 16])
    large = [run for run in runs if run.experiment.gpus == 512]
    assert len(large) == 2
    assert predicted(large, constants) == pytest.approx(of(large), rel=0.02)


def test_accumulation_across_nodes_is_explained_by_communication():
    """BLOOM-7B1 on 16 A100 takes twice 258 days without accumulation and 57 with 256 micro-batches a step.

    Calibrated on the rows with a figure of ZeRO 1, FSDP and uncompressed DDP, of which one tells the network.
    """
    table = dsnb.published("jean_zay_bloom7b").assign(attention="eager", precision="bf16")
    table = table[(table["gpu_name"] == "A100") & (table["gradient_compression"] != "powersgd")]
    table = table[table["zero_stage"] != 3]
    constants = calibrate(measured(table, "ib:100/node"))
    row = table[(table["gpus"] == 16) & (table["grad_accum"] == 256)].iloc[0].to_dict()
    days, share = {}, {}
    for count in (1, 256):
        one = recorded({**row, "grad_accum": count})
        found = step_time(one, "A100", "ib:100/node", constants)
        days[count] = metrics.days(100e9, one.tokens_per_step / found.step_time_s)
        share[count] = communication_s(found) / found.step_time_s
    assert days[256] == pytest.approx(57, rel=0.05)
    assert days[1] > 4.5 * days[256]
    assert share[1] > 0.75
    assert share[256] < 0.03


def test_rows_of_other_programs():
    """What a row does not tell has its default; the version in a column `deepspeed` is no setting."""
    row = {"model": "gpt2", "gpus": 1.0, "compile": False, "deepspeed": "0.19.8", "zero_stage": float("nan")}
    one = recorded(row)
    assert (one.gpus, one.compile, one.deepspeed, one.zero_stage, one.precision) == (1, "off", {}, 0, "bf16")
    key = "deepspeed.zero_optimization.stage3_max_live_parameters"
    assert recorded({**row, key: 5}).deepspeed == {"zero_optimization.stage3_max_live_parameters": 5}
    assert recorded({**row, key: 5.0}).name == recorded({**row, key: 5}).name  # in a column with gaps
    bad = [{"gpu_name": "Z9"}, {"gpu_name": None}, {"model": "a/b"}, {"status": "oom"}, {"tokens_per_s": None}]
    good = {**row, "gpu_name": "NVIDIA H200", "tokens_per_s": 2048.0, "micro_batch_size": 8, "seq_len": 128}
    table = pd.DataFrame([good, *({**good, **change} for change in bad)])
    assert [run.step_time_s for run in measured(table)] == [0.5]
