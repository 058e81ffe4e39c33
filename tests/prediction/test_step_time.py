"""The parts of a step: what they are, and that more resources never slow a step down.

`test_accuracy` and `test_calibration` compare whole steps with measured ones: no part can change unnoticed there.
"""

from dataclasses import replace

import numpy as np
import pytest

from dsnb.prediction import gpus
from dsnb.prediction.gpus import link
from dsnb.prediction.step_time import DEFAULT, Constants, setting, step_times
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import communication_s, compute_s, step_time

IDEAL = Constants(**dict.fromkeys(vars(DEFAULT), 1.0))
IDEAL = replace(IDEAL, kernel_us=0, host_launch_us=0, host_parameter_us=0, host_gather_us=0, cpu_parameter_ns=0)
"""Every nominal rate is reached, and nothing else takes time."""
ROUNDING_S = 1e-12


def experiment(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 4, "seq_len": 1024, "device": "cuda"}
    return Experiment(**{**common, **settings})


def seconds(gpu="H200", path="nvlink", constants=DEFAULT, **settings):
    return step_time(experiment(**settings), gpu, path, constants).step_time_s


VARIED = [
    {"model": model, **settings}
    for model in ("gpt2", "opt-1.3b", "bloom-1b7")
    for settings in (
        {},
        {"strategy": "plain", "compile": "reduce-overhead"},
        {"strategy": "ddp", "gpus": 2, "compile": "default"},
        {"strategy": "fsdp", "gpus": 8, "activation_checkpointing": True},
        {"zero_stage": 1, "gpus": 8, "grad_accum": 4, "offload": "optimizer-cpu"},
        {"zero_stage": 3, "gpus": 4, "attention": "eager"},
        {"zero_stage": 1, "gpus": 4, "tensor_parallel": 2, "precision": "fp16"},
        {"zero_stage": 1, "gpus": 4, "pipeline_parallel": 2, "grad_accum": 8},
        {"lora_rank": 16, "precision": "fp32"},
    )
]


def test_parts_by_hand():
    """A pipeline of two at ideal rates: products at 67 TFLOP/s, and the bubble of one micro-batch in eight."""
    one = experiment(precision="fp32", pipeline_parallel=2, gpus=2, grad_accum=8)
    found = step_time(one, "H200", "nvlink", constants=IDEAL)
    flops = 8 * 6 * 4096 * (12 * 12 * 2048**2 + 50272 * 2048)
    operands = 8 * 12 * 3 * (4096 * 2048 * 18 + 12 * 2048**2) * 4
    assert found.matmul_s == pytest.approx(flops / 67e12 + operands / 4.8e12)
    message = 4096 * 2048 * 4
    assert found.point_to_point_s == pytest.approx(16 * (20e-6 + message / 450e9))
    passes = compute_s(found) + communication_s(found)
    average = (12 * 12 * 2048**2 + 50272 * 2048 / 2) / (12 * 12 * 2048**2 + 50272 * 2048)
    assert found.pipeline_bubble_s == pytest.approx(passes / 8 * average)
    assert (found.host_s, found.offload_s, found.all_gather_s) == (0, 0, 0)


def test_no_part_is_negative_and_they_sum_to_the_step_alone_or_among_many():
    for settings in VARIED:
        found = step_time(experiment(**settings), "H200", "nvlink")
        assert min(vars(found).values()) >= 0
        others = found.pipeline_bubble_s + found.optimizer_s + found.offload_s + found.host_s
        assert compute_s(found) + communication_s(found) + others == pytest.approx(found.step_time_s)
    chosen = [experiment(**settings) for settings in VARIED]
    singles = [step_time(each, "H200", "nvlink").step_time_s for each in chosen]
    together = step_times([setting(each, gpus.find("H200"), link("nvlink")) for each in chosen]).step_time_s
    assert np.asarray(together) == pytest.approx(singles)


@pytest.mark.parametrize("settings", VARIED)
def test_more_resources_never_slow_a_step_down_and_more_work_never_takes_less(settings):
    gpu, base = gpus.find("H200"), seconds(**settings)
    for name in ("half_tflops", "fp32_tflops", "memory_gb_per_s", "nvlink_gb_per_s", "pcie_gb_per_s"):
        better = replace(gpu, **{name: 1.5 * getattr(gpu, name)})
        assert seconds(better, **settings) <= base + ROUNDING_S
    if settings.get("strategy") != "plain":
        slow, fast = (seconds(path=path, **{**settings, "gpus": 16}) for path in ("ib:100", "ib:400"))
        assert fast <= slow + ROUNDING_S
    assert seconds(**{**settings, "micro_batch_size": 6}) >= base - ROUNDING_S
    assert seconds(**{**settings, "seq_len": 1023}) >= seconds(**{**settings, "seq_len": 512}) - ROUNDING_S
    if settings.get("compile") != "reduce-overhead":
        assert seconds(**{**settings, "grad_accum": 2 * settings.get("grad_accum", 1)}) >= base - ROUNDING_S
