"""Keeps a fork server on every host of a sweep for all of its runs: libraries are imported once per host."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator

from dsnb.errors import LaunchError, SettingsError
from dsnb.launcher.hosts import remote, transport
from dsnb.launcher.hosts.node import Node
from dsnb.launcher.hosts.remote import SERVERS, START_TIMEOUT_S
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host


@contextlib.contextmanager
def keep_servers(experiments: Iterable[Experiment]) -> Iterator[None]:
    """Run a server on every host of these experiments, for all processes started inside the `with` block.

    Hosts that cannot be reached are skipped: the runs on them report why. Existing servers are used.
    """
    before = os.environ.get(SERVERS)
    known: dict[str, str] = json.loads(before or "{}")
    wanted = {
        (host.name, experiment.device): (host, experiment)
        for experiment in experiments
        if experiment.launcher == "fork"
        for host in _hosts(experiment)
        if f"{host.name} {experiment.device}" not in known
    }
    if not wanted:
        yield
        return
    asked: list[tuple[Node, Experiment]] = []
    try:
        for host, experiment in wanted.values():
            with contextlib.suppress(LaunchError):
                asked.append((Node(0, host, transport.command(experiment, host), lambda *_: None), experiment))
        found = remote.call_all(asked, lambda one: _serve(*one))
        os.environ[SERVERS] = json.dumps({**known, **dict(filter(None, found))})
        yield
    finally:
        os.environ.pop(SERVERS, None) if before is None else os.environ.update({SERVERS: before})
        for node, _ in asked:
            node.check()  # update its state, so that a lost node is not waited for
        remote.close([node for node, _ in asked])


def _hosts(experiment: Experiment) -> tuple[Host, ...]:
    try:
        return experiment.hosts
    except SettingsError:
        return ()


def _serve(node: Node, experiment: Experiment) -> tuple[str, str] | None:
    """Start a server on a host; return its name and its socket, None if it failed."""
    try:
        gpus = node.answer().get("hello", {}).get("gpus", 0)
        device = experiment.device if experiment.device != "auto" else "cuda" if gpus else "cpu"
        node.send(do="serve", device=device, env=transport.forwarded(experiment))
        return f"{node.host.name} {device}", str(node.answer(START_TIMEOUT_S)["socket"])
    except LaunchError:
        node.close()
        return None
