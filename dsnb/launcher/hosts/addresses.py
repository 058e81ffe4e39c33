"""Finds the address and the network interface that the ranks of a host use.

gloo resolves its own host name and listens on the result, on Debian 127.0.1.1, where the other hosts cannot reach it.
The address and the interface are therefore those through which the coordinator reached the host.
"""

import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class HostAddress:
    """An address of this host and its interface."""

    address: str
    interface: str


def own_address() -> HostAddress:
    """Return the address through which ssh or srun reached this host."""
    known = interfaces()
    for address in (_reached_by_ssh(), _source_address(os.environ.get("SLURM_LAUNCH_NODE_IPADDR"))):
        if address in known and not _is_loopback(address):
            return HostAddress(address, known[address])
    outside = next((address for address in known if not _is_loopback(address)), "127.0.0.1")
    return HostAddress(outside, known.get(outside, "lo"))


def interfaces() -> dict[str, str]:
    """Return IPv4 address -> interface, of all interfaces that are up; container bridges come last."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    }
    return dict(sorted(found.items(), key=lambda item: item[1].startswith(("docker", "virbr", "br-", "cni", "veth-"))))


def interface_variables(chosen: str, reached_by: str) -> dict[str, str]:
    """Return the variables that bind gloo to an interface, and NCCL too if the user chose one."""
    variables = {"GLOO_SOCKET_IFNAME": chosen or reached_by}
    if chosen:
        variables["NCCL_SOCKET_IFNAME"] = chosen
    return variables


def _reached_by_ssh() -> str | None:
    words = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, server, its port
    return words[2] if len(words) == 4 else None


def _source_address(peer: str | None) -> str | None:
    """Return the address from which this host would send to `peer`; nothing is sent."""
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
