"""How a host is reached: the command that starts an agent there, with a pair of pipes to it."""

import fnmatch
import os
import shlex

from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.system import interpreter

AGENT = interpreter.command("-u", "-m", "dsnb.launcher.hosts.agent")
SSH = ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
# A cut link is noticed in 15 s; the system alone would take hours.
SSH += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
FORWARDED = ("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "OMP_*", "HF_*", "TORCH_*", "TRITON_*", "CUDA_HOME", "DSNB_SHARED")
"""Environment variables that go along to every host, through the pipe: no command line shows their values."""


def command(experiment: Experiment, host: Host) -> list[str]:
    """Return the command that starts an agent on a host: through srun in a Slurm job, elsewhere through ssh."""
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
    """Return the agent's command; where dsnb is not installed but found through PYTHONPATH, so is it there."""
    path = os.environ.get("PYTHONPATH")
    return [*(["env", f"PYTHONPATH={path}"] if path else []), *AGENT]


def forwarded(experiment: Experiment) -> dict[str, str]:
    """Return the variables of this process that the ranks on the hosts get as well."""
    patterns = [*FORWARDED, *filter(None, map(str.strip, experiment.forward_env.split(",")))]
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
