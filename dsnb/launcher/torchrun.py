"""`python -m dsnb.launcher.torchrun [OPTIONS] RUN_DIR -- ARGUMENTS`: torchrun on one host of a run.

It sets the environment of the ranks, samples the host's GPUs, and ends with its standard input, which is the pipe from
the coordinator: when that closes, all ranks are killed. Behind `--` are torchrun's own arguments. It leaves
`node<k>.json` in the run folder: the exit codes of the ranks that failed, and why torchrun itself did.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import psutil

from dsnb.errors import DsnbError
from dsnb.files import records
from dsnb.launcher import environment, op_builds
from dsnb.launcher.gpu_sampler import GpuSampler
from dsnb.run_folder.paths import RunPaths
from dsnb.system import hardware, launch_clock, signals


def main(words: list[str]) -> int:
    """Run the ranks of this host; return 0 if all of them succeeded."""
    split = words.index("--")
    options, arguments = _options(words[:split]), words[split + 1 :]
    os.dup2(1, 2)  # all that the coordinator reads from the other pipe is then said by ssh or srun
    signals.adopt_orphans()  # a killed rank's children, which could hold the pipe open
    if options.silence_s:  # the coordinator sends variables, then a byte a second
        request = json.loads(sys.stdin.buffer.readline() or "{}")
        os.environ.update(request.get("env", {}))
        os.umask(request.get("umask", 0o022))
    threading.Thread(target=end_with_stdin, args=(options.silence_s,), daemon=True).start()
    run, kills = RunPaths(options.run_dir), hardware.oom_kills()
    node = int(arguments[arguments.index("--node-rank") + 1])
    try:
        sampler = _prepare(options, run, node)
        try:
            from dsnb.train import elastic  # torch takes seconds, in which the lifeline is held already

            outcome = elastic.run_ranks(arguments)
        finally:
            kill_descendants()
            sampler.stop()
    except (DsnbError, OSError, RuntimeError, ValueError) as error:
        outcome = {"error": str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}
    records.write_json(run.node(node), {**outcome, "oom_kills": hardware.oom_kills() - kills})
    return 1 if outcome else 0


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--slots", required=True)
    parser.add_argument("--cwd", type=Path, default=Path.cwd())
    parser.add_argument("--interface", default="")
    parser.add_argument("--nccl-interface", default="")
    parser.add_argument("--launched-at", type=float, default=launch_clock.now_s())
    parser.add_argument("--silence-s", type=float, default=None)
    parser.add_argument("run_dir", type=Path)
    return parser.parse_args(words)


def _prepare(options: argparse.Namespace, run: RunPaths, node: int) -> GpuSampler:
    """Set the environment of the ranks, which inherit this process's, and start to sample the GPUs."""
    if options.cwd.is_dir():
        os.chdir(options.cwd)
    device = hardware.default_device() if options.device == "auto" else options.device
    slots = list(map(int, options.slots.split(",")))
    gpus = [hardware.gpus()[slot].index for slot in slots] if device == "cuda" else []
    for lock in op_builds.remove_stale_locks():
        print(f"removed the stale lock of a killed compilation: {lock}")
    os.environ.update(environment.for_ranks(device, len(slots), options.launched_at))
    os.environ["DSNB_OWNER_PID"] = str(os.getpid())
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    for name, interface in (("GLOO", options.interface), ("NCCL", options.nccl_interface)):
        if interface:
            os.environ[f"{name}_SOCKET_IFNAME"] = interface
    return GpuSampler(gpus, lambda sample: records.append_line(run.node_gpu(node), sample), options.launched_at)


def end_with_stdin(silence_s: float | None = None) -> NoReturn:
    """Wait for the end of standard input, or until nothing came for `silence_s`; then kill all descendants and exit."""
    while select.select([0], [], [], silence_s)[0] and os.read(0, 65536):
        pass
    kill_descendants()
    os._exit(1)


def kill_descendants() -> None:
    """Kill the processes that this one has started, with theirs: each rank of torchrun leads a process group."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
