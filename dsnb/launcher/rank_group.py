"""The started ranks of one run, whichever launcher started them: what the supervision needs to know of them."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

import psutil

from dsnb.launcher.host_ranks import Share
from dsnb.launcher.outcome import SOME_RANK
from dsnb.settings.experiment import Experiment
from dsnb.system import interpreter

WORKER = "dsnb.train.worker"


class Ranks(Protocol):
    """Running ranks."""

    def exit_codes(self) -> dict[int, int]:
        """Give the exit codes of those that ended, by rank (negative: killed by that signal)."""

    def ended(self) -> bool:
        """Say whether nothing of the run is left."""

    def end(self) -> None:
        """Kill whatever is left, children of the ranks included, and wait until it is gone."""


class Crew(Ranks, Protocol):
    """All ranks of a run, on one host or many, with what the hosts saw of them."""

    experiment: Experiment
    """The settings, with what only the hosts could say, such as their device."""

    def start(self, worker: str, launched_at: float) -> None:
        """Start every rank."""

    def trouble(self) -> str | None:
        """Say what befell the ranks from outside, such as a host that was lost; None if nothing did."""

    def oom_kills(self) -> int:
        """Count the processes that the ranks' kernels have killed since the start for want of memory."""

    def where(self, rank: int) -> str:
        """Say on which host a rank is, to be put behind its number; empty where there is only one."""


class DeepSpeedRanks:
    """Ranks started by DeepSpeed's own launcher, one `deepspeed` command a host with its children.

    With several hosts it is started on each of them (`--no_ssh`), as DeepSpeed provides: started once for all, through
    pdsh, it ends a run with `pkill -f` on every host, and so other people's runs there as well.
    """

    def __init__(self, share: Share) -> None:
        # The ranks are grandchildren: they watch this process themselves, see dsnb.train.start.
        env = {**share.env, "DSNB_OWNER_PID": str(os.getpid())}
        hostfile = write_hostfile(share)
        with open(share.console, "ab") as log:
            self.process = subprocess.Popen(
                command(share, hostfile),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
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


def command(share: Share, hostfile: Path) -> list[str]:
    """Give the `deepspeed` command of one host; the hostfile is read where there are several."""
    words = interpreter.command("-m", "deepspeed.launcher.runner", "--no_local_rank")
    words += ["--master_addr", share.master_addr, "--master_port", str(share.master_port)]
    if len(share.hosts) > 1:
        words += ["--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(share.node)]
        if share.device == "cuda":
            words += ["--include", "@".join(f"{name}:{','.join(map(str, gpus))}" for name, gpus in _numbers(share))]
    elif share.device == "cuda":
        # By number: given only a count, DeepSpeed drops CUDA_VISIBLE_DEVICES and takes the machine's first ones.
        words += ["--include", f"localhost:{','.join(map(str, share.gpus))}"]
    else:
        words += ["--num_gpus", str(len(share.ranks))]
    return [*words, "--module", "dsnb.train.start", share.worker, str(share.run_dir)]


def write_hostfile(share: Share) -> Path:
    """Write the hostfile of a run beside a host's log: DeepSpeed counts the ranks by it."""
    path = share.console.with_name("hostfile")
    on_gpus = share.device == "cuda"  # which are named to it as well; of processes, only how many there are counts
    slots = {name: max(gpus) + 1 if on_gpus else len(gpus) for name, gpus in _numbers(share)}
    path.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
    return path


def _numbers(share: Share) -> list[tuple[str, list[int]]]:
    """Give every host's GPUs: this one's by NVML's numbers; of the others only how many they are tells."""
    own = share.gpus if share.device == "cuda" else list(share.hosts[share.node].devices)
    numbers = [own if node == share.node else list(host.devices) for node, host in enumerate(share.hosts)]
    return list(zip((host.name for host in share.hosts), numbers, strict=True))


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
