"""Figures of a run by hand: rates, means and peaks of steps whose times and memory can be added up in the head."""

import pytest

from dsnb.base.files import json_files
from dsnb.measure.launcher.figures import gpu_figures, summarize_run
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord


def summarized(folder, experiment, rows, worker=None, failure=None):
    """Return the figures of a run with these rows of steps."""
    run = RunPaths(folder)
    json_files.write_json(run.experiment, experiment.model_dump())
    json_files.write_lines(run.steps, rows)
    json_files.write_json(run.worker, worker or {})
    if failure:
        json_files.append_line(run.failures, failure)
    return summarize_run(RunRecord(run))


def timed(*times_s, **figures):
    """Return a slow step of warm-up and timed ones."""
    rows = [{"step": 1, "phase": "warmup", "step_time_s": 60.0, "skipped": False, **figures}]
    for step, time_s in enumerate(times_s, start=2):
        rows.append({**rows[0], "step": step, "phase": "timed", "step_time_s": time_s})
    return rows


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"gpus": 1}, 64),
        ({"gpus": 4}, 4 * 64),
        ({"gpus": 4, "grad_accum": 3}, 12 * 64),
        ({"gpus": 4, "tensor_parallel": 2}, 2 * 64),
        ({"gpus": 4, "pipeline_parallel": 4, "grad_accum": 3}, 3 * 64),
        ({"gpus": 8, "tensor_parallel": 2, "pipeline_parallel": 2}, 2 * 64),
    ],
    ids=str,
)
def test_tokens_are_those_of_data_parallel_ranks_and_rates_per_gpu_of_every_gpu(
    small, tmp_path, settings, tokens
):
    """Four steps take 0.5, 0.5, 1 and 2 s; the middle two of them 0.5 and 1 s."""
    found = summarized(tmp_path, small(steps=4, **settings), timed(0.5, 0.5, 1.0, 2.0))
    expected = {
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / settings["gpus"],
        "trained_tokens_per_s": tokens,
        "step_time_mean_s": 1.0,
        "step_time_median_s": 0.75,
        "timed_steps": 4,
        "slow_steps": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_flops_are_those_of_a_gpus_own_tokens(small, tmp_path):
    counted = {"masked_flops_per_token": 1.0, "recomputed_flops_per_token": 1e9}
    worker = {**counted, "flops_per_token": 4e9, "gpu_name": "NVIDIA H200"}
    experiment = small(gpus=4, tensor_parallel=2, steps=1)
    found = summarized(tmp_path, experiment, timed(1.0), worker)
    assert found["tflops_per_gpu"] == pytest.approx(32 * 4e9 / 1e12)  # 128 tokens/s of 4 GPUs
    assert found["hardware_tflops_per_gpu"] == pytest.approx(32 * 5e9 / 1e12)
    assert found["mfu"] == pytest.approx(32 * 4e9 / 67e12)


@pytest.mark.parametrize(
    ("kernel", "windowed", "used", "noted"),
    [
        ("cudnn, masked", 0, "causal_sdpa", True),
        ("cudnn, masked", 0.5, "causal_sdpa", True),
        ("cudnn, masked", 1, "causal_sdpa", False),  # of the windows
        ("cudnn, partly masked", 0, "causal_sdpa", True),
        ("cudnn, partly masked", 0.5, "causal_sdpa", False),
        ("cudnn, masked", None, "causal_sdpa", False),  # nothing is known about windows
        ("efficient, masked", 0, "sdpa with ALiBi", False),
        ("cudnn", 0, "causal_sdpa", False),
        (None, 0, "eager", False),
    ],
)
def test_a_mask_that_no_window_explains_is_noted(small, tmp_path, kernel, windowed, used, noted):
    worker = {"attention_kernel": kernel, "windowed_share": windowed, "attention": used}
    found = summarized(tmp_path, small(), timed(1.0, 1.0), worker)
    sentence = (
        "the model's own code gave attention a mask, so that the kernel computed the masked half "
        f"of the scores as well ({kernel})"
    )
    assert found["note"] == (sentence if noted else None)


@pytest.mark.parametrize(
    ("worker", "failure", "expected"),
    [
        ({}, None, (5.0, 7.0)),  # cut short: rank 0's steps
        ({"peak_allocated_gib": 6.0, "peak_reserved_gib": 8.0}, None, (6.0, 8.0)),  # of all ranks
        ({}, {"allocated_gib": 5.5, "reserved_gib": 6.5}, (5.5, 7.0)),
        ({}, {"allocated_gib": 5.5}, (5.0, 7.0)),  # of host memory
    ],
)
def test_the_peak_of_a_run_is_the_largest_of_all_steps(small, tmp_path, worker, failure, expected):
    rows = timed(1.0, 1.0, 1.0)
    for row, allocated_gib, reserved_gib in zip(rows, (3, 5, 4, 2), (6, 6, 7, 7), strict=True):
        row.update(allocated_gib=float(allocated_gib), reserved_gib=float(reserved_gib))
    if failure:
        failure = {"rank": 1, "status": "oom", **failure}
    found = summarized(tmp_path, small(steps=3), rows, worker, failure)
    assert (found["peak_allocated_gib"], found["peak_reserved_gib"]) == expected


def test_losses_and_norms_are_of_the_first_and_the_last_step(small, tmp_path):
    rows = timed(1.0, 1.0)
    for row, loss in zip(rows, (4.0, 3.0, 2.5), strict=True):
        row.update(loss=loss, grad_norm=loss / 2)
    found = summarized(tmp_path, small(steps=2), rows)
    names = ("loss_first", "loss_last", "grad_norm_last")
    assert [found[name] for name in names] == [4.0, 2.5, 1.25]


def test_energy_is_in_joules_of_the_timed_steps_and_in_kwh_of_the_run():
    """Two GPUs at 500 W for 10 s of the timed steps; from the first sample to the last 1.8 MJ each."""
    samples = [
        {"t_s": t_s, "gpu": gpu, "energy_j": 1e6 + energy_j}
        for t_s, energy_j in ((1.0, 0.0), (9.0, 1.0e6), (20.0, 1.8e6))
        for gpu in (0, 1)
    ]
    worker = {"phases_s": {"timed": 10.0}, "energy_j": 10_000.0}
    found = gpu_figures(samples, worker, gpus=2)
    assert (found["energy_j"], found["power_w"]) == (10_000.0, 500.0)
    assert found["run_energy_kwh"] == pytest.approx(1.0)
