"""A process that has imported torch, DeepSpeed and transformers, and forks the ranks of one run after another.

Starting two ranks normally spends about 12 s on imports and interpreter exits; a forked rank has
imported already. Every rank is a separate process with a fresh copy of the server's memory. The
server never runs a torch operation or uses a GPU, so a run inherits nothing from the one before.

The server reads one JSON line per run from a Unix socket ({"ranks": [environment, ...], "cwd",
"log", "worker", "run_dir"}), answers {"pids": [...]} and then {"rank", "exit"} for each rank. It
kills the ranks when the client disconnects, and exits when the process that started it ends.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

from dsnb.base.system import signals

POLL_S = 0.02
running: list[int] = []
"""Process IDs of the current run's ranks; the first is also the ID of their process group."""
FIRST = (
    "transformers.models.gpt2.modeling_gpt2",
    "deepspeed.module_inject.auto_ep_layer",
    "dsnb.measure.train.engine",
)
"""Modules that the first run needs whatever it trains; importing what they import takes 2 s in each
of its ranks."""
PRELOADED = ("torch", "deepspeed", "transformers", "dsnb", "numpy", "tokenizers", "peft")


def serve(path: str, owner: int) -> None:
    """Serve runs on the socket at `path` until the parent process, whose ID is `owner`, ends."""
    signal.signal(signal.SIGTERM, end)
    import dsnb.measure.train.worker  # noqa: F401  (all that every run needs, without initialising CUDA)

    gc.collect()
    preload(FIRST)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while os.getppid() == owner:
            if select.select([listener], [], [], 0.5)[0]:
                connection, _ = listener.accept()
                with connection:
                    imported = run(connection, listener)
                preload(imported)
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def end(number: int, frame: object) -> NoReturn:
    """Exit on SIGTERM, and kill the current run."""
    if running:
        kill(running[0])
    os._exit(0)


def preload(names: Iterable[str]) -> None:
    """Import modules, such as those that the last run imported, so that the next run need not."""
    import torch

    for name in names:
        if name not in sys.modules and name.partition(".")[0] in PRELOADED:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "an installed package initialised CUDA when it was imported; use an environment without it"
        )
    gc.freeze()


def run(connection: socket.socket, listener: socket.socket) -> list[str]:
    """Fork the ranks of one run, report their exits, and return the modules that rank 0 imported."""
    request = json.loads(connection.makefile("r").readline() or "null")
    if request is None:
        return []
    report = os.memfd_create("modules")
    pids, server = running, os.getpid()
    for environment in request["ranks"]:
        pid = os.fork()
        if pid == 0:
            listener.close()
            connection.close()
            run_as_rank(request, environment, report, pids[0] if pids else 0, server)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pids[0] if pids else pid)
        pids.append(pid)
    watch(connection, pids)
    kill(pids[0])
    pids.clear()
    with os.fdopen(report, "r") as file:
        file.seek(0)
        return file.read().split()


def watch(connection: socket.socket, pids: list[int]) -> None:
    """Report the exits of the ranks in their order; kill all ranks if the client disconnects.

    Of ranks that end within `POLL_S`, those killed by a signal come first: the others may have
    failed because of them.
    """
    send(connection, {"pids": pids})
    alive = {pid: rank for rank, pid in enumerate(pids)}
    while alive:
        if select.select([connection], [], [], POLL_S)[0] and has_ended(connection):
            kill(pids[0])
        ended = []
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.append({"rank": alive.pop(pid), "exit": os.waitstatus_to_exitcode(status)})
        for message in sorted(ended, key=lambda message: message["exit"] >= 0):
            send(connection, message)


def has_ended(connection: socket.socket) -> bool:
    """Return whether the client, which sends nothing more, has disconnected; if killed, it leaves answers unread."""
    try:
        return not connection.recv(1024)
    except ConnectionError:
        return True


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one line, unless the client has disconnected."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def kill(group: int) -> None:
    """Kill the remaining processes of a process group."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def run_as_rank(
    request: dict[str, Any], environment: dict[str, str], report: int, group: int, server: int
) -> NoReturn:
    """Run one rank in this forked process; never return."""
    code = 1
    try:
        signals.die_with_parent(server)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # the launcher reports a signal as the end of the rank
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, group)
        # The log gets everything that this process prints, including native code.
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(request["cwd"])
        code = importlib.import_module(request["worker"]).main(request["run_dir"])
        if environment["RANK"] == "0":
            os.write(report, "\n".join(sorted(sys.modules)).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):  # on a full disk; the process must end here
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
