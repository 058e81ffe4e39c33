"""Two hosts in one machine, joined by a network of any speed: `python -m benchmarks.network_box OUTPUT SECONDS FILE`.

The machine's GPUs are split into two "hosts": network namespaces with a name of their own, joined by
a pair of virtual interfaces that a token bucket limits in both directions. NCCL takes them for two hosts
(`NCCL_HOSTID`), so that what crosses the halves goes through sockets, and each half keeps NVLink.
For each speed, `dsnb bandwidth` and a sweep of the params file write into OUTPUT/GBITgbit; 0 is the
speed that the interfaces have. After SECONDS it stops as by Ctrl-C, and
a further call goes on. Needs root and pyroute2,
since a GPU host often lacks `ip` and `tc`.
"""

import argparse
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

from dsnb.base.system import hardware

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


def measure(folder: Path, file: str, hosts: Path, last_start: float) -> None:
    """Measure the network, then make the runs of a params file over it."""
    program = [sys.executable, "-m", "dsnb"]
    common = ["--hostfile", str(hosts), "--output", str(folder)]
    done = folder / "bandwidth.done"
    if not done.exists():
        most = ["--most-bytes", str(MOST_BYTES)]
        subprocess.run([*program, "bandwidth", *common, *most, "--format", "csv"], check=True)
        done.touch()
    left = max(1, int(last_start - time.time()))
    sweep = [*program, "sweep", file, *common]
    subprocess.run(["timeout", "--signal=TERM", "--kill-after=30", str(left), *sweep], check=False)


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
    for gbit in given.gbit:
        limit(gbit)
        measure(given.output / f"{gbit:g}gbit", given.file, hosts, last_start)


if __name__ == "__main__":
    main()
