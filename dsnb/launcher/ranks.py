"""The started ranks of one run, whichever launcher started them: what the supervision needs to know of them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Protocol

import psutil

from dsnb import hardware
from dsnb.errors import LaunchError
from dsnb.experiment import Experiment
from dsnb.launcher.outcome import SOME_RANK
from dsnb.paths import RunPaths

WORKER = "dsnb.train.worker"
LOCALHOST = "127.0.0.1"


class Ranks(Protocol):
    """Running ranks."""

    def exit_codes(self) -> dict[int, int]:
        """Give the exit codes of those that ended, by rank (negative: killed by that signal)."""

    def ended(self) -> bool:
        """Say whether nothing of the run is left."""

    def end(self) -> None:
        """Kill whatever is left, children of the ranks included, and wait until it is gone."""


def rank_variables(experiment: Experiment) -> list[dict[str, str]]:
    """Give each rank the variables that the `deepspeed` launcher would set on one machine."""
    world = str(experiment.gpus)
    shared = {
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": world,
        "LOCAL_SIZE": world,
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
    }
    if experiment.device == "cuda" and "CUDA_VISIBLE_DEVICES" not in os.environ:
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(experiment.gpus)))
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(experiment.gpus)]


def free_port() -> int:
    """Give a TCP port that nobody listens on.

    It lies below the range from which systems take ports for outgoing connections: one from that range may be taken
    again while the ranks start (seen once in 36 runs).
    """
    for port in random.sample(range(15_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOCALHOST, port))
            return port
    raise LaunchError("no free TCP port between 15000 and 32000: end what holds them")


class DeepSpeedRanks:
    """Ranks started by DeepSpeed's own launcher, one `deepspeed` command with its children."""

    def __init__(self, experiment: Experiment, paths: RunPaths, env: dict[str, str], worker: str) -> None:
        command = [sys.executable, "-m", "deepspeed.launcher.runner"]
        command += ["--master_addr", LOCALHOST, "--master_port", str(free_port()), "--no_local_rank"]
        if experiment.device == "cuda":
            # By number: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first ones.
            chosen = ",".join(str(gpu.index) for gpu in hardware.gpus()[: experiment.gpus])
            command += ["--include", f"localhost:{chosen}"]
        else:
            command += ["--num_gpus", str(experiment.gpus)]
        command += ["--module", "dsnb.train.start", worker, str(paths.dir)]
        # The ranks are grandchildren: they watch this process themselves, see dsnb.train.start.
        env = {**env, "DSNB_OWNER_PID": str(os.getpid())}
        with open(paths.console, "ab") as log:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def exit_codes(self) -> dict[int, int]:
        """Give the launcher's code, which is that of some rank; 247 is how it passes -9 (SIGKILL) on."""
        code = self.process.poll()
        if code is None:
            return {}
        return {SOME_RANK: -signal.SIGKILL if code == 256 - signal.SIGKILL else code}

    def ended(self) -> bool:
        """Say whether the launcher, which outlives its ranks, has ended."""
        return self.process.poll() is not None

    def end(self) -> None:
        """Kill the launcher's process group and every descendant."""
        family = descendants(self.process.pid)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.wait()


def descendants(pid: int) -> list[psutil.Process]:
    """List all descendants of a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def group_is_gone(group: int, timeout_s: float = 10.0) -> bool:
    """Wait until a process group has no member left."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except OSError:
            return True
        time.sleep(0.02)
    return False
