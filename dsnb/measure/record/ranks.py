"""The ranks of a training: who they are, and what they tell each other without a collective.

Ranks exchange records through the store of their process group, which every rank can reach at any
time: no rank waits for another one in a step, and one that fails can still say why.
"""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import orjson
import psutil
import torch
import torch.distributed as dist

_recordings = itertools.count()
"""Every rank numbers its recordings alike, so their keys in the store agree."""


class Ranks:
    """The place of this process among the ranks of its training; one rank where there is no process group."""

    def __init__(self) -> None:
        self._prefix = f"dsnb/{next(_recordings)}"
        self._store = _store()
        self.rank = 0
        self.count = 1
        if self._store is not None:
            self.rank = dist.get_rank()
            self.count = dist.get_world_size()
        self.local_rank = 0
        self.on_host = self.count
        if self.count > 1:
            self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
            self.on_host = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        self._neighbours: dict[int, Any] = {}

    @property
    def nodes(self) -> int:
        """Number of hosts, if all have the same number of ranks."""
        return max(1, self.count // self.on_host)

    def claim(self, what: str) -> bool:
        """Return whether this rank is the first to claim something."""
        if self._store is None:
            return True
        return bool(self._store.add(f"{self._prefix}/{what}/claims", 1) == 1)

    def tell(self, what: str, content: object) -> None:
        """Leave a record for the other ranks; the store may be gone if one of them has failed."""
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.set(f"{self._prefix}/{what}", orjson.dumps(content))

    def ask(self, what: str, wait_s: float) -> Any:
        """Return what a rank has told; None if it does not within some time."""
        if self._store is None:
            return None
        key = f"{self._prefix}/{what}"
        with contextlib.suppress(Exception):
            self._store.wait([key], timedelta(seconds=wait_s))
            return orjson.loads(self._store.get(key))
        return None

    def ask_all(self, what: str, ranks: Iterable[int], wait_s: float) -> Iterator[tuple[int, Any]]:
        """Yield what ranks have told; None for one that does not within some time from now."""
        deadline_s = time.monotonic() + wait_s
        for rank in ranks:
            left_s = max(0.1, deadline_s - time.monotonic())
            yield rank, self.ask(f"{what}/{rank}", left_s)

    def introduce(self, about: dict[str, Any]) -> None:
        """Tell the ranks of this host which process this rank is."""
        self.tell(
            f"process/{self.rank}", {"host": socket.gethostname(), "pid": os.getpid(), **about}
        )

    def meet(self, wait_s: float) -> list[dict[str, Any]]:
        """Return what the other ranks of this host told of themselves."""
        first = self.rank - self.local_rank
        others = [rank for rank in range(first, first + self.on_host) if rank != self.rank]
        for rank, told in self.ask_all("process", others, wait_s):
            self._neighbours[rank] = told
        host = socket.gethostname()
        self._neighbours = {
            rank: about
            for rank, about in self._neighbours.items()
            if about and about["host"] == host
        }
        return list(self._neighbours.values())

    def missing(self) -> Iterator[int]:
        """Yield the ranks of this host whose processes are gone."""
        for rank, about in self._neighbours.items():
            with contextlib.suppress(psutil.Error):
                if psutil.Process(about["pid"]).status() != psutil.STATUS_ZOMBIE:
                    continue
            yield rank


def _store() -> Any:
    """Return the store of the default process group; None without one."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    get_store = getattr(dist.distributed_c10d, "_get_default_store", None)
    return get_store and get_store()


def device_of(model: Any) -> torch.device:
    """Return the device that a model computes on: weights that are offloaded are elsewhere."""
    devices = {weight.device for weight in model.parameters()} if model is not None else set()
    computing = [device for device in devices if device.type not in {"cpu", "meta"}]
    if computing:
        return torch.device(computing[0])
    if torch.cuda.is_initialized() and torch.cuda.memory_allocated():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
