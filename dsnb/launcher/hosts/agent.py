"""`python -m dsnb.launcher.hosts.agent`: does on one host what a run's coordinator asks for through a pair of pipes.

It says what the host is, starts the host's ranks, passes on what they print and how they end, and samples its GPUs.
When the pipe closes or the coordinator is silent for too long, it ends the ranks and itself: nothing of a run outlives
it, and nothing is touched but what it started.
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
"""Of what a file has grown by, so much is sent before the ranks are looked at again: some print faster than it goes."""
SHARED_WAIT_S = 2.0
"""How long a file that the coordinator wrote may take to be seen here through a network file system."""


def main() -> int:
    """Serve one coordinator."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not get between the records
    pipe.write(b"\n")  # nor before them, such as a login's greeting without an end of line
    send = Sender(pipe)
    lifeline = Lifeline(sys.stdin.buffer, send)
    send(hello=survey.hello())
    while (request := lifeline.request()) is not None:
        try:
            TASKS[str(request["do"])](request, lifeline, send)
        except (DsnbError, OSError) as error:
            if not lifeline.cut.is_set():  # what fails from then on fails because it is ended
                send(error=_told(error))
        if request["do"] in {"run", "serve"}:
            break
    return 0


def _told(error: DsnbError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the host'}: {error.strerror or error}"
    return str(error)


def port(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Say on which port the ranks can meet."""
    wanted, address = int(request["port"]), str(request["address"])
    if wanted and not is_free(address, wanted):
        raise DsnbError(f"master_port is {wanted}: it is in use there; name another, or 0 for any free one")
    send(port=wanted or free_port(address))


def examine(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Look at the host more closely, for `dsnb doctor`."""
    send(examined=survey.examine(request))


def serve(request: dict[str, Any], lifeline: Lifeline, send: Sender) -> None:
    """Keep a fork server for the runs of a sweep, as long as the coordinator is there."""
    os.environ.update(request["env"])  # some libraries read theirs when they are loaded
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
    """Start this host's ranks and stay with them to their end."""
    os.umask(int(request["umask"]))
    scratch = Scratch(tempfile.gettempdir())
    lifeline.last_resort = functools.partial(_end, None, scratch)
    try:
        check_free_space(scratch.path)
        host_ranks, shared = prepare_host_ranks(request, scratch.path)
        if host_ranks.device == "cuda" and (busy := survey.busy_gpus(host_ranks.gpus)):
            raise DsnbError(f"{busy}; wait for it, or leave the host out with 'exclude'")
        kills = hardware.oom_kills()
        sampler = local.sampler(host_ranks, lambda sample: send(gpu=sample), float(request["launched_at"]))
        try:
            ranks = local.start(str(request["launcher"]), host_ranks)
            lifeline.last_resort = functools.partial(_end, ranks, scratch)
            lifeline.patience_s = LAST_RESORT_S
            send(started=True, shared=shared)
            follow(ranks, lifeline, ResultForwarder(host_ranks, shared, send))
            if any(ranks.exit_codes().values()):
                report_full_disk([scratch.path, host_ranks.run_dir], send)
        finally:
            sampler.stop()
        send(ended=ranks.exit_codes(), oom_kills=hardware.oom_kills() - kills)
    finally:
        scratch.remove()


def report_full_disk(folders: list[Path], send: Sender) -> None:
    """Say that a disk is full: ranks that fail for that cannot write down why."""
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
    env = environment.for_ranks(device, len(hosts[node].devices), float(request["launched_at"]))
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
    """Sends up what the ranks leave on this host: their lines, and their records where the folder is not shared."""

    def __init__(self, host_ranks: HostRanks, shared: bool, send: Sender) -> None:
        self._console, self._send = FileTail(host_ranks.console), send
        run = RunPaths(host_ranks.run_dir)
        self._files = [] if shared else [FileTail(path) for path in run.written_by_ranks]
        self._codes: dict[int, int] = {}
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a look may end amid a character

    def __call__(self, codes: dict[int, int], most: int = MAX_CHUNKS) -> None:
        """Send what is new."""
        for _, added in zip(range(most), iter(self._console.new, None), strict=False):
            self._send(console=self._decode(added[1]))
        for file in self._files:
            for _, added in zip(range(most), iter(file.new, None), strict=False):
                data = base64.b64encode(added[1]).decode("ascii")
                self._send(file=file.path.name, offset=added[0], data=data)
        for rank, code in codes.items():
            if rank not in self._codes:
                self._send(exit=code, rank=rank)
        self._codes = dict(codes)


def follow(ranks: Ranks, lifeline: Lifeline, upward: ResultForwarder) -> None:
    """Pass everything on until the ranks have ended, or must."""
    try:
        while not ranks.ended() and not lifeline.cut.wait(POLL_S):
            upward(ranks.exit_codes())
        upward(ranks.exit_codes())
    finally:
        ranks.end()
    upward(ranks.exit_codes(), most=MAX_BYTES // CHUNK_BYTES)


TASKS = {"port": port, "run": run, "serve": serve, "examine": examine}


def end_at_once() -> NoReturn:
    """Serve, and end without Python's own ending: it waits a second for the thread that reads, and aborts."""
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
    end_at_once()
