"""GPUs by their data sheets (rates, bandwidths, memory), and the links between them.

`gpus.csv` holds the GPUs, with what was compared in November 2026. Bandwidths are decimal GB/s in one direction: NVLink
5 has 18 links of 50 GB/s, NVLink 4 18 of 25, NVLink 3 12, NVLink 2 6; PCIe 5.0 x16 has 64 GB/s, 4.0 32, 3.0 16. Bridges
of the NVL and PCIe cards join two of them. Memory is what drivers report, or usual for the nominal size.
"""

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dsnb.base.errors import SettingsError
from dsnb.base.system import gpu_names, hardware
from dsnb.settings.experiment import Experiment

NODE_GPUS = 8
"""GPUs of a node, if an experiment does not give its number of nodes."""
LINK = re.compile(r"ib:(\d+(?:\.\d+)?)(/node)?")


@dataclass(frozen=True)
class GpuSpec:
    """One GPU by its data sheet: dense peak rates, memory and bandwidths; and what training reaches of these rates."""

    name: str
    fp32_tflops: float
    tf32_tflops: float  # fp32's on a GPU without tf32
    half_tflops: float
    memory_gib: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float  # of all links to other GPUs of the node; 0 for none
    pcie_gb_per_s: float  # to host memory
    product_gain: float  # share of the nominal rate that training reaches, over H200's: of products and attention
    memory_gain: float  # ... and of the memory; 1 where no run of ours tells
    switched: bool  # whether a switch gives two GPUs of a node all links; else each pair has its share of them

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak rate in FLOP/s."""
        if precision in {"fp16", "bf16"}:
            return self.half_tflops * 1e12
        return (self.tf32_tflops if precision == "tf32" else self.fp32_tflops) * 1e12


def _read() -> Iterator[GpuSpec]:
    """Yield the GPUs of `gpus.csv`; missing peak rates are taken from `dsnb.base.system.hardware`."""
    with open(Path(__file__).with_name("gpus.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, _ = row.pop("name"), row.pop("source")
            if fp32 := hardware.peak_tflops(name, "fp32"):
                tf32, bf16 = (
                    hardware.peak_tflops(name, precision) for precision in ("tf32", "bf16")
                )
                rates = (fp32, tf32 or fp32, bf16 or hardware.peak_tflops(name, "fp16"))
                row |= dict(zip(("fp32_tflops", "tf32_tflops", "half_tflops"), rates, strict=True))
            numbers = {field: float(value) for field, value in row.items() if field != "switched"}
            yield GpuSpec(name, **numbers, switched=row["switched"] == "1")


GPUS = {gpu.name: gpu for gpu in _read()}


BY_NAME = {gpu_names.parse(name): gpu for name, gpu in GPUS.items()}


@lru_cache
def find(name: str) -> GpuSpec:
    """Return a GPU by its key, or by a name as NVML or a publication writes it (`NVIDIA H200`, `A100-SXM4-80GB`).

    A name with a word that is not understood, such as a MIG slice's or a laptop's, is an unknown GPU.
    """
    known = gpu_names.parse(name)
    spec = known and (BY_NAME.get(known) or BY_NAME.get(known._replace(memory_gb=None)))
    if spec is None:
        raise SettingsError([f"unknown GPU {name!r}: choose one of {', '.join(GPUS)}"])
    return spec


@dataclass(frozen=True)
class Link:
    """How GPUs are connected."""

    nvlink: bool = True  # whether the GPUs of a node use NVLink if they have it; otherwise PCIe
    network_gb_per_s: float = 0.0  # between nodes for each GPU; 0 where there is no network

    def nodes(self, experiment: Experiment) -> int:
        """Return the number of nodes of an experiment."""
        return max(int(experiment.nodes or 1), math.ceil(experiment.gpus / NODE_GPUS))

    def check(self, gpus: int, nodes: int) -> None:
        """Raise SettingsError if GPUs are on several nodes, and nothing connects these."""
        if nodes > 1 and not self.network_gb_per_s:
            raise SettingsError(
                f"gpus is {gpus}, on {nodes} nodes: say how these are connected, such as ib:400 (Gbit/s a GPU)"
            )

    def inside_gb_per_s(self, gpu: GpuSpec, members: int, node_gpus: int) -> float:
        """Return a GPU's bandwidth in one direction to `members` - 1 others of its node of `node_gpus`.

        Without a switch, each pair has a share of the links: two of four V100 have a third of them.
        """
        if not self.nvlink or not gpu.nvlink_gb_per_s:
            return gpu.pcie_gb_per_s
        share = 1.0 if gpu.switched or node_gpus <= 2 else max(1, members - 1) / (node_gpus - 1)
        return gpu.nvlink_gb_per_s * share


def link(text: str = "nvlink") -> Link:
    """Parse a link in the form that `dsnb.predict` takes."""
    if text in {"nvlink", "pcie"}:
        return Link(nvlink=text == "nvlink")
    match = LINK.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise SettingsError(
            f"link is {text!r}: use nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node"
        )
    return Link(network_gb_per_s=float(match[1]) / 8 / (NODE_GPUS if match[2] else 1))
