"""A run on several hosts: their agents reached, started together, listened to, and ended together."""

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
"""The variable in which a sweep passes on the fork servers that it keeps on its hosts, as JSON."""


def reach(experiment: Experiment, take: Callable[[Node, dict[str, Any]], None]) -> tuple[list[Node], list[str | None]]:
    """Start an agent on every host, and give them with what is wrong with each, None for one that answers."""
    nodes: list[Node] = []
    try:
        for number, host in enumerate(experiment.hosts):
            nodes.append(Node(number, host, transport.command(experiment, host), take))
        return nodes, call_all(nodes, _exchange_hello)
    except BaseException:
        close(nodes)
        raise


def call_all(of: list[T], work: Callable[[T], Any]) -> list[Any]:
    """Do something for all hosts at once, and raise what one raises without waiting for the others."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(of)))
    try:
        begun = [pool.submit(work, one) for one in of]
        for done in as_completed(begun):
            done.result()
        return [one.result() for one in begun]
    finally:
        pool.shutdown(wait=False)  # an interrupt must not wait for a host that does not answer


def _exchange_hello(node: Node) -> str | None:
    """Take a node's hello and its clock; give what is wrong with it."""
    try:
        node.answer()
        _, date_s, monotonic_s = min(_offsets(node) for _ in range(3))  # of the quickest way there and back
        node.hello |= {"clock_offset_s": round(date_s, 4), "monotonic_offset_s": monotonic_s}
    except LaunchError as error:
        return str(error)
    if node.hello.get("dsnb") != __version__:
        return f"{node.host.name} has dsnb {node.hello.get('dsnb')} and this host {__version__}: install the same"
    return None


def _offsets(node: Node) -> tuple[float, float, float]:
    """Return the seconds to a node and back, and by how much its date and its monotonic clock are ahead of these."""
    sent_s, began_s = time.time(), launch_clock.now_s()
    node.send(ping=began_s)
    pong = node.answer()
    took_s = launch_clock.now_s() - began_s
    return took_s, pong["time"] - sent_s - took_s / 2, pong["monotonic_s"] - began_s - took_s / 2


def close(nodes: list[Node]) -> None:
    """End every agent, all at once."""
    call_all(nodes, Node.close)


class RemoteRanks:
    """All ranks of a run with a hostfile.

    Raises
    ------
    LaunchError
        Naming every host that was not reached or cannot do what is asked, and why.
    """

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self._run = run
        self._records = NodeRecords(run)
        self._closed = False
        self._nodes, failures = reach(experiment, self._records.take)
        try:
            if told := list(filter(None, failures)):
                raise LaunchError("; ".join(told[:5]) + (f"; and {len(told) - 5} more" if told[5:] else ""))
            self.experiment = experiment.model_copy(update={"device": self._device(experiment)})
            self.environment: dict[str, Any] = self._nodes[0].hello["environment"]
        except BaseException:
            self.end()
            raise

    def _device(self, experiment: Experiment) -> str:
        """Return `cuda` if every host has the GPUs that it should, and `cpu` if none has any."""
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
            If a host cannot start its ranks; then none is left running.
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
        """Return the address at which the ranks meet, on an interface that every host has."""
        chosen, first = self.experiment.interface, self._nodes[0].hello
        for node in self._nodes if chosen else ():
            if chosen not in node.hello["interfaces"]:
                there = ", ".join(sorted(node.hello["interfaces"]))
                raise LaunchError(f"interface is {chosen!r}: {node.host.name} has no address on it; it has {there}")
        return str(first["interfaces"][chosen] if chosen else first["address"])

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far, by rank; one that stands for some rank of node k (from 0) by -1 - k."""
        return {
            rank if rank >= 0 else -1 - node.number: code
            for node in self._nodes
            for rank, code in dict(node.codes).items()
        }

    def ended(self) -> bool:
        """Return whether every host has ended its ranks."""
        return all(node.ended for node in self._nodes)

    def external_failure(self) -> str | None:
        """Say which host was lost and how that was noticed, or what went wrong there."""
        for node in self._nodes:
            node.check()
        lost = (node.lost for node in self._nodes if node.lost)
        return next(lost, None) or next((f"{one.host.name}: {one.error}" for one in self._nodes if one.error), None)

    def oom_kills(self) -> int:
        """Count what the hosts' kernels killed since the start."""
        return sum(node.oom_kills for node in self._nodes)

    def host_suffix(self, rank: int) -> str:
        """Say on which host a rank is."""
        owners = [node for node in self._nodes for _ in node.host.devices]
        return f" on {(owners[rank] if rank >= 0 else self._nodes[-1 - rank]).host.name}"

    def end(self) -> None:
        """End the ranks of every host, and write down what became of each."""
        if self._closed:
            return
        self._closed = True
        close(self._nodes)
        self._records.write(self._nodes)
