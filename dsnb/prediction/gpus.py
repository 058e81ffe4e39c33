"""What data sheets say of GPUs, and the links between them: rates, bandwidths and memory.

Peak rates of most GPUs are `dsnb.system.hardware.PEAKS`; all bandwidths are decimal GB/s in one direction.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from dsnb.errors import SettingsError
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

NODE_GPUS = 8
"""GPUs of a node, where an experiment does not say on how many nodes it runs."""
LINK = re.compile(r"ib:(\d+(?:\.\d+)?)(/node)?")


@dataclass(frozen=True)
class GpuSpec:
    """One GPU by its data sheet: dense peak rates, memory and bandwidths."""

    name: str
    fp32_tflops: float
    tf32_tflops: float  # fp32's on a GPU without tf32
    half_tflops: float
    memory_gib: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float  # of all links to other GPUs of the node; 0 for none
    pcie_gb_per_s: float  # to host memory
    switched: bool  # whether a switch gives two GPUs of a node all links; else each pair has its share of them

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak rate in FLOP/s."""
        if precision in {"fp16", "bf16"}:
            return self.half_tflops * 1e12
        return (self.tf32_tflops if precision == "tf32" else self.fp32_tflops) * 1e12


def _gpu(name: str, memory: tuple[float, float], links: tuple[float, float], switched: bool = True) -> GpuSpec:
    """Return a GPU whose peak rates are known: its memory in GiB and GB/s, its NVLink and PCIe in GB/s."""
    peak = hardware.PEAKS[name.partition("-")[0].lower()]
    half = peak.bf16 or peak.fp16
    return GpuSpec(name, peak.fp32, peak.tf32 or peak.fp32, half, *memory, *links, switched)


# Rates and bandwidths are those of the makers' data sheets, and of the white papers of Ada and GA102. Compared in
# November 2026 with what others print of them: A100 and B200 (glennklockwood.com/garden/processors; its tf32 of the
# B200 is 1,100), H100 PCIe's bandwidth (NVIDIA product brief PB-11133), H100 NVL's memory and links (aiminingco.com),
# V100's NVLink (Dell EMC, reference guide for deep learning), L40S (mullet.se), L4 (store.sourcecode.com), RTX 4090
# (waredb.com), T4 and the bandwidth of the A10 (sysrqmts.com), MI250X (zexron.com). Not found again: the rates of
# H100 PCIe, H100 NVL and A10, H200 NVL, RTX 3090, and the links of the MI250X.
# Memory is what drivers report: seen for the H200 here, printed for the A100-40GB (40,441 MiB, PC2 Paderborn), and
# what is usual for the nominal size of the others. An A100 as PCIe card has 1,935 GB/s (thundercompute.com), not
# 2,039.
# NVLink 5: 18 links of 50 GB/s in each direction; NVLink 4: 18 of 25; NVLink 3: 12; NVLink 2: 6. PCIe 5.0 x16: 64
# GB/s, 4.0: 32, 3.0: 16. Bridges of the NVL and PCIe cards join two of them. MI250X: one of its two dies, as programs
# see it.
_KNOWN = (
    _gpu("B200", (178.4, 8000), (900, 64)),
    _gpu("H200", (139.8, 4800), (450, 64)),
    _gpu("H200 NVL", (139.8, 4800), (450, 64), switched=False),
    _gpu("H100", (79.1, 3350), (450, 64)),
    _gpu("H100 NVL", (93.1, 3900), (300, 64), switched=False),
    _gpu("H100 PCIe", (79.1, 2000), (300, 64), switched=False),
    _gpu("A100", (79.2, 2039), (300, 32)),
    _gpu("A100-40GB", (39.4, 1555), (300, 32)),
    _gpu("V100", (31.7, 900), (150, 16), switched=False),
    _gpu("V100-16GB", (15.8, 900), (150, 16), switched=False),
    _gpu("L40S", (44.4, 864), (0, 32)),
    _gpu("L4", (22.0, 300), (0, 32)),
    _gpu("A10", (22.0, 600), (0, 32)),
    _gpu("T4", (14.6, 320), (0, 16)),
    _gpu("RTX 4090", (23.6, 1008), (0, 32)),
    _gpu("RTX 3090", (23.6, 936), (56, 32), switched=False),
    GpuSpec("MI250X", 23.9, 23.9, 191.5, 64.0, 1638, 200, 36, switched=False),
)
GPUS = {gpu.name: gpu for gpu in _KNOWN}


@lru_cache
def find(name: str) -> GpuSpec:
    """Return a GPU by its key, or by a name as NVML or a publication writes it (`NVIDIA H200`, `A100-SXM4-80GB`).

    Raises
    ------
    SettingsError
        If no GPU of that name is known.
    """
    words = f" {name.lower().replace('-', ' ')} ".replace(" mi150x ", " mi250x ")  # a publication's name for its die
    for key in sorted(GPUS, key=len, reverse=True):
        if f" {key.lower().replace('-', ' ')} " in words:
            small = {"A100": "40gb", "V100": "16gb"}.get(key)
            return GPUS[f"{key}-{small.upper()}" if small and f" {small} " in words else key]
    raise SettingsError([f"unknown GPU {name!r}: choose one of {', '.join(GPUS)}"])


@dataclass(frozen=True)
class Link:
    """How GPUs are connected."""

    nvlink: bool = True  # whether the GPUs of a node use NVLink if they have it; otherwise PCIe
    network_gb_per_s: float = 0.0  # between nodes for each GPU; 0 where there is no network

    def nodes(self, experiment: Experiment) -> int:
        """Return the number of nodes of an experiment."""
        return max(int(experiment.nodes or 1), math.ceil(experiment.gpus / NODE_GPUS))

    def inside_gb_per_s(self, gpu: GpuSpec, members: int, node_gpus: int) -> float:
        """Return the bandwidth of a GPU to `members` - 1 others of its node, which has `node_gpus`, in one direction.

        Without a switch, each pair has its share of the links: two of four V100 have a third of them.
        """
        if not self.nvlink or not gpu.nvlink_gb_per_s:
            return gpu.pcie_gb_per_s
        share = 1.0 if gpu.switched or node_gpus <= 2 else max(1, members - 1) / (node_gpus - 1)
        return gpu.nvlink_gb_per_s * share


def link(text: str = "nvlink") -> Link:
    """Return the link that a text describes.

    Parameters
    ----------
    text
        `nvlink` or `pcie` for one node; `ib:400` for NVLink inside nodes and 400 Gbit/s for each GPU between them;
        `ib:100/node` for 100 Gbit/s that the GPUs of a node share.

    Raises
    ------
    SettingsError
        If the text is none of these.
    """
    if text in {"nvlink", "pcie"}:
        return Link(nvlink=text == "nvlink")
    match = LINK.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise SettingsError(f"link is {text!r}: use nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node")
    return Link(network_gb_per_s=float(match[1]) / 8 / (NODE_GPUS if match[2] else 1))
