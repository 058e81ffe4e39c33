"""`python -m dsnb.launcher.hosts.agent`: serves a run's coordinator on one host, through a pair of pipes.

It describes the host, starts the host's ranks, forwards their output and exit codes, and samples the GPUs. When the
pipe closes or the coordinator is silent for too long, it kills the ranks and exits: no process of a run outlives it,
and it kills only what it started.
"""

import base64
import codecs
import functools
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from dsnb.errors import DsnbError, LaunchError
from dsnb.files import records
from dsnb.launcher import environment, fork, local
from dsnb.launcher.folder import check_free_space
from dsnb.launcher.host_ranks import HostRanks, free_port, is_free
from dsnb.launcher.hosts import addresses, survey
from dsnb.launcher.hosts.lifeline import LAST_RESORT_S, Lifeline
from dsnb.launcher.hosts.wire import CHUNK_BYTES, MAX_BYTES, FileTail, Sender
from dsnb.launcher.rank_group import Ranks
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.settings.hostfile import Host
from dsnb.system import hardware
from dsnb.system.scratch import Scratch

POLL_S = 0.05
MAX_CHUNKS = 16
"""Chunks of a file that are sent before the ranks are polled again: some print faster than the link transfers."""
SHARED_WAIT_S = 2.0
"""How long a file of the coordinator may take to appear here through a network file system."""


def main() -> int:
    """Serve one coordinator."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not mix with the records
    pipe.write(b"\n")  # ends a greeting of the login shell that lacks a line feed
    send = Sender(pipe)
    lifeline = Lifeline(sys.stdin.buffer, send)
    send(hello=survey.hello())
    while (request := lifeline.request()) is not None:
        try:
            TASKS[str(request["do"])](request, lifeline, send)
        except (DsnbError, OSError) as error:
            if not lifeline.cut.is_set():  # errors after that are caused by the shutdown
                send(error=_message(error))
        if request["do"] in {"run", "serve"}:
            break
    return 0


def _message(error: DsnbError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the host'}: {error.strerror or error}"
    return str(error)


def port(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Send a port for the rendezvous of the ranks."""
    wanted, address = int(request["port"]), str(request["address"])
    if wanted and not is_free(address, wanted):
        raise DsnbError(f"master_port is {wanted}: it is in use there; choose another, or 0 for any free port")
    send(port=wanted or free_port(address))


