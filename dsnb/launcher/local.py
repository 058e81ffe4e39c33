"""The ranks of a run on this machine, and those that DeepSpeed's launcher starts."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping
from types import MappingProxyType

import psutil

from dsnb.errors import LaunchError
from dsnb.launcher import environment, op_builds
from dsnb.launcher.outcome import SOME_RANK
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware, interpreter

LOCALHOST = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Keeps the ranks of one machine from listening on the network. NCCL uses this interface for its setup only: the GPUs
of one machine exchange data over NVLink, PCIe or shared memory. Variables that the user has set take precedence."""


class LocalRanks:
    """What all ways to start the ranks of a run on this machine have in common."""

    host_of: Mapping[int, str] = MappingProxyType({})
    """Rank -> name of its host: empty, because there is only one."""
    external_failure = None
    """A failure outside of the ranks: none, because on one machine every failure shows in the exit codes."""

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self.experiment, self._run = experiment, run
        chosen = hardware.gpus()[: experiment.gpus] if experiment.device == "cuda" else ()
        self.gpus = [gpu.index for gpu in chosen]
        self._oom_kills = hardware.oom_kills()
        op_builds.remove_stale_locks()

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed for lack of memory since the start."""
        return hardware.oom_kills() - self._oom_kills


def rank_variables(experiment: Experiment, gpus: list[int], launched_at_s: float) -> list[dict[str, str]]:
    """Return each rank's whole environment, with the variables that torchrun would set.

    Raises
    ------
    LaunchError
        If the port for the rendezvous is in use.
    """
    port, ranks = experiment.master_port, experiment.gpus
    if port and not is_free(LOCALHOST, port):
        raise LaunchError(f"master_port is {port}: it is in use; choose another, or 0 for any free port")
    shared = LOOPBACK | environment.for_ranks(experiment.device, ranks, launched_at_s, experiment.allocator)
    shared |= {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(port or free_port(LOCALHOST)), "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if experiment.device == "cuda":
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


class DeepSpeedRanks(LocalRanks):
    """Ranks started by DeepSpeed's launcher."""

    _process: subprocess.Popen[bytes] | None = None

    def start(self, worker: str, launched_at_s: float) -> None:
        """Start the launcher; raise LaunchError if the port for the rendezvous is in use."""
        env = rank_variables(self.experiment, self.gpus, launched_at_s)[0]
        words = interpreter.command("-m", "deepspeed.launcher.runner", "--no_local_rank")
        words += ["--master_addr", env["MASTER_ADDR"], "--master_port", env["MASTER_PORT"]]
        # GPUs by index: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first GPUs.
        included = ["--include", f"localhost:{','.join(map(str, self.gpus))}"]
        words += included if self.gpus else ["--num_gpus", str(self.experiment.gpus)]
        with open(self._run.console, "ab") as log:
            self._process = subprocess.Popen(
                [*words, "--module", "dsnb.train.start", worker, str(self._run.dir)],
                env={**env, "DSNB_OWNER_PID": str(os.getpid())},  # the ranks watch this process (dsnb.train.start)
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def exit_codes(self) -> dict[int, int]:
        """Return the launcher's exit code, which is that of some rank; 247 stands for -9 (SIGKILL)."""
        code = self._process.poll() if self._process else None
        if code is None:
            return {}
        return {SOME_RANK: -signal.SIGKILL if code == 256 - signal.SIGKILL else code}

    def ended(self) -> bool:
        """Return whether the launcher has ended; it outlives its ranks."""
        return bool(self.exit_codes())

    def end(self) -> None:
        """Kill the launcher and all that it has started, and wait until they are gone."""
        if self._process:
            with contextlib.suppress(psutil.NoSuchProcess):
                kill_family(psutil.Process(self._process.pid))
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)  # also what a rank that has ended left
            self._process.wait()


def kill_family(parent: psutil.Process) -> None:
    """Kill the descendants of a process with their process groups, and wait until they are gone."""
    family = parent.children(recursive=True)
    for process in family:
        with contextlib.suppress(OSError):  # it leads no group
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=10)


def free_port(address: str) -> int:
    """Return a TCP port that is free.

    It is below the range of ephemeral ports, which outgoing connections may take while the ranks start (seen once in 36
    runs).
    """
    for port in random.sample(range(15_000, 32_000), 100):
        if is_free(address, port):
            return port
    raise LaunchError("none of 100 TCP ports between 15000 and 32000 is free: stop the programs that hold them")


def is_free(address: str, port: int) -> bool:
    """Return whether a TCP port is free to listen on."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return True
    return False
