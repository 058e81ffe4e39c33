"""The figures of a run, computed by hand from what its files say."""

from dsnb.base.files import json_files
from dsnb.measure.launcher.figures import gpu_figures, summarize_run
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord


def summary(folder, experiment, steps, **worker):
    run = RunPaths(folder)
    json_files.write_json(run.experiment, experiment.model_dump())
    json_files.write_json(run.worker, worker)
    json_files.write_lines(run.steps, steps)
    return summarize_run(RunRecord(run))


def timed(*times_s):
    """Return a slow step of warm-up, and timed steps."""
    steps = [{"step": 1, "phase": "warmup", "step_time_s": 9.0, "skipped": False}]
    for number, time_s in enumerate(times_s, start=2):
        steps.append({"step": number, "phase": "timed", "step_time_s": time_s, "skipped": False})
    return steps


def test_speed_is_of_the_timed_steps_and_of_each_gpu(tmp_path, small):
    """Four GPUs, two of which share the layers: a step has 2 x 2 sequences of 32 tokens."""
    experiment = small(gpus=4, tensor_parallel=2, zero_stage=1)
    found = summary(tmp_path, experiment, timed(1.0, 1.0, 4.0))
    assert found["timed_steps"] == 3
    assert found["step_time_mean_s"] == 2
    assert found["step_time_median_s"] == 1
    assert found["tokens_per_s"] == 3 * 128 / 6
    assert found["tokens_per_s_per_gpu"] == 64 / 4
    assert found["trained_tokens_per_s"] == 64
    assert found["slow_steps"] == 1


def test_the_peak_is_the_largest_step_where_the_run_did_not_end(tmp_path, small):
    steps = timed(1.0, 1.0)
    for step, gib in zip(steps, (5.0, 7.0, 6.0), strict=True):
        step["allocated_gib"] = gib
    assert summary(tmp_path, small(), steps)["peak_allocated_gib"] == 7
    ended = summary(tmp_path, small(), steps, peak_allocated_gib=8.0)
    assert ended["peak_allocated_gib"] == 8  # of all ranks


def sample(t_s, gpu, **values):
    return {"t_s": t_s, "host": "h", "gpu": gpu, **values}


def test_power_energy_and_utilization_of_two_gpus():
    """Ten timed seconds from second 10 to 20; one GPU was sampled twice in them, the other once."""
    samples = [
        sample(1.0, 0, energy_j=1e6, memory_used_gib=90.0, util_pct=0.0),
        sample(1.0, 1, energy_j=2e6, memory_used_gib=1.0, util_pct=0.0),
        sample(12.0, 0, energy_j=2e6, memory_used_gib=20.0, util_pct=100.0),
        sample(14.0, 0, energy_j=2.5e6, memory_used_gib=21.0, util_pct=80.0),
        sample(15.0, 1, energy_j=5e6, memory_used_gib=30.0, util_pct=40.0),
        sample(30.0, 0, energy_j=2.8e6, memory_used_gib=95.0, util_pct=0.0),
        sample(30.0, 1, energy_j=7.4e6, memory_used_gib=1.0, util_pct=0.0),
    ]
    worker = {
        "steps_from_s": 5.0,
        "timed_from_s": 10.0,
        "timed_to_s": 20.0,
        "phases_s": {"timed": 10.0},
        "energy_j": 4000.0,
    }
    found = gpu_figures(samples, worker, gpus=2)
    assert found["energy_j"] == 4000
    assert found["power_w"] == 4000 / 10 / 2
    assert found["run_energy_kwh"] == (1.8e6 + 5.4e6) / 3.6e6
    assert found["gpu_util_pct"] == (90 + 40) / 2  # of both GPUs, not of three samples
    assert found["device_memory_gib"] == 30
    assert gpu_figures(samples, worker, gpus=3)["run_energy_kwh"] is None  # a counter is missing
    short = {**worker, "phases_s": {"timed": 4.9}}
    assert gpu_figures(samples, short, gpus=2)["gpu_util_pct"] is None
