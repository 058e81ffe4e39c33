"""The ports, GPUs and variables of ranks on this machine and on a host."""

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace

from dsnb import Experiment
from dsnb.launcher import gpu_sampler
from dsnb.launcher.local import LOCALHOST, free_port, rank_variables
from dsnb.system import hardware, launch_clock
from tests.support.waiting import wait_until


def test_ports_lie_where_systems_take_none_for_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port(LOCALHOST) < min(lowest, 32_000) for _ in range(50))


def test_ranks_have_torchruns_variables_and_the_gpus_that_are_chosen():
    variables = rank_variables(Experiment(device="cuda", gpus=2), [3, 1], 0.0)
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "CUDA_VISIBLE_DEVICES",
    )
    expected = [[rank, rank, "2", "2", "0", LOCALHOST, "3,1"] for rank in "01"]
    assert [[one[name] for name in names] for one in variables] == expected


def test_gpus_that_a_notebook_chooses_later_are_those_that_are_used(monkeypatch):
    cards = [hardware.InstalledGpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0)) for number in range(4)]
    monkeypatch.setattr(hardware, "_all_gpus", lambda: cards)
    for choice, numbers in (("0,1,2", [0, 1, 2]), ("GPU-3,1", [3, 1])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
        assert [gpu.index for gpu in hardware.gpus()] == numbers


def test_gpus_are_sampled_until_the_block_ends(monkeypatch):
    api = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda index: index)
    monkeypatch.setattr(hardware, "nvml_session", lambda: contextlib.nullcontext(api))
    monkeypatch.setattr(hardware, "gpu_sample", lambda _, handle: {"util_pct": 10 * handle})
    monkeypatch.setattr(gpu_sampler, "INTERVAL_S", 0.01)
    samples = []
    with gpu_sampler.sampled([3, 5], samples.append, launch_clock.now_s() - 60):
        wait_until(lambda: len(samples) >= 4, "two samples of each GPU")
    count = len(samples)
    assert [(row["gpu"], row["util_pct"]) for row in samples[:2]] == [(3, 30), (5, 50)]
    assert all(60 <= row["t_s"] < 200 for row in samples)
    time.sleep(0.05)
    assert len(samples) == count
