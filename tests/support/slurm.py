"""A small Slurm of two nodes on this machine, in a separate folder, for tests that submit jobs.

Both nodes are daemons of this machine with different ports, each with its jobs in a PID namespace, which ends as a
whole. What has been started ends with the test process, however that ends.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsnb.measure.launcher.local import free_port
from tests.support.waiting import WAIT_S, wait_until

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
NODES = ("n1", "n2")
NAMESPACE = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--pid",
    "--mount-proc",
    "--fork",
    "--kill-child",
)
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
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Slurm:
    """A running one; `environment` is for the commands that are to reach it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (home / name).mkdir()
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        ports = [free_port("127.0.0.1") for _ in range(3)]
        configuration = CONFIGURATION.format(home=home, host=socket.gethostname(), ports=ports)
        (home / "slurm.conf").write_text(configuration)
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(home / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen] = {}
        for key in ("slurmctld", *NODES):
            self.start(key)

    def start(self, key: str) -> None:
        """Switch a node on, or the controller."""
        words = ["slurmctld", "-D", "-i"] if key == "slurmctld" else ["slurmd", "-D", "-N", key]
        with open(self.home / f"{key}.out", "wb") as log:
            self._daemons[key] = subprocess.Popen(
                [*NAMESPACE, *words], env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, key: str) -> None:
        """Switch a node off, or the controller: its daemon and what it runs, at once."""
        daemon = self._daemons.pop(key)
        daemon.kill()
        daemon.wait(WAIT_S)

    def command(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return done.stdout + done.stderr


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """Give a Slurm with idle nodes; skips, or fails where hosts are required, if there can be none."""
    missing = [
        name for name in ("slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=PATH)
    ]
    if missing or subprocess.run([*NAMESPACE, "true"], stderr=subprocess.DEVNULL).returncode:
        because = (
            f"{', '.join(missing)} is not installed"
            if missing
            else "only root can start its daemons"
        )
        (pytest.fail if os.environ.get("DSNB_REQUIRE_HOSTS") else pytest.skip)(
            f"no Slurm here: {because}"
        )
    with tempfile.TemporaryDirectory(prefix="dsnb-slurm-", ignore_cleanup_errors=True) as home:
        slurm = Slurm(Path(home))
        try:
            states = ("sinfo", "-h", "-N", "-p", "main", "-o", "%t")
            wait_until(
                lambda: slurm.command(*states).split() == ["idle", "idle"], "two nodes are idle"
            )
            yield slurm
        finally:
            for key in list(slurm._daemons):
                slurm.kill(key)
