"""Coordinates a run on several hosts: starts their agents, starts the ranks, collects results, and ends all of them."""

import json
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.launcher import environment
from dsnb.launcher.hosts import transport
from dsnb.launcher.hosts.gather import NodeRecords
from dsnb.launcher.hosts.node import Node
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock
from dsnb.version import __version__

T = TypeVar("T")
START_TIMEOUT_S = 240.0
SERVERS = "DSNB_NODE_SERVERS"
"""The environment variable in which a sweep passes its fork servers on the hosts, as JSON."""


def reach(experiment: Experiment, take: Callable[[Node, dict[str, Any]], None]) -> tuple[list[Node], list[str | None]]:
    """Start an agent on every host; return the nodes, and for each its problem or None."""
    nodes: list[Node] = []
    try:
        for number, host in enumerate(experiment.hosts):
            nodes.append(Node(number, host, transport.command(experiment, host), take))
        return nodes, call_all(nodes, _exchange_hello)
    except BaseException:
        close(nodes)
        raise


def call_all(items: list[T], function: Callable[[T], Any]) -> list[Any]:
    """Call a function for all items in parallel; raise the first error without waiting for the other calls."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(items)))
    try:
        futures = [pool.submit(function, item) for item in items]
        for future in as_completed(futures):
            future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False)  # an interrupt must not wait for an unreachable host


def _exchange_hello(node: Node) -> str | None:
    """Receive a node's description and measure its clock offset; return its problem, None if it has none."""
    try:
        node.answer()
        _, date_s, monotonic_s = min(_offsets(node) for _ in range(3))  # that of the shortest round trip
        node.hello |= {"clock_offset_s": round(date_s, 4), "monotonic_offset_s": monotonic_s}
    except LaunchError as error:
        return str(error)
    if node.hello.get("dsnb") != __version__:
        return (
            f"{node.host.name} has dsnb {node.hello.get('dsnb')} and this host {__version__}: install the same version"
        )
    return None


def _offsets(node: Node) -> tuple[float, float, float]:
    """Return round-trip time, date offset and monotonic clock offset of a node, all in seconds."""
    sent_s, began_s = time.time(), launch_clock.now_s()
    node.send(ping=began_s)
    pong = node.answer()
    took_s = launch_clock.now_s() - began_s
    return took_s, pong["time"] - sent_s - took_s / 2, pong["monotonic_s"] - began_s - took_s / 2


def close(nodes: list[Node]) -> None:
    """Close all nodes in parallel."""
    call_all(nodes, Node.close)


class RemoteRanks:
    """All ranks of a run with a hostfile.

    Raises
    ------
    LaunchError
        If a host was not reached or does not fit; the message names up to five of them with the reason.
    """

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self._run = run
        self._records = NodeRecords(run)
        self._closed = False
        self._nodes, failures = reach(experiment, self._records.take)
        try:
            if problems := list(filter(None, failures)):
                raise LaunchError("; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if problems[5:] else ""))
            self.experiment = experiment.model_copy(update={"device": self._device(experiment)})
            forwarded = environment.recorded_variables(transport.forwarded(experiment))
            for node in self._nodes:
                own = node.hello["environment"].get("variables") or {}
                node.hello["environment"]["variables"] = own | forwarded
            self.environment: dict[str, Any] = self._nodes[0].hello["environment"]
        except BaseException:
            self.end()
            raise

    def _device(self, experiment: Experiment) -> str:
        """Return `cuda` if every host has the GPUs of its slots, `cpu` if no host has any."""
        counts = {node.host.name: int(node.hello.get("gpus", 0)) for node in self._nodes}
        if experiment.device == "cpu" or (experiment.device == "auto" and not any(counts.values())):
            return "cpu"
        short = [node for node in self._nodes if counts[node.host.name] <= max(node.host.devices)]
        if short:
            name, wanted = short[0].host.name, max(short[0].host.devices) + 1
            raise LaunchError(f"{name} has {counts[name]} usable GPUs and {wanted} slots: correct the hostfile")
        return "cuda"

    def start(self, worker: str, launched_at: float) -> None:
        """Start the ranks on every host.

        Raises
        ------
        LaunchError
            If a host cannot start its ranks; none is left running then.
        """
        token = self._run.dir / f".shared-{secrets.token_hex(8)}"
        try:
            token.touch()
            requests = self._requests(worker, token, launched_at)
            for node, request in zip(self._nodes, requests, strict=True):
                node.send(**request)
            answers = call_all(self._nodes, lambda node: node.answer(START_TIMEOUT_S))
            for node, answer in zip(self._nodes, answers, strict=True):
                self._records.shared[node.host.name] = bool(answer.get("shared"))
        except BaseException:
            self.end()
            raise
        finally:
            with suppress(OSError):
                token.unlink()

    def _requests(self, worker: str, token: Path, launched_at: float) -> list[dict[str, Any]]:
        experiment, first = self.experiment, self._nodes[0]
        address = self._address()
        first.send(do="port", port=experiment.master_port, address=address)
        servers = json.loads(os.environ.get(SERVERS, "{}"))
        common = {
            "do": "run",
            "device": experiment.device,
            "launcher": experiment.launcher,
            "hosts": [(node.host.name, node.host.devices) for node in self._nodes],
            "master_addr": address,
            "master_port": first.answer()["port"],
            "interface": experiment.interface,
            "worker": worker,
            "run_dir": str(self._run.dir),
            "token": token.name,
            "cwd": os.getcwd(),
            "umask": environment.umask(),
            "env": transport.forwarded(experiment),
            "experiment": records.read_json(self._run.experiment),
            "deepspeed": records.read_json(self._run.deepspeed),
            "bandwidth": records.read_json(self._run.bandwidth_plan),
        }
        return [
            {
                **common,
                "node": number,
                "server": servers.get(f"{node.host.name} {experiment.device}"),
                "launched_at": launched_at + node.hello["monotonic_offset_s"],
            }
            for number, node in enumerate(self._nodes)
        ]

    def _address(self) -> str:
        """Return the address of the rendezvous, on an interface that every host has."""
        chosen, first = self.experiment.interface, self._nodes[0].hello
        for node in self._nodes if chosen else ():
            if chosen not in node.hello["interfaces"]:
                there = ", ".join(sorted(node.hello["interfaces"]))
                raise LaunchError(f"interface is {chosen!r}: {node.host.name} has no address on it; it has {there}")
        return str(first["interfaces"][chosen] if chosen else first["address"])

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code; the key -1 - k stands for some rank of node k (from 0)."""
        return {
            rank if rank >= 0 else -1 - node.number: code
            for node in self._nodes
            for rank, code in dict(node.codes).items()
        }

    def ended(self) -> bool:
        """Return whether the ranks of all hosts have ended."""
        return all(node.ended for node in self._nodes)

    def external_failure(self) -> str | None:
        """Return which host was lost and how, or which error it reported; None if there is no failure."""
        for node in self._nodes:
            node.check()
        lost = (node.lost for node in self._nodes if node.lost)
        return next(lost, None) or next((f"{one.host.name}: {one.error}" for one in self._nodes if one.error), None)

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills on all hosts since the start."""
        return sum(node.oom_kills for node in self._nodes)

    def host_suffix(self, rank: int) -> str:
        """Return the text that names a rank's host."""
        owners = [node for node in self._nodes for _ in node.host.devices]
        return f" on {(owners[rank] if rank >= 0 else self._nodes[-1 - rank]).host.name}"

    def end(self) -> None:
        """End the ranks of all hosts, and write `nodes.json`."""
        if self._closed:
            return
        self._closed = True
        close(self._nodes)
        self._records.write(self._nodes)
