"""Starts the ranks of a run on this machine, samples its GPUs, and counts out-of-memory kills."""

from collections.abc import Callable
from typing import Any

from dsnb.files import records
from dsnb.launcher import op_builds
from dsnb.launcher.fork import ForkedRanks
from dsnb.launcher.gpu_sampler import GpuSampler
from dsnb.launcher.host_ranks import HostRanks, local_host_ranks
from dsnb.launcher.rank_group import DeepSpeedRanks, Ranks
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware


def start(launcher: str, host_ranks: HostRanks) -> Ranks:
    """Start the ranks of this host."""
    for lock in op_builds.remove_stale_locks():
        print(f"removed the stale lock of a killed compilation: {lock}")
    return DeepSpeedRanks(host_ranks) if launcher == "deepspeed" else ForkedRanks(host_ranks)


def sampler(host_ranks: HostRanks, take: Callable[[dict[str, Any]], None], launched_at: float) -> GpuSampler:
    """Return a running sampler of this host's GPUs."""
    return GpuSampler(host_ranks.gpus if host_ranks.device == "cuda" else [], take, launched_at)


class LocalRanks:
    """All ranks of a run on this machine only."""

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self.experiment, self._run = experiment, run
        self._oom_kills = hardware.oom_kills()
        self._ranks: Ranks | None = None

    def start(self, worker: str, launched_at: float) -> None:
        """Start the ranks.

        Raises
        ------
        LaunchError
            If they cannot be started.
        """
        run, experiment = self._run, self.experiment
        host_ranks = local_host_ranks(experiment, run, worker, launched_at)
        self._sampler = sampler(host_ranks, lambda sample: records.append_line(run.gpu, sample), launched_at)
        try:
            self._ranks = start(experiment.launcher, host_ranks)
        except BaseException:
            self._sampler.stop()
            raise

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code."""
        return self._ranks.exit_codes() if self._ranks else {}

    def ended(self) -> bool:
        """Return whether all ranks have ended."""
        return self._ranks is None or self._ranks.ended()

    def external_failure(self) -> str | None:
        """Return None: on one machine every failure shows in the exit codes."""
        return None

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills since the start."""
        return hardware.oom_kills() - self._oom_kills

    def host_suffix(self, rank: int) -> str:
        """Return an empty text: there is only one host."""
        return ""

    def end(self) -> None:
        """Kill the remaining processes, and stop sampling."""
        if self._ranks is None:
            return
        try:
            self._ranks.end()
        finally:
            self._sampler.stop()
