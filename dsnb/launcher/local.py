"""The ranks of a run on this machine: forked from a server with all imports done, or started by `deepspeed`."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

import psutil

from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.launcher import environment, op_builds
from dsnb.launcher.fork import ForkedRanks
from dsnb.launcher.gpu_sampler import GpuSampler
from dsnb.launcher.outcome import SOME_RANK
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware, interpreter

LOCALHOST = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Keeps the ranks of one machine from listening on the network. NCCL uses this interface for its setup only: the GPUs
of one machine exchange data over NVLink, PCIe or shared memory. Variables that the user has set take precedence."""


class LocalRanks:
    """All ranks of a run on this machine."""

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self.experiment, self._run = experiment, run
        self._oom_kills = hardware.oom_kills()
        self._ranks: ForkedRanks | DeepSpeedRanks | None = None

    def start(self, worker: str, launched_at: float) -> None:
        """Start the ranks.

        Raises
        ------
        LaunchError
            If they cannot be started, or the port for their rendezvous is in use.
        """
        experiment, console = self.experiment, self._run.console
        gpus = [gpu.index for gpu in hardware.gpus()[: experiment.gpus]] if experiment.device == "cuda" else []
        variables = rank_variables(experiment, gpus, launched_at)
        for lock in op_builds.remove_stale_locks():
            print(f"removed the stale lock of a killed compilation: {lock}")
        self._sampler = GpuSampler(gpus, lambda sample: records.append_line(self._run.gpu, sample), launched_at)
        try:
            if experiment.launcher == "deepspeed":
                self._ranks = DeepSpeedRanks(variables, gpus, console, worker, self._run.dir)
            else:
                self._ranks = ForkedRanks(experiment.device, variables, console, worker, self._run.dir)
        except BaseException:
            self._sampler.stop()
            raise

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code, negative if killed by that signal."""
        return self._ranks.exit_codes() if self._ranks else {}

    def ended(self) -> bool:
        """Return whether all ranks have ended."""
        return self._ranks is None or self._ranks.ended()

    def external_failure(self) -> str | None:
        """Return a failure outside of the ranks: None, for on one machine every failure shows in the exit codes."""
        return None

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed for lack of memory since the start."""
        return hardware.oom_kills() - self._oom_kills

    def host_suffix(self, rank: int) -> str:
        """Return the text behind a rank's number that names its host: empty, there is only one."""
        return ""

    def end(self) -> None:
        """Kill the remaining ranks with their children, wait until they are gone, and stop sampling."""
        if self._ranks is None:
            return
        try:
            self._ranks.end()
        finally:
            self._sampler.stop()


def rank_variables(experiment: Experiment, gpus: list[int], launched_at: float) -> list[dict[str, str]]:
    """Return each rank's whole environment, with the variables that torchrun would set.

    Raises
    ------
    LaunchError
        If the port for the rendezvous is in use.
    """
    port, ranks = experiment.master_port, experiment.gpus
    if port and not is_free(LOCALHOST, port):
        raise LaunchError(f"master_port is {port}: it is in use; choose another, or 0 for any free port")
    shared = LOOPBACK | environment.for_ranks(experiment.device, ranks, launched_at)
    shared |= {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(port or free_port(LOCALHOST)), "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if experiment.device == "cuda":
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


class DeepSpeedRanks:
    """Ranks started by DeepSpeed's launcher."""

    def __init__(
        self, variables: list[dict[str, str]], gpus: list[int], console: Path, worker: str, run_dir: Path
    ) -> None:
        env = variables[0]
        words = interpreter.command("-m", "deepspeed.launcher.runner", "--no_local_rank")
        words += ["--master_addr", env["MASTER_ADDR"], "--master_port", env["MASTER_PORT"]]
        # GPUs by index: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first GPUs.
        named = ["--include", f"localhost:{','.join(map(str, gpus))}"]
        words += named if gpus else ["--num_gpus", str(len(variables))]
        with open(console, "ab") as log:
            self.process = subprocess.Popen(
                [*words, "--module", "dsnb.train.start", worker, str(run_dir)],
                env={**env, "DSNB_OWNER_PID": str(os.getpid())},  # the ranks watch this process (dsnb.train.start)
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def exit_codes(self) -> dict[int, int]:
        """Return the launcher's exit code, which is that of some rank; 247 stands for -9 (SIGKILL)."""
        code = self.process.poll()
        if code is None:
            return {}
        return {SOME_RANK: -signal.SIGKILL if code == 256 - signal.SIGKILL else code}

    def ended(self) -> bool:
        """Return whether the launcher has ended; it outlives its ranks."""
        return self.process.poll() is not None

    def end(self) -> None:
        """Kill the launcher's process group and all descendants."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.wait()


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
