"""The ranks of one host of a run: everything needed to start them, with either launcher."""

import contextlib
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from dsnb.errors import LaunchError
from dsnb.launcher import environment
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.system import hardware

LOCALHOST = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Keeps the ranks of one machine from listening on the network. NCCL uses this interface for its setup only: the GPUs
of one machine exchange data over NVLink, PCIe or shared memory. Variables that the user has set take precedence."""


@dataclass(frozen=True)
class HostRanks:
    """The ranks of host number `node` of `hosts`, with their rendezvous at `master_addr`."""

    device: str
    hosts: tuple[Host, ...]
    node: int
    master_addr: str
    master_port: int
    env: dict[str, str]
    worker: str
    run_dir: Path
    console: Path

    @property
    def first_rank(self) -> int:
        """The lowest rank of this host."""
        return sum(len(host.devices) for host in self.hosts[: self.node])

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return tuple(range(self.first_rank, self.first_rank + len(self.hosts[self.node].devices)))

    @property
    def variables(self) -> list[dict[str, str]]:
        """Each rank's whole environment, with the variables that the `deepspeed` launcher would set."""
        shared = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "WORLD_SIZE": str(sum(len(host.devices) for host in self.hosts)),
            "LOCAL_SIZE": str(len(self.ranks)),
            "CROSS_RANK": str(self.node),
            "CROSS_SIZE": str(len(self.hosts)),
        }
        if self.device == "cuda":
            shared["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.gpus))
        numbered = enumerate(self.ranks)
        return [{**self.env, **shared, "RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in numbered]

    @property
    def gpus(self) -> list[int]:
        """NVML's indexes of the GPUs to use; `devices` counts only GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
        visible = hardware.gpus()
        return [visible[device].index for device in self.hosts[self.node].devices]


def local_host_ranks(experiment: Experiment, run: RunPaths, worker: str, launched_at: float) -> HostRanks:
    """Return the ranks of a run that uses this machine only.

    Raises
    ------
    LaunchError
        If the port for their rendezvous is in use.
    """
    if experiment.master_port and not is_free(LOCALHOST, experiment.master_port):
        raise LaunchError(
            f"master_port is {experiment.master_port}: it is in use; choose another, or 0 for any free port"
        )
    return HostRanks(
        device=experiment.device,
        hosts=(Host("localhost", tuple(range(experiment.gpus))),),
        node=0,
        master_addr=LOCALHOST,
        master_port=experiment.master_port or free_port(),
        env=LOOPBACK | environment.for_ranks(experiment.device, experiment.gpus, launched_at, experiment.allocator),
        worker=worker,
        run_dir=run.dir,
        console=run.console,
    )


def free_port(address: str = LOCALHOST) -> int:
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
