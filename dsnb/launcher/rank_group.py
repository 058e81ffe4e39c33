"""Interfaces to the running ranks of a run, and ranks started by DeepSpeed's launcher."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

import psutil

from dsnb.launcher.host_ranks import HostRanks
from dsnb.launcher.outcome import SOME_RANK
from dsnb.settings.experiment import Experiment
from dsnb.system import interpreter

WORKER = "dsnb.train.worker"


class Ranks(Protocol):
    """The running ranks of one host."""

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that ended: rank -> code, negative if killed by that signal."""

    def ended(self) -> bool:
        """Return whether all ranks have ended."""

    def end(self) -> None:
        """Kill the remaining ranks with their children, and wait until they are gone."""


class RankGroup(Ranks, Protocol):
    """All ranks of a run, on one host or several, with what their hosts report."""

    experiment: Experiment
    """The settings, with values that only the hosts can resolve, such as the device."""

    def start(self, worker: str, launched_at: float) -> None:
        """Start every rank."""

    def external_failure(self) -> str | None:
        """Return a failure outside of the ranks, such as a lost host; None if there is none."""

    def oom_kills(self) -> int:
        """Return the number of processes that the hosts' kernels have killed for lack of memory since the start."""

    def host_suffix(self, rank: int) -> str:
        """Return the text behind a rank's number that names its host; empty if there is only one host."""


class DeepSpeedRanks:
    """Ranks started by DeepSpeed's launcher, with one `deepspeed` command per host.

    With several hosts the command is started on each of them (`--no_ssh`). Started once for all through pdsh, it would
    end a run with `pkill -f` on every host, and other users' runs there as well.
    """

    def __init__(self, host_ranks: HostRanks) -> None:
        # The ranks are grandchildren, so they watch this process themselves (dsnb.train.start).
        env = {**host_ranks.env, "DSNB_OWNER_PID": str(os.getpid())}
        hostfile = write_hostfile(host_ranks)
        with open(host_ranks.console, "ab") as log:
            self.process = subprocess.Popen(
                command(host_ranks, hostfile),
                env=env,
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
        family = descendants(self.process.pid)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.wait()


def command(host_ranks: HostRanks, hostfile: Path) -> list[str]:
    """Return the `deepspeed` command for one host; it reads the hostfile if there are several hosts."""
    words = interpreter.command("-m", "deepspeed.launcher.runner", "--no_local_rank")
    words += ["--master_addr", host_ranks.master_addr, "--master_port", str(host_ranks.master_port)]
    if len(host_ranks.hosts) > 1:
        words += ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(host_ranks.node)]
        if host_ranks.device == "cuda":
            words += [
                "--include",
                "@".join(f"{name}:{','.join(map(str, gpus))}" for name, gpus in _numbers(host_ranks)),
            ]
    elif host_ranks.device == "cuda":
        # By index: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first GPUs.
        words += ["--include", f"localhost:{','.join(map(str, host_ranks.gpus))}"]
    else:
        words += ["--num_gpus", str(len(host_ranks.ranks))]
    return [*words, "--module", "dsnb.train.start", host_ranks.worker, str(host_ranks.run_dir)]


def write_hostfile(host_ranks: HostRanks) -> Path:
    """Write the hostfile, from which DeepSpeed counts the ranks, beside the host's log."""
    path = host_ranks.console.with_name("hostfile")
    on_gpus = host_ranks.device == "cuda"  # which are named to it as well; of processes, only how many there are counts
    slots = {name: max(gpus) + 1 if on_gpus else len(gpus) for name, gpus in _numbers(host_ranks)}
    path.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
    return path


def _numbers(host_ranks: HostRanks) -> list[tuple[str, list[int]]]:
    """Return the GPUs of every host: NVML's indexes on this host; on the others only their number matters."""
    own = host_ranks.gpus if host_ranks.device == "cuda" else list(host_ranks.hosts[host_ranks.node].devices)
    numbers = [own if node == host_ranks.node else list(host.devices) for node, host in enumerate(host_ranks.hosts)]
    return list(zip((host.name for host in host_ranks.hosts), numbers, strict=True))


def descendants(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def group_is_gone(group: int, timeout_s: float = 10.0) -> bool:
    """Wait until a process group has no member left; return False if it still has one after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except OSError:
            return True
        time.sleep(0.02)
    return False
