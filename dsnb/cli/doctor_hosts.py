"""Checks the hosts of a hostfile: connection, hardware, versions, and differences. Changes nothing."""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsnb.cli.doctor import LEAST_FREE_GIB, Check
from dsnb.errors import LaunchError
from dsnb.launcher.hosts import remote
from dsnb.launcher.hosts.node import Node
from dsnb.run_folder import node_comparison, paths
from dsnb.settings.experiment import Experiment

MOST_OFFSET_S = 1.0
"""Larger offsets between clocks make logs hard to compare; measured times are corrected for them."""
MOST_LOAD = 0.5
"""Load per core above which other programs are running."""


def check_hosts(experiment: Experiment) -> list[Check]:
    """Check every host that an experiment with a hostfile would use; an unreachable host is a result as well."""
    nodes, failures = remote.reach(experiment, lambda *_: None)
    try:
        reached = [node for node, failure in zip(nodes, failures, strict=True) if failure is None]
        lost = [
            Check("bad", node.host.name, "not reached", failure.removeprefix(f"{node.host.name} was not reached: "))
            for node, failure in zip(nodes, failures, strict=True)
            if failure
        ]
        found, shared = _examine(reached, experiment)
    finally:
        remote.close(nodes)
    checks = [check for node in reached for check in _host(node, found[node.number])]
    environments = [(node.host.name, node.hello["environment"]) for node in reached]
    odd = [
        Check("warn", "differences", sentence, "install the same everywhere")
        for sentence in node_comparison.differences(environments).values()
    ]
    return [*checks, *lost, *odd, *_outputs(shared, reached)]


def _examine(nodes: list[Node], experiment: Experiment) -> tuple[dict[int, dict[str, Any]], dict[str, bool]]:
    """Let every host check itself and its connection to two others."""
    folder = paths.outputs_root().absolute()
    token = folder / f".shared-{secrets.token_hex(8)}"
    with suppress(OSError):
        token.touch()
    port = experiment.ssh_port or 22
    found: dict[int, dict[str, Any]] = {}
    try:
        for number, node in enumerate(nodes):
            others = {nodes[0].hello["address"], nodes[(number + 1) % len(nodes)].hello["address"]}
            peers = [f"{address}:{port}" for address in sorted(others - {node.hello["address"]})]
            node.send(do="examine", folder=str(folder), token=token.name, peers=peers)
        for node in nodes:
            try:
                found[node.number] = node.answer().get("examined", {})
            except LaunchError as error:
                found[node.number] = {"error": str(error)}
    finally:
        with suppress(OSError):
            token.unlink()
    return found, {node.host.name: bool(found[node.number].get("sees_outputs")) for node in nodes}


def _host(node: Node, found: dict[str, Any]) -> Iterator[Check]:
    name, hello = node.host.name, node.hello
    machine = hello["environment"]
    gpus = machine.get("gpus") or []
    clocks = machine.get("clocks") or [{}]
    parts = [
        f"{hello['address']} on {hello['interface']}",
        f"{len(gpus)} x {gpus[0]['name']}, driver {machine.get('driver')}" if gpus else "no GPU",
        f"{clocks[0]['sm_clock_max_mhz']} MHz at most" if clocks[0].get("sm_clock_max_mhz") else "",
        f"{machine.get('cores')} cores, {found.get('memory_free_gib')} of {machine.get('memory_gib')} GiB free",
        f"disk {found.get('free_gib')} GiB free",
        f"torch {machine.get('torch')}, DeepSpeed {machine.get('deepspeed')}",
        ", ".join(f"{link} {speed}" for link, speed in (found.get("links") or {}).items()),
    ]
    yield Check("ok", name, "; ".join(filter(None, parts)))
    if "error" in found:
        yield Check("bad", name, found["error"], "look at it there with `dsnb doctor`")
        return
    if gpus and len(gpus) < len(node.host.devices):
        yield Check("bad", name, f"{len(gpus)} GPUs and {len(node.host.devices)} slots", "correct the hostfile")
    yield from _warnings(name, node, found)


def _warnings(name: str, node: Node, found: dict[str, Any]) -> Iterator[Check]:
    offset = node.hello.get("clock_offset_s") or 0.0
    if abs(offset) > MOST_OFFSET_S:
        yield Check("warn", name, f"its clock is {offset:+.1f} s off this one", "start an NTP service on both")
    if found.get("busy"):
        yield Check("warn", name, found["busy"], "wait for it, or leave the host out with --exclude")
    if (found.get("load_per_core") or 0) > MOST_LOAD:
        yield Check("warn", name, f"load of {found['load_per_core']} a core", "something else is running there")
    if (found.get("free_gib") or 0) < LEAST_FREE_GIB:
        yield Check("warn", name, f"{found.get('free_gib')} GiB of disk free", "make room")
    if not found.get("compiler"):
        yield Check("bad", name, "no C++ compiler", "install g++: DeepSpeed compiles its ops on every host")
    for peer, answer_ms in (found.get("reached") or {}).items():
        if answer_ms is None:
            advice = "open the network between the hosts, or name another --interface"
            yield Check("bad", name, f"{peer.rpartition(':')[0]} does not answer from there", advice)


def _outputs(shared: dict[str, bool], nodes: list[Node]) -> Iterator[Check]:
    folder: Path = paths.outputs_root()
    if not nodes:
        return
    if all(shared.values()):
        yield Check("ok", "outputs", f"{folder} is shared by all hosts")
    else:
        without = [host for host, sees in shared.items() if not sees]
        some = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        yield Check("ok", "outputs", f"{folder} is missing on {some}: results are fetched from there")
