"""Builds the command that starts an agent on a host, connected by pipes."""

import fnmatch
import os
import shlex

from dsnb.launcher import environment
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.system import interpreter

AGENT = interpreter.command("-u", "-m", "dsnb.launcher.hosts.agent")
SSH = ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
# Detects a cut link within 15 s; TCP alone would take hours.
SSH += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
FORWARDED = (*environment.RECORDED, "GLOO_*", "UCX_*", "FI_*", "HF_*", "TRITON_*", "DSNB_SHARED")
"""Environment variables that are sent to every host, through the pipe: no command line shows their values."""
KEPT = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Not sent: they number the GPUs of this host."""


def command(experiment: Experiment, host: Host) -> list[str]:
    """Return the command that starts an agent on a host: with srun in a Slurm job, otherwise with ssh."""
    if experiment.hostfile == hostfile.SLURM:
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--quiet", "--unbuffered"]
        return [*step, "--kill-on-bad-exit=1", "--mpi=none", *_agent()]
    words = list(SSH)
    if experiment.ssh_port:
        words += ["-p", str(experiment.ssh_port)]
    if experiment.ssh_user:
        words += ["-l", experiment.ssh_user]
    return [*words, "--", host.name, shlex.join(_agent())]


def _agent() -> list[str]:
    """Return the agent's command, with this process's PYTHONPATH: dsnb may be found through it only."""
    path = os.environ.get("PYTHONPATH")
    return [*(["env", f"PYTHONPATH={path}"] if path else []), *AGENT]


def forwarded(experiment: Experiment) -> dict[str, str]:
    """Return the environment variables of this process that are passed to the ranks on all hosts."""
    patterns = [*FORWARDED, *filter(None, map(str.strip, experiment.forward_env.split(",")))]
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEPT and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
