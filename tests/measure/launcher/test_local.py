"""Ranks on this machine: their variables, ports and GPUs, the fork server, locks of builds, and samples of GPUs."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dsnb import Experiment
from dsnb.base.errors import LaunchError
from dsnb.base.system import hardware, launch_clock
from dsnb.measure.launcher import environment, local
from dsnb.measure.launcher.local import LOCALHOST, free_port, rank_variables
from dsnb.settings.records.paths import RunPaths
from tests.measure.launcher.test_run import LEFT_BY_A_LAUNCHER
from tests.support.small_sweep import light_server
from tests.support.waiting import WAIT_S, wait_until

LOOPS = "TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION"


def test_variables_that_are_set_and_those_of_the_user_that_stay(monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 8)
    monkeypatch.delenv(LOOPS, raising=False)
    assert environment.for_ranks("cpu", 1, 0.0)[LOOPS] == "0"
    for name, given, used in (
        (LOOPS, "1", "1"),
        (
            "TORCH_CUDA_ARCH_LIST",
            "8.0;9.0a 10.0f+PTX",
            "8.0;9.0 10.0+PTX",
        ),  # DeepSpeed's op builder fails on suffixes
        ("OMP_NUM_THREADS", "3", "3"),
        ("OMP_NUM_THREADS", "4,2", "4"),
        ("OMP_NUM_THREADS", "0", "4"),
    ):
        monkeypatch.setenv(name, given)
        assert environment.for_ranks("cpu", 2, 0.0)[name] == used


def test_ranks_inherit_no_place_from_another_launcher(monkeypatch, small):
    usual = rank_variables(small(gpus=2, master_port=1), [], 0.0)
    for name, value in LEFT_BY_A_LAUNCHER.items():
        monkeypatch.setenv(name, value)
    assert rank_variables(small(gpus=2, master_port=1), [], 0.0) == usual


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
    secrets = (
        "NVIDIA_APIKEY NVIDIA_NGC_PASS DS_PWD HF_TOKEN WANDB_API_KEY DS_AUTH_TOKEN NCCL_SECRET"
    )
    others = dict.fromkeys([*secrets.split(), "MY_PYTORCH_X"], "s")
    for name, value in (values | others).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_HOME", str(Path.home() / "torch"))  # no user's name
    monkeypatch.setenv(
        "CUDA_DEVICE_ORDER", "FASTEST_FIRST"
    )  # dsnb sets another: what the ranks have is recorded
    recorded = environment.describe(environment.for_ranks("cpu", 1, 0.0))["variables"]
    assert recorded == values | {"TORCH_HOME": "~/torch", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.process
def test_the_allocator_of_ranks_on_gpus_is_the_setting_unless_the_user_has_chosen(monkeypatch):
    for name in environment.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for device, allocator in (("cuda", "default"), ("cpu", "expandable")):
        assert (
            environment.for_ranks(device, 1, 0.0, allocator)
            .keys()
            .isdisjoint(environment.ALLOCATOR_VARIABLES)
        )
    ranks = environment.for_ranks("cuda", 1, 0.0, "expandable")
    assert ranks["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert (
        "PYTORCH_ALLOC_CONF" not in environment.describe(ranks)["variables"]
    )  # it follows from the setting
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    ranks = environment.for_ranks("cuda", 1, 0.0, "expandable")
    assert "PYTORCH_ALLOC_CONF" not in ranks
    assert (
        environment.describe(ranks)["variables"]["PYTORCH_CUDA_ALLOC_CONF"]
        == "max_split_size_mb:64"
    )


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


def test_ports_lie_where_systems_take_none_for_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port(LOCALHOST) < min(lowest, 32_000) for _ in range(50))


def test_ranks_have_torchruns_variables_and_the_gpus_that_are_chosen():
    variables = rank_variables(Experiment(device="cuda", gpus=2), ["3", "1"], 0.0)
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": LOCALHOST,
    }
    for rank, of_rank in zip("01", variables, strict=True):
        expected = {**shared, "CUDA_VISIBLE_DEVICES": "3,1", "RANK": rank, "LOCAL_RANK": rank}
        assert expected.items() <= of_rank.items()


def test_all_ranks_meet_at_one_port_of_the_loopback_interface(monkeypatch, small):
    monkeypatch.setattr(hardware, "cores", lambda: 16)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    port = free_port(LOCALHOST)
    for asked in (port, 0):
        variables = rank_variables(small(gpus=4, master_port=asked), [], 7.5)
        ports = {of_rank["MASTER_PORT"] for of_rank in variables}
        assert len(ports) == 1
        assert ports == {str(port)} if asked else ports.isdisjoint({"0", ""})
        assert [of_rank["RANK"] for of_rank in variables] == ["0", "1", "2", "3"]
    one = variables[3]
    assert (one["GLOO_SOCKET_IFNAME"], one["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert (one["OMP_NUM_THREADS"], one["LOCAL_SIZE"]) == ("4", "4")  # 16 cores
    assert (one[launch_clock.LAUNCHED_AT], one["DS_ACCELERATOR"]) == ("7.5", "cpu")
    assert "CUDA_VISIBLE_DEVICES" not in one or "CUDA_VISIBLE_DEVICES" in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert rank_variables(small(), [], 0.0)[0]["GLOO_SOCKET_IFNAME"] == "eth1"


def test_ranks_get_the_first_gpus_and_slices_are_not_sampled(monkeypatch, tmp_path):
    cards = [
        hardware.InstalledGpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0))
        for number in (4, 2, 7)
    ]
    monkeypatch.setattr(hardware, "gpus", lambda: cards)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    kills = iter([3, 5])
    monkeypatch.setattr(hardware, "oom_kills", lambda: next(kills))
    ranks = local.ForkedRanks(Experiment(device="cuda", gpus=2), RunPaths(tmp_path), 0.0)
    assert ranks.gpus == [4, 2]
    assert ranks.oom_kills() == 2  # since the start
    assert ranks.exit_codes() == {}
    ranks.end()  # nothing was started


def test_gpus_that_a_notebook_chooses_later_are_those_that_are_used(monkeypatch):
    cards = [
        hardware.InstalledGpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0))
        for number in range(4)
    ]
    monkeypatch.setattr(hardware, "_all_gpus", lambda: cards)
    for choice, numbers in (("0,1,2", [0, 1, 2]), ("GPU-3,1", [3, 1])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
        assert [gpu.index for gpu in hardware.gpus()] == numbers


@pytest.mark.process
def test_a_server_that_is_killed_while_it_imports_says_so():
    server = local.ForkServer("cpu")
    server.process.kill()
    said = r"could not be imported: the process was killed by signal 9 \(SIGKILL\); if memory ran out .* retry$"
    with pytest.raises(LaunchError, match=said):
        server.wait_ready()


@pytest.mark.process
def test_a_sweep_starts_a_server_in_the_place_of_one_that_has_ended(monkeypatch, tmp_path):
    for name, value in light_server().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(local.socket_variable("cpu"), str(tmp_path / "gone"))
    with local.shared_servers({"cpu"}):
        assert os.environ[local.socket_variable("cpu")] != str(tmp_path / "gone")
        socket = os.environ[local.socket_variable("cpu")]
        with local.shared_servers({"cpu"}):  # one is enough
            assert os.environ[local.socket_variable("cpu")] == socket


@pytest.mark.process
def test_an_installed_package_that_initialises_cuda_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "torchao.py").write_text(
        "import torch; torch.cuda._initialized, __version__ = True, '1.0'"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = local.ForkServer("cpu")
    server.wait_ready()
    server.close()


@pytest.mark.process
@pytest.mark.parametrize(
    "module", ["dsnb.measure.train.fork_server", "dsnb.measure.execute.kernel_process"]
)
def test_started_by_a_process_that_has_ended_since_it_ends_by_itself(module, tmp_path):
    """Who kills a sweep may do so at the moment in which it starts another process."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = [sys.executable, "-m", module, str(tmp_path / "scratch" / "socket"), str(ended.pid)]
    (tmp_path / "scratch").mkdir()
    started = subprocess.run(
        words, env=light_server() | {"JPY_PARENT_PID": str(ended.pid)}, timeout=WAIT_S
    )
    assert started.returncode == (1 if "kernel" in module else 0)


@pytest.mark.process
def test_only_stale_op_build_locks_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    locks = {name: tmp_path / name / "lock" for name in ("stale", "young", "building")}
    for lock in locks.values():
        lock.parent.mkdir()
        lock.touch()
    for name in ("stale", "building"):
        os.utime(locks[name], (0, 0))
    builder = psutil.Popen(["sleep", "60"], cwd=locks["building"].parent)
    try:
        local.remove_stale_locks()
    finally:
        builder.kill()
        builder.wait()
    assert [name for name, lock in locks.items() if lock.exists()] == ["young", "building"]
