"""Two hosts in one machine, joined by a network of any speed: `python -m benchmarks.network_box OUTPUT SECONDS FILE`.

The machine's GPUs are split into two "hosts": network namespaces, each with its own host name, joined by
a pair of virtual interfaces that a token bucket limits in both directions. NCCL takes them for two hosts
(`NCCL_HOSTID`), so that what crosses the halves goes through sockets, and each half keeps NVLink.

`--gbit 0 10 1` makes each run of the params file once and lowers the speed while it trains (0: as
fast as the interfaces are): `STEPS` steps at each; the first after a change does not count. Then
it measures the network at each speed. OUTPUT/network.csv has a row for each setting and speed. After
SECONDS no run is started any more, and a further call goes on. Needs root and pyroute2, since a GPU
host often lacks `ip` and `tc`.
"""

import argparse
import json
import os
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.h200 import make
from benchmarks.network import SETTINGS as SETTINGS_OF_ROW
from dsnb.base.system import hardware
from dsnb.measure.launcher.probe import SETTINGS, measure_bandwidth
from dsnb.measure.sweep.params import Run, load_sweep
from dsnb.settings.experiment import Experiment

HOSTS = ("box1", "box2")
INTERFACE = "box0"
ADDRESS = "10.77.0.{}"
THREADS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
"""Sockets of NCCL: one does not fill a fast network."""
BURST_S = 0.001
"""Seconds of traffic at full speed that the bucket holds."""
LEAST_BURST = 2**18
"""Bytes: several segments that the kernel hands on whole."""
MOST_BYTES = 2**26
"""Largest message of `dsnb bandwidth`: a slow network takes seconds for it."""
WARMUP = 3
"""Steps before the first speed counts."""
STEPS = 4
"""Steps at each speed."""
CHANGING = 1
"""Steps after a change that do not count, since they are partly at the former speed."""
POLL_S = 0.02
"""Seconds between two looks at the steps."""
QUEUE_S = 0.05
"""Seconds after which a packet that waits in the queue is dropped."""

SSH = """#!{python}
# Stands for ssh: runs the command in the namespace of the host.
import ctypes, os, socket, sys
name, command = sys.argv[sys.argv.index("--") + 1 :]
number = {hosts}.index(name)
libc = ctypes.CDLL(None, use_errno=True)
space = os.open("/var/run/netns/" + name, os.O_RDONLY)
if libc.setns(space, 0x40000000) or libc.unshare(0x04000000):
    sys.exit("ssh: " + os.strerror(ctypes.get_errno()))
socket.sethostname(name)
os.environ.update(NCCL_HOSTID=name, SSH_CONNECTION="{other} 9 {own} 22".format(
    own="{address}".format(number + 1), other="{address}".format(2 - number)))
devices = {devices}[number]
if devices:
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
os.sched_setaffinity(0, {cores}[number])
os.execvp("sh", ["sh", "-c", command])
"""


def build() -> None:
    """Make both namespaces and the interfaces that join them."""
    from pyroute2 import IPRoute, NetNS, netns

    for name in HOSTS:
        if name in netns.listnetns():
            netns.remove(name)
        netns.create(name)
    with IPRoute() as root:
        root.link("add", ifname="box_a", kind="veth", peer={"ifname": "box_b"})
        for number, end in enumerate(("box_a", "box_b")):
            index = root.link_lookup(ifname=end)[0]
            root.link("set", index=index, net_ns_fd=HOSTS[number])
            with NetNS(HOSTS[number]) as space:
                index = space.link_lookup(ifname=end)[0]
                space.link("set", index=index, ifname=INTERFACE)
                space.addr("add", index=index, address=ADDRESS.format(number + 1), prefixlen=24)
                space.link("set", index=index, state="up")
                space.link("set", index=space.link_lookup(ifname="lo")[0], state="up")


def limit(gbit: float) -> None:
    """Let each host send at most `gbit` Gbit/s; 0: as fast as it can."""
    from pyroute2 import NetNS

    for name in HOSTS:
        with NetNS(name) as space:
            index = space.link_lookup(ifname=INTERFACE)[0]
            if space.get_qdiscs(index=index)[0].get_attr("TCA_KIND") == "tbf":
                space.tc("del", index=index, root=True)
            if gbit:
                rate = int(gbit * 1e9 / 8)
                burst = max(LEAST_BURST, int(rate * BURST_S))
                space.tc(
                    "add", "tbf", index, handle=0x10000, parent=0xFFFFFFFF, rate=rate, burst=burst,
                    limit=burst + int(rate * QUEUE_S), mtu=2**16,
                )  # fmt: skip


