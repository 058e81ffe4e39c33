"""Fork servers on the hosts of a sweep, kept from its first run to its last: imports are done once a host."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from dsnb.errors import LaunchError, SettingsError
from dsnb.experiment import Experiment
from dsnb.hostfile import Host
from dsnb.launcher.hosts import transport
from dsnb.launcher.hosts.node import Node
from dsnb.launcher.hosts.remote import SERVERS, STARTED_WITHIN_S


@contextlib.contextmanager
def kept(experiments: Iterable[Experiment]) -> Iterator[None]:
    """Keep a server on every host of these experiments, for all processes started inside the `with` block.

    A host that is not reached is passed over: the runs on it say why.
    """
    wanted = {
        (host.name, experiment.device): (host, experiment)
        for experiment in experiments
        if experiment.launcher == "fork"
        for host in _hosts(experiment)
    }
    if not wanted:
        yield
        return
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        held = [one for one in pool.map(lambda key: _hold(*wanted[key]), wanted) if one]
    before = os.environ.get(SERVERS)
    os.environ[SERVERS] = json.dumps({f"{node.host.name} {device}": path for node, device, path in held})
    try:
        yield
    finally:
        os.environ.pop(SERVERS) if before is None else os.environ.update({SERVERS: before})
        with ThreadPoolExecutor(max_workers=max(1, len(held))) as pool:
            list(pool.map(lambda one: one[0].close(), held))


def _hosts(experiment: Experiment) -> tuple[Host, ...]:
    try:
        return experiment.hosts
    except SettingsError:
        return ()


def _hold(host: Host, experiment: Experiment) -> tuple[Node, str, str] | None:
    """Start a server on a host and give the connection that it lives by, its device, and its socket."""
    node = Node(0, host, transport.command(experiment, host), lambda *_: None)
    try:
        gpus = node.answer().get("hello", {}).get("gpus", 0)
        device = experiment.device if experiment.device != "auto" else "cuda" if gpus else "cpu"
        node.send(do="serve", device=device, env=transport.forwarded(experiment))
        return node, device, str(node.answer(STARTED_WITHIN_S)["socket"])
    except LaunchError:
        node.close()
        return None
