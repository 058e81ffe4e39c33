"""Rendezvous of the ranks: torch's TCP store, on one machine listening only on MASTER_ADDR.

torch's own `env://` listens on all interfaces of the machine, and anybody who reaches the store can read and change its
content. For the ranks of one machine, which meet on the loopback interface, that exposed it to the whole network. Ranks
that torchrun started join its store.
"""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

SCHEME = "dsnb"
INIT_METHOD = f"{SCHEME}://"


def join_store(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Join the store of torchrun or rank 0, which the usual variables name; a rendezvous handler for torch."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield PrefixStore("dsnb", TCPStore(address, port, ranks, False, timeout)), rank, ranks
        return
    listener = socket.create_server((address, port), backlog=max(128, ranks)).detach() if rank == 0 else None
    yield TCPStore(address, port, ranks, rank == 0, timeout, master_listen_fd=listener), rank, ranks


register_rendezvous_handler(SCHEME, join_store)