def examine(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Send a detailed examination of the host, for `dsnb doctor`."""
    send(examined=survey.examine(request))


def serve(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Run a fork server for the runs of a sweep until the coordinator disconnects."""
    os.environ.update(request["env"])  # some libraries read theirs at import
    server = fork.ForkServer(str(request["device"]))
    lifeline.last_resort = server.close
    try:
        server.wait_ready()
        send(socket=str(server.socket))
        lifeline.patience_s = LAST_RESORT_S
        lifeline.cut.wait()
    finally:
        server.close()


def run(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Start this host's ranks, and forward their results until they end."""
    os.umask(int(request["umask"]))
    scratch = Scratch(tempfile.gettempdir())
    lifeline.last_resort = functools.partial(_end, None, scratch)
    try:
        check_free_space(scratch.path)
        host_ranks, shared = prepare_host_ranks(request, scratch.path)
        if host_ranks.device == "cuda" and (busy := survey.busy_gpus(host_ranks.gpus)):
            raise DsnbError(f"{busy}; wait until it is free, or leave the host out with 'exclude'")
        kills = hardware.oom_kills()
        sampler = local.sampler(host_ranks, lambda sample: send(gpu=sample), float(request["launched_at"]))
        try:
            ranks = local.start(str(request["launcher"]), host_ranks)
            lifeline.last_resort = functools.partial(_end, ranks, scratch)
            lifeline.patience_s = LAST_RESORT_S
            send(started=True, shared=shared)
            forward_results(ranks, lifeline, ResultForwarder(host_ranks, shared, send))
            if any(ranks.exit_codes().values()):
                report_full_disk([scratch.path, host_ranks.run_dir], send)
        finally:
            sampler.stop()
        send(ended=ranks.exit_codes(), oom_kills=hardware.oom_kills() - kills)
    finally:
        scratch.remove()


def report_full_disk(folders: list[Path], send: Sender) -> None:
    """Report a full disk: ranks that fail because of it cannot record the cause."""
    try:
        for folder in folders:
            check_free_space(folder)
    except LaunchError as error:
        send(error=str(error))


def prepare_host_ranks(request: dict[str, Any], scratch: Path) -> tuple[HostRanks, bool]:
    """Return this host's ranks and whether the host sees the run folder; without it, they write to `scratch`."""
    folder = Path(request["run_dir"])
    deadline = time.monotonic() + SHARED_WAIT_S
    while not (shared := (folder / request["token"]).exists()) and folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    if not shared:
        folder = scratch
        records.write_json(RunPaths(folder).experiment, request["experiment"])
        records.write_json(RunPaths(folder).deepspeed, request["deepspeed"])
        if request.get("bandwidth"):
            records.write_json(RunPaths(folder).bandwidth_plan, request["bandwidth"])
    hosts = tuple(Host(name, tuple(devices)) for name, devices in request["hosts"])
    node, device = int(request["node"]), str(request["device"])
    os.environ.update(request["env"])
    if request.get("server"):
        os.environ[fork.socket_variable(device)] = request["server"]
    if Path(request["cwd"]).is_dir():
        os.chdir(request["cwd"])
    alone = {"hostfile": "", "nodes": 1, "device": device, "gpus": len(hosts[node].devices)}
    if problems := checks.unsupported({**request["experiment"], **alone}, launching=False):
        raise DsnbError("; ".join(problems))
    allocator = str(request["experiment"].get("allocator", "default"))
    env = environment.for_ranks(device, len(hosts[node].devices), float(request["launched_at"]), allocator)
    env |= addresses.interface_variables(str(request["interface"]), addresses.own_address().interface)
    address, number = str(request["master_addr"]), int(request["master_port"])
    host_ranks = HostRanks(
        device, hosts, node, address, number, env, request["worker"], folder, scratch / "console.log"
    )
    host_ranks.console.touch()
    return host_ranks, shared


def _end(ranks: Ranks | None, scratch: Scratch) -> None:
    if ranks:
        ranks.end()
    fork.close_servers()
    scratch.remove()


class ResultForwarder:
    """Sends the results of this host's ranks: console output, exit codes, and records if the folder is not shared."""

    def __init__(self, host_ranks: HostRanks, shared: bool, send: Sender) -> None:
        self._console, self._send = FileTail(host_ranks.console), send
        run = RunPaths(host_ranks.run_dir)
        self._files = [] if shared else [FileTail(path) for path in run.written_by_ranks]
        self._codes: dict[int, int] = {}
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a chunk may end within a character

    def __call__(self, codes: dict[int, int], max_chunks: int = MAX_CHUNKS) -> None:
        """Send what is new, at most `max_chunks` chunks of each file."""
        for _, chunk in self._console.chunks(max_chunks):
            self._send(console=self._decode(chunk))
        for file in self._files:
            for offset, chunk in file.chunks(max_chunks):
                self._send(file=file.path.name, offset=offset, data=base64.b64encode(chunk).decode("ascii"))
        for rank, code in codes.items():
            if rank not in self._codes:
                self._send(exit=code, rank=rank)
        self._codes = dict(codes)


def forward_results(ranks: Ranks, lifeline: Lifeline, forward: ResultForwarder) -> None:
    """Forward the results of the ranks until they end or the coordinator is lost, and kill what is left of them."""
    try:
        while not ranks.ended() and not lifeline.cut.wait(POLL_S):
            forward(ranks.exit_codes())
        forward(ranks.exit_codes())
    finally:
        ranks.end()
    forward(ranks.exit_codes(), max_chunks=MAX_BYTES // CHUNK_BYTES)


TASKS = {"port": port, "run": run, "serve": serve, "examine": examine}


def run_and_exit() -> NoReturn:
    """Serve, and exit without Python's shutdown, which would wait for the reading thread for a second and abort."""
    code = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        fork.close_servers()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    run_and_exit()