def prepare(folder: Path) -> Path:
    """Write the stand-in for ssh, put it first in PATH, and return the hostfile."""
    visible = [str(gpu.index) for gpu in hardware.gpus()]
    half = len(visible) // 2
    cores = sorted(os.sched_getaffinity(0))
    middle = len(cores) // 2
    text = SSH.replace("{python}", sys.executable).replace("{hosts}", repr(HOSTS))
    text = text.replace("{address}", ADDRESS)
    text = text.replace("{devices}", repr([",".join(visible[:half]), ",".join(visible[half:])]))
    text = text.replace("{cores}", repr([cores[:middle], cores[middle:]]))
    program = folder / "bin" / "ssh"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    hosts = folder / "hosts.txt"
    hosts.write_text("".join(f"{name} slots={half or 1}\n" for name in HOSTS))
    return hosts


def probe(
    output: Path, speeds: list[float], two: dict[str, Any], gpus: int, last_start: float
) -> None:
    """Measure the collectives at each speed."""
    for gbit in speeds:
        folder = output / f"{gbit:g}gbit"
        if not folder.exists() and time.time() < last_start:
            limit(gbit)
            experiment = Experiment(**{**SETTINGS, **two, "gpus": gpus})
            print(folder.name, measure_bandwidth(experiment, folder, most_bytes=MOST_BYTES))


def follow(steps: Path, speeds: list[float], warmup: int, ended: threading.Event) -> None:
    """Lower the speed whenever `STEPS` more steps of a run have been written."""
    for number, gbit in enumerate(speeds):
        limit(gbit)
        wanted = warmup + STEPS * (number + 1)
        while len(lines(steps)) < wanted and not ended.wait(POLL_S):
            pass


def lines(path: Path) -> list[str]:
    """Return the lines of a file; none if there is no file."""
    return path.read_text().splitlines() if path.exists() else []


def train(run: Run, speeds: list[float], last_start: float) -> str:
    """Make a run with each speed in turn; return what became of it."""
    steps = {"warmup_steps": WARMUP, "steps": STEPS * len(speeds)}
    run = replace(run, experiment=run.experiment.model_copy(update=steps))
    ended = threading.Event()
    arguments = (run.paths.steps, speeds, WARMUP, ended)
    follower = threading.Thread(target=follow, args=arguments)
    follower.start()
    try:
        return make(run, last_start)
    finally:
        ended.set()
        follower.join()


def table(output: Path, speeds: list[float]) -> pd.DataFrame:
    """Return the steps that count, by setting and speed."""
    rows = []
    for path in sorted(output.glob("runs/*/run*/steps.jsonl")):
        settings = json.loads((path.parent / "experiment.json").read_text())
        steps = [json.loads(line)["step_time_s"] for line in lines(path)][WARMUP:]
        for number, gbit in enumerate(speeds):
            kept = steps[STEPS * number : STEPS * (number + 1)][CHANGING:]
            if kept:
                row = {name: settings[name] for name in SETTINGS_OF_ROW}
                spread = {"step_s": np.median(kept), "least_s": min(kept), "most_s": max(kept)}
                rows.append({**row, "limit_gbit": gbit, **spread, "steps": len(kept)})
    return pd.DataFrame(rows)


def main() -> None:
    """Measure at each speed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("file")
    parser.add_argument("--gbit", type=float, nargs="+", required=True)
    given = parser.parse_args()
    last_start = time.time() + given.seconds
    os.environ.update(THREADS)
    hosts = prepare(given.output.resolve())
    build()
    two = {"hostfile": str(hosts), "nodes": 2}
    runs = load_sweep(given.file, two, output=given.output / "runs").runs
    for run in runs:
        if not run.paths.result.exists():
            said = train(run, given.gbit, last_start)
            print(run.experiment.name_with_model, said, flush=True)
    probe(given.output, given.gbit, two, runs[0].experiment.gpus, last_start)
    found = table(given.output, given.gbit)
    found.to_csv(given.output / "network.csv", index=False)
    print(found.to_string())


if __name__ == "__main__":
    main()
