"""A small Slurm of two nodes on this machine, in a separate folder, for tests that submit jobs.

Both nodes are daemons of this machine with different ports. What has been started ends with the test process, however
that ends.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.support.waiting import WAIT_S, wait_until

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
NODES = ("n1", "n2")
CPUS = 4
CONFIGURATION = """\
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldPort={ports[0]}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=3
MessageTimeout=2
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
KillWait=5
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Slurm:
    """A running one; `environment` is for the commands that are to reach it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (home / name).mkdir()
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        configuration = CONFIGURATION.format(home=home, host=socket.gethostname(), ports=free_ports(3), cpus=CPUS)
        (home / "slurm.conf").write_text(configuration)
        self.environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen] = {}
        # It ends all that belongs to this Slurm once this process has closed the pipe or is gone.
        self._cleaner = subprocess.Popen(
            [sys.executable, "-m", "tests.support.slurm", str(home / "slurm.conf")],
            stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)

    def _start(self, key: str, name: str, *words: str) -> None:
        command = [shutil.which(name, path=PATH) or name, *words, "-f", str(self.home / "slurm.conf")]
        with open(self.home / f"{key}.out", "wb") as log:
            self._daemons[key] = subprocess.Popen(
                command, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Switch a node off: its daemon and what it runs, at once."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        work = processes({"SLURM_CONF": str(self.home / "slurm.conf"), "SLURMD_NODENAME": node})
        kill([*keepers(self.home / f"spool.{node}"), *work])  # keepers first: they would report that the job was killed
        daemon.wait(WAIT_S)

    def command(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        return done.stdout + done.stderr

    def processes(self, job: str) -> list[psutil.Process]:
        """Return what a job runs."""
        return processes({"SLURM_CONF": str(self.home / "slurm.conf"), "SLURM_JOB_ID": job})

    def stop(self) -> None:
        self._cleaner.stdin.close()
        self._cleaner.wait(WAIT_S)
        for daemon in self._daemons.values():
            daemon.wait(WAIT_S)


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """Give a Slurm with idle nodes; skips, or fails where hosts are required, if there can be none."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=PATH)]
    if missing or os.geteuid():
        because = f"{', '.join(missing)} is not installed" if missing else "only root can start its daemons"
        (pytest.fail if os.environ.get("DSNB_REQUIRE_HOSTS") else pytest.skip)(f"no Slurm here: {because}")
    with tempfile.TemporaryDirectory(prefix="dsnb-slurm-") as home:
        slurm = Slurm(Path(home))
        try:
            states = ("sinfo", "-h", "-N", "-p", "main", "-o", "%t")
            wait_until(lambda: slurm.command(*states).split() == ["idle", "idle"], "two nodes are idle")
            yield slurm
        finally:
            slurm.stop()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def processes(variables: dict[str, str]) -> list[psutil.Process]:
    """List the processes that were started with these environment variables."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and variables.items() <= process.environ().items():
                found.append(process)
    return found


def keepers(home: Path) -> list[psutil.Process]:
    """List the processes that keep jobs and listen on a socket below a folder: nothing else tells whose they are."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("slurmstepd") and any(
                one.laddr.startswith(str(home)) for one in process.net_connections("unix")
            ):
                found.append(process)
    return found


def kill(found: list[psutil.Process]) -> None:
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()


def end_all(configuration: Path) -> None:
    while found := [*keepers(configuration.parent), *processes({"SLURM_CONF": str(configuration)})]:
        kill(found)
        time.sleep(0.05)
    shutil.rmtree(configuration.parent, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    end_all(Path(sys.argv[1]))
