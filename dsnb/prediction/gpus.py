"""GPUs by their data sheets (rates, bandwidths, memory), and the links between them.

`gpus.csv` holds the GPUs, with what was compared in November 2026. Bandwidths are decimal GB/s in
one direction: NVLink 5 has 18 links of 50 GB/s, NVLink 4 18 of 25, NVLink 3 12, NVLink 2 6; PCIe
5.0 x16 has 64 GB/s, 4.0 32, 3.0 16. Bridges of the NVL and PCIe cards join two of them. Memory is
what drivers report, or usual for the nominal size.

A user adds GPUs with a file of the same columns: `$DSNB_GPUS`, or `gpus.csv` in the user's
configuration folder.
"""

import csv
import math
import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from dsnb.base.errors import SettingsError
from dsnb.base.system import gpu_names, hardware
from dsnb.base.system.gpu_names import GpuName
from dsnb.prediction import tuned
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import NotNegative, Positive

NODE_GPUS = 8
"""GPUs of a node, if an experiment does not give its number of nodes."""
LINK = re.compile(r"ib:(\d+(?:\.\d+)?)(/node)?")
GAINS = tuned.rows(tuned.TUNED["gpu_gains"])
KNOWN_RATES = {
    "fp32_tflops": ("fp32",),
    "tf32_tflops": ("tf32", "fp32"),
    "half_tflops": ("bf16", "fp16"),
}
"""Precisions that `dsnb.base.system.hardware` has the rate of an empty column for, the first known
one."""


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class GpuSpec:
    """One GPU by its data sheet: dense peak rates, memory and bandwidths; and what training reaches of these rates."""

    name: Annotated[str, Field(min_length=1)]
    fp32_tflops: Positive
    tf32_tflops: Positive  # fp32's on a GPU without tf32
    half_tflops: Positive
    memory_gib: Positive
    memory_gb_per_s: Positive
    nvlink_gb_per_s: NotNegative  # of all links to other GPUs of the node; 0 for none
    pcie_gb_per_s: Positive  # to host memory
    switched: bool = False  # whether a switch gives two GPUs of a node all links; else each pair has its share of them
    product_gain: float = 1.0  # share of the nominal rate that training reaches, over H200's: of products and attention
    memory_gain: float = 1.0  # ... and of the memory; 1 where no run of ours tells

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak rate in FLOP/s."""
        column = precision if precision in {"fp32", "tf32"} else "half"
        return float(getattr(self, f"{column}_tflops") * 1e12)


@cache
def known() -> dict[str, GpuSpec]:
    """Return the GPUs of `gpus.csv` and of the user's file by name; the latter replace those of the same name."""
    specs = _read(Path(__file__).with_name("gpus.csv"))
    added = user_file()
    if added:
        specs += _read(added)
    return {spec.name: spec for spec in specs}


def user_file() -> Path | None:
    """Return the user's file of GPUs: `$DSNB_GPUS`, or `gpus.csv` in the user's configuration folder if it exists."""
    chosen = os.environ.get("DSNB_GPUS")
    if chosen:
        return Path(chosen).expanduser()
    file = platformdirs.user_config_path("dsnb", appauthor=False) / "gpus.csv"
    return file if file.is_file() else None


def _read(file: Path) -> list[GpuSpec]:
    """Return the GPUs of a file; raise SettingsError if one is incomplete or wrong."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}; it lists GPUs") from error
    specs = []
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            specs.append(_spec(row))
        except ValidationError as error:
            column = error.errors()[0]["loc"][0]
            problem = (
                f"{column} is {row.get(str(column)) or ''!r}: give the value of its data sheet"
            )
            raise SettingsError(f"{file}, line {number}: {problem}") from error
    return specs


def _spec(row: Mapping[str, str]) -> GpuSpec:
    """Return the GPU of a row; an empty rate or bandwidth of memory is that of `dsnb.base.system.hardware`."""
    known: dict[str, Any] = {column: text for column, text in row.items() if column and text}
    name = str(known.get("name"))
    for column, precisions in KNOWN_RATES.items():
        rates = (hardware.peak_tflops(name, precision) for precision in precisions)
        known.setdefault(column, next(filter(None, rates), None))
    known.setdefault("memory_gb_per_s", hardware.memory_gb_per_s(name))
    product_gain, memory_gain = GAINS.get(name, (1.0, 1.0))
    return GpuSpec(**known, product_gain=product_gain, memory_gain=memory_gain)


def find(name: str) -> GpuSpec:
    """Return a GPU by its key, or by a name as NVML or a publication writes it (`NVIDIA H200`, `A100-SXM4-80GB`)."""
    spec = known_gpu(name)
    if spec is None:
        raise SettingsError([f"unknown GPU {name!r}: choose one of {', '.join(known())}"])
    return spec


@lru_cache
def known_gpu(name: object) -> GpuSpec | None:
    """Return a GPU by one of its names; None if dsnb has no data sheet of it.

    A name with a word that is not understood, such as a MIG slice's or a laptop's, is an unknown
    GPU.
    """
    by_name = {_parsed(key): spec for key, spec in known().items()}
    parsed = _parsed(str(name))
    spec = by_name.get(parsed)
    if spec is None and isinstance(parsed, GpuName):
        spec = by_name.get(parsed._replace(memory_gb=None))
    return spec


def _parsed(name: str) -> GpuName | str:
    """Return the parts of a usual name; of another one, its words without those of makers."""
    words = re.split(r"[\s_-]+", name.strip().lower())
    return gpu_names.parse(name) or " ".join(word for word in words if word not in gpu_names.MAKERS)


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
        if gpu.switched or node_gpus <= 2:
            return gpu.nvlink_gb_per_s
        return gpu.nvlink_gb_per_s * max(1, members - 1) / (node_gpus - 1)


def link(text: str = "nvlink") -> Link:
    """Parse a link in the form that `dsnb.predict` takes."""
    if text in {"nvlink", "pcie"}:
        return Link(nvlink=text == "nvlink")
    match = LINK.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise SettingsError(
            f"link is {text!r}: use nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node"
        )
    sharing_gpus = NODE_GPUS if match[2] else 1
    return Link(network_gb_per_s=float(match[1]) / 8 / sharing_gpus)
