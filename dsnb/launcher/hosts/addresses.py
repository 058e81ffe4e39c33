"""By which address a host is reached, and through which network interface its ranks talk.

gloo looks its own host name up and listens on whatever that says, on Debian 127.0.1.1: the other hosts wait for it in
vain. So the address and the interface are those by which the host was reached.
"""

import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class HostAddress:
    """An address of this host and the interface that has it."""

    address: str
    interface: str


def own_address() -> HostAddress:
    """Return the address by which whoever started this process, through ssh or srun, reached this host."""
    known = interfaces()
    for address in (_reached_by_ssh(), _source_address(os.environ.get("SLURM_LAUNCH_NODE_IPADDR"))):
        if address in known and not _is_loopback(address):
            return HostAddress(address, known[address])
    outside = next((address for address in known if not _is_loopback(address)), "127.0.0.1")
    return HostAddress(outside, known.get(outside, "lo"))


def interfaces() -> dict[str, str]:
    """Return the IPv4 addresses of the interfaces that are up, with the interface of each; containers' bridges last."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    }
    return dict(sorted(found.items(), key=lambda item: item[1].startswith(("docker", "virbr", "br-", "cni", "veth-"))))


def interface_variables(chosen: str, reached_by: str) -> dict[str, str]:
    """Return the variables that tie gloo, and NCCL where an interface was chosen, to an interface."""
    variables = {"GLOO_SOCKET_IFNAME": chosen or reached_by}
    if chosen:
        variables["NCCL_SOCKET_IFNAME"] = chosen
    return variables


def _reached_by_ssh() -> str | None:
    words = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, server, its port
    return words[2] if len(words) == 4 else None


def _source_address(peer: str | None) -> str | None:
    """Return the address that this host would send from to `peer`; nothing is sent."""
    if not peer:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _is_loopback(address: str | None) -> bool:
    return (address or "").startswith("127.")
