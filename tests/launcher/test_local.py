"""Ranks on this machine: their ports, GPUs and variables, the fork server, and locks of builds."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dsnb import Experiment
from dsnb.errors import LaunchError
from dsnb.launcher import local
from dsnb.launcher.local import LOCALHOST, free_port, rank_variables
from dsnb.system import hardware
from tests.support.small_sweep import light_server
from tests.support.waiting import WAIT_S


def test_ports_lie_where_systems_take_none_for_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port(LOCALHOST) < min(lowest, 32_000) for _ in range(50))


def test_ranks_have_torchruns_variables_and_the_gpus_that_are_chosen():
    variables = rank_variables(Experiment(device="cuda", gpus=2), [3, 1], 0.0)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": LOCALHOST}
    for rank, of_rank in zip("01", variables, strict=True):
        expected = {**shared, "CUDA_VISIBLE_DEVICES": "3,1", "RANK": rank, "LOCAL_RANK": rank}
        assert expected.items() <= of_rank.items()


def test_gpus_that_a_notebook_chooses_later_are_those_that_are_used(monkeypatch):
    cards = [hardware.InstalledGpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0)) for number in range(4)]
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
@pytest.mark.parametrize("module", ["dsnb.train.fork_server", "dsnb.execute.kernel_process"])
def test_started_by_a_process_that_has_ended_since_it_ends_by_itself(module, tmp_path):
    """Who kills a sweep may do so at the moment in which it starts another process."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = [sys.executable, "-m", module, str(tmp_path / "scratch" / "socket"), str(ended.pid)]
    (tmp_path / "scratch").mkdir()
    started = subprocess.run(words, env=light_server() | {"JPY_PARENT_PID": str(ended.pid)}, timeout=WAIT_S)
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
