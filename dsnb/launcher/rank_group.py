"""The started ranks of one run, whichever launcher started them: what the supervision needs to know of them."""

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
    """Running ranks."""

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of those that ended, by rank (negative: killed by that signal)."""

    def ended(self) -> bool:
        """Return whether nothing of the run is left."""

    def end(self) -> None:
        """Kill whatever is left, children of the ranks included, and wait until it is gone."""


class RankGroup(Ranks, Protocol):
    """All ranks of a run, on one host or many, with what the hosts saw of them."""

    experiment: Experiment
    """The settings, with what only the hosts could say, such as their device."""

    def start(self, worker: str, launched_at: float) -> None:
        """Start every rank."""

    def external_failure(self) -> str | None:
        """Say what befell the ranks from outside, such as a host that was lost; None if nothing did."""

    def oom_kills(self) -> int:
        """Count the processes that the ranks' kernels have killed since the start for want of memory."""

    def host_suffix(self, rank: int) -> str:
        """Say on which host a rank is, to be put behind its number; empty where there is only one."""


class DeepSpeedRanks:
    """Ranks started by DeepSpeed's own launcher, one `deepspeed` command a host with its children.

    With several hosts it is started on each of them (`--no_ssh`), as DeepSpeed provides: started once for all, through
    pdsh, it ends a run with `pkill -f` on every host, and so other people's runs there as well.
    """

    def __init__(self, host_ranks: HostRanks) -> None:
        # The ranks are grandchildren: they watch this process themselves, see dsnb.train.start.
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
        """Return the launcher's code, which is that of some rank; 247 is how it passes -9 (SIGKILL) on."""
        code = self.process.poll()
        if code is None:
            return {}
        return {SOME_RANK: -signal.SIGKILL if code == 256 - signal.SIGKILL else code}

    def ended(self) -> bool:
        """Return whether the launcher, which outlives its ranks, has ended."""
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


def command(host_ranks: HostRanks, hostfile: Path) -> list[str]:
    """Return the `deepspeed` command of one host; the hostfile is read where there are several."""
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
        # By number: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first ones.
        words += ["--include", f"localhost:{','.join(map(str, host_ranks.gpus))}"]
    else:
        words += ["--num_gpus", str(len(host_ranks.ranks))]
    return [*words, "--module", "dsnb.train.start", host_ranks.worker, str(host_ranks.run_dir)]


def write_hostfile(host_ranks: HostRanks) -> Path:
    """Write the hostfile of a run beside a host's log: DeepSpeed counts the ranks by it."""
    path = host_ranks.console.with_name("hostfile")
    on_gpus = host_ranks.device == "cuda"  # which are named to it as well; of processes, only how many there are counts
    slots = {name: max(gpus) + 1 if on_gpus else len(gpus) for name, gpus in _numbers(host_ranks)}
    path.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
    return path


def _numbers(host_ranks: HostRanks) -> list[tuple[str, list[int]]]:
    """Return every host's GPUs: this one's by NVML's numbers; of the others only how many they are tells."""
    own = host_ranks.gpus if host_ranks.device == "cuda" else list(host_ranks.hosts[host_ranks.node].devices)
    numbers = [own if node == host_ranks.node else list(host.devices) for node, host in enumerate(host_ranks.hosts)]
    return list(zip((host.name for host in host_ranks.hosts), numbers, strict=True))


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
