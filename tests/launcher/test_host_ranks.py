"""Ports of ranks, and the slots of hosts that are counted."""

from pathlib import Path

from dsnb.launcher import rank_group
from dsnb.launcher.host_ranks import HostRanks, free_port
from dsnb.settings.hostfile import Host


def test_ports_lie_where_systems_take_none_for_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < min(lowest, 32_000) for _ in range(50))


def test_chosen_slots_of_hosts_without_gpus_are_counted(tmp_path):
    hosts = (Host("n1", (0, 2)), Host("n2", (3,)))
    host_ranks = HostRanks("cpu", hosts, 1, "n1", 29500, {}, "worker", tmp_path, tmp_path / "console.log")
    assert rank_group.write_hostfile(host_ranks).read_text() == "n1 slots=2\nn2 slots=1\n"
