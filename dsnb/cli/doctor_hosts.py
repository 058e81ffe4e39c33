"""Checks the hosts of a hostfile: connection, hardware, versions, and differences. Changes nothing."""

from collections.abc import Iterator
from pathlib import Path

from dsnb.cli.doctor import MIN_FREE_GIB, Check
from dsnb.launcher import hosts
from dsnb.launcher.hosts import Node
from dsnb.run_folder import node_comparison, paths
from dsnb.settings.experiment import Experiment

MAX_OFFSET_S = 1.0
"""Larger offsets between clocks make logs hard to compare; measured times are corrected for them."""
MAX_LOAD = 0.5
"""Load per core above which other programs are running."""


def check_hosts(experiment: Experiment) -> list[Check]:
    """Check every host that an experiment with a hostfile would use; an unreachable host is a result as well."""
    root = paths.outputs_root().absolute()
    folder = next(path for path in (root, *root.parents) if path.is_dir())
    with hosts.connected(experiment) as nodes:
        hosts.ask(experiment, nodes, folder, [{}] * len(nodes))
        reached = [node for node in nodes if node.failure is None]
        checks = [check for node in reached for check in _host(node)]
        for node in nodes:
            if node.failure is not None:
                why = node.failure.removeprefix(f"{node.host.name} was not reached: ")
                checks.append(Check("bad", node.host.name, "not reached", why))
        environments = [(node.host.name, node.facts["environment"]) for node in reached]
        for sentence in node_comparison.differences(environments).values():
            checks.append(Check("warn", "differences", sentence, "install the same everywhere"))
        return [*checks, *_links(experiment, reached, folder), *_outputs(reached, folder)]


def _host(node: Node) -> Iterator[Check]:
    name, facts = node.host.name, node.facts
    machine = facts["environment"]
    gpus = machine.get("gpus") or []
    clocks = machine.get("clocks") or [{}]
    parts = [
        f"{facts['address']} on {facts['interface']}",
        f"{len(gpus)} x {gpus[0]['name']}, driver {machine.get('driver')}" if gpus else "no GPU",
        f"{clocks[0]['sm_clock_max_mhz']} MHz at most" if clocks[0].get("sm_clock_max_mhz") else "",
        f"{machine['cores']} cores, {facts['memory_free_gib']} of {machine['memory_gib']} GiB free",
        f"disk {facts['free_gib']} GiB free",
        f"torch {machine.get('torch')}, DeepSpeed {machine.get('deepspeed')}",
        ", ".join(f"{link} {speed}" for link, speed in facts["links"].items()),
    ]
    yield Check("ok", name, "; ".join(filter(None, parts)))
    if gpus and len(gpus) <= max(node.host.devices):
        yield Check("bad", name, f"{len(gpus)} GPUs and {max(node.host.devices) + 1} slots", "correct the hostfile")
    if abs(facts["clock_offset_s"]) > MAX_OFFSET_S:
        yield Check("warn", name, f"its clock is {facts['clock_offset_s']:+.1f} s off", "start an NTP service")
    if facts["busy"]:
        yield Check("warn", name, facts["busy"], "wait for it, or leave the host out with --exclude")
    if facts["load_per_core"] > MAX_LOAD:
        yield Check("warn", name, f"load of {facts['load_per_core']} a core", "something else is running there")
    if facts["free_gib"] < MIN_FREE_GIB:
        yield Check("warn", name, f"{facts['free_gib']} GiB of disk free", "make room")
    if not facts["compiler"]:
        yield Check("bad", name, "no C++ compiler", "install g++: DeepSpeed compiles its ops on every host")


def _links(experiment: Experiment, reached: list[Node], folder: Path) -> Iterator[Check]:
    """Let every host connect to the first one and to the next one."""
    if len(reached) < 2:
        return
    addresses = [node.facts["address"] for node in reached]
    requests = []
    for number, address in enumerate(addresses):
        neighbours = {addresses[0], addresses[(number + 1) % len(addresses)]} - {address}
        requests.append({"peers": [f"{peer}:{experiment.ssh_port or 22}" for peer in sorted(neighbours)]})
    hosts.ask(experiment, reached, folder, requests)
    for node in reached:
        for peer in [peer for peer, answers in node.facts["reached"].items() if not answers]:
            advice = "open the network between the hosts, or name another --interface"
            yield Check("bad", node.host.name, f"{peer.rpartition(':')[0]} does not answer from there", advice)


def _outputs(reached: list[Node], folder: Path) -> Iterator[Check]:
    if not reached:
        return
    without = [node.host.name for node in reached if not node.facts["sees_folder"]]
    if without:
        some = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        advice = "set DSNB_OUTPUTS, or --output, to a folder on a file system that all hosts share"
        yield Check("bad", "outputs", f"{some} does not see {folder}", advice)
    else:
        yield Check("ok", "outputs", f"{folder} is shared by all hosts")
