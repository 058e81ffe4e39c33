"""The environment of ranks, and the samples of their GPUs."""

import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsnb.launcher import environment
from dsnb.system import hardware, launch_clock
from tests.support.waiting import wait_until

LOOPS = "TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION"


def test_variables_that_are_set_and_those_of_the_user_that_stay(monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 8)
    monkeypatch.delenv(LOOPS, raising=False)
    assert environment.for_ranks("cpu", 1, 0.0)[LOOPS] == "0"
    for name, given, used in (
        (LOOPS, "1", "1"),
        ("TORCH_CUDA_ARCH_LIST", "8.0;9.0a 10.0f+PTX", "8.0;9.0 10.0+PTX"),  # DeepSpeed's op builder fails on suffixes
        ("OMP_NUM_THREADS", "3", "3"),
        ("OMP_NUM_THREADS", "4,2", "4"),
        ("OMP_NUM_THREADS", "0", "4"),
    ):
        monkeypatch.setenv(name, given)
        assert environment.for_ranks("cpu", 2, 0.0)[name] == used


@pytest.mark.process
def test_variables_that_change_results_are_recorded_and_no_others(monkeypatch):
    for name in list(os.environ):
        if environment.is_recorded(name):
            monkeypatch.delenv(name)
    values = {
        "TORCHDYNAMO_DISABLE": "1", "TORCH_LOGS": "x", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0", "NCCL_ALGO": "Ring", "OMP_PROC_BIND": "true",
        "MKL_CBWR": "AVX2", "ATEN_CPU_CAPABILITY": "default", "DS_SKIP": "1",
        "NCCL_IB_PKEY": "1",
    }  # fmt: skip
    secrets = "NVIDIA_APIKEY NVIDIA_NGC_PASS DS_PWD HF_TOKEN WANDB_API_KEY DS_AUTH_TOKEN NCCL_SECRET"
    others = dict.fromkeys([*secrets.split(), "MY_PYTORCH_X"], "s")
    for name, value in (values | others).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_HOME", str(Path.home() / "torch"))  # no user's name
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")  # dsnb sets another: what the ranks have is recorded
    recorded = environment.describe(environment.for_ranks("cpu", 1, 0.0))["variables"]
    assert recorded == values | {"TORCH_HOME": "~/torch", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.process
def test_the_allocator_of_ranks_on_gpus_is_the_setting_unless_the_user_has_chosen(monkeypatch):
    for name in environment.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for device, allocator in (("cuda", "default"), ("cpu", "expandable")):
        assert environment.for_ranks(device, 1, 0.0, allocator).keys().isdisjoint(environment.ALLOCATOR_VARIABLES)
    ranks = environment.for_ranks("cuda", 1, 0.0, "expandable")
    assert ranks["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in environment.describe(ranks)["variables"]  # it follows from the setting
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    ranks = environment.for_ranks("cuda", 1, 0.0, "expandable")
    assert "PYTORCH_ALLOC_CONF" not in ranks
    assert environment.describe(ranks)["variables"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_gpus_are_sampled_until_the_block_ends(monkeypatch):
    api = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda index: index)
    monkeypatch.setattr(hardware, "nvml_session", lambda: contextlib.nullcontext(api))
    monkeypatch.setattr(hardware, "gpu_sample", lambda _, handle: {"util_pct": 10 * handle})
    monkeypatch.setattr(environment, "SAMPLE_INTERVAL_S", 0.01)
    samples = []
    with environment.sampled([3, 5], samples.append, launch_clock.now_s() - 60):
        wait_until(lambda: len(samples) >= 4, "two samples of each GPU")
    count = len(samples)
    assert [(row["gpu"], row["util_pct"]) for row in samples[:2]] == [(3, 30), (5, 50)]
    assert all(60 <= row["t_s"] < 200 for row in samples)
    time.sleep(0.05)
    assert len(samples) == count
