"""GPUs by their data sheets (`dsnb.base.system.gpu_names`) and by those of a user, and the links between them.

A user names a file with the data sheet of one GPU in place of its name, or adds GPUs with a file
of the same columns: `$DSNB_GPUS`, or `gpus.csv` in the user's configuration folder.
"""

import csv
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from dsnb.base.errors import SettingsError
from dsnb.base.system import gpu_names
from dsnb.base.system.gpu_names import DataSheet, GpuName
from dsnb.prediction import tuned
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import NotNegative, Positive

NODE_GPUS = 8
"""GPUs of a node, if an experiment does not give its number of nodes."""
LINK = re.compile(r"(ib|eth):(\d+(?:\.\d+)?)(/node)?")
GAINS = tuned.rows(tuned.TUNED["gpu_gains"])
KNOWN_RATES = {
    "fp32_tflops": ("fp32",),
    "tf32_tflops": ("tf32", "fp32"),
    "half_tflops": ("bf16", "fp16"),
    "fp8_tflops": ("fp8",),
}
"""Precisions of a data sheet that a column has the rate of, the first that there is."""
OF_A_FILE = ".csv"
"""Ending of the name of a user's file in place of a GPU's."""
Rate = Annotated[float, Field(gt=0, lt=1_000_000)]
"""A rate in TFLOP/s or a bandwidth in GB/s: more is another unit."""


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class GpuSpec:
    """One GPU by its data sheet: dense peak rates, memory and bandwidths; and what training reaches of these rates."""

    name: Annotated[str, Field(min_length=1)]
    fp32_tflops: Rate
    tf32_tflops: Rate  # fp32's on a GPU without tf32
    half_tflops: Rate
    memory_gib: Positive
    memory_gb_per_s: Rate
    nvlink_gb_per_s: NotNegative  # of all links to other GPUs of the node; 0 for none
    pcie_gb_per_s: Rate  # to host memory
    switched: bool = False  # whether a switch gives two GPUs of a node all links; else each pair has its share of them
    fp8_tflops: Rate | None = None  # of a GPU with products in fp8
    power_w: Positive | None = None  # its limit, for readers; rates are those of the boost clock
    boost_mhz: Positive | None = None  # the highest clock of its multiprocessors
    product_gain: float = 1.0  # share of the nominal rate that training reaches, over H200's: of products and attention
    memory_gain: float = 1.0  # ... and of the memory; 1 where no run of ours tells

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak rate in FLOP/s."""
        column = precision if precision in {"fp32", "tf32"} else "half"
        return float(getattr(self, f"{column}_tflops") * 1e12)

    def fp8_flops(self) -> float:
        """Return the dense peak rate of products in fp8 in FLOP/s; raise SettingsError for a GPU without them."""
        if self.fp8_tflops is None:
            raise SettingsError(
                f"matmul is 'fp8': {self.name} has no such products by its data sheet; use 'auto'"
            )
        return self.fp8_tflops * 1e12


COLUMNS = [name for name in GpuSpec.__dataclass_fields__ if not name.endswith("_gain")]
"""Columns of a file of GPUs; gains are fitted."""


@cache
def known() -> dict[str, GpuSpec]:
    """Return the GPUs of dsnb and of the user's file by name; the latter replace those of the same name."""
    specs = [_of_sheet(name, *found) for name, found in gpu_names.variants().items()]
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


def _of_sheet(name: str, sheet: DataSheet, memory_gb: int) -> GpuSpec:
    place = sheet.memory_gb.index(memory_gb)
    product_gain, memory_gain = GAINS.get(name, (1.0, 1.0))
    return GpuSpec(
        name=name,
        **_rates(sheet.tflops),
        memory_gib=sheet.memory_gib[place],
        memory_gb_per_s=sheet.memory_gb_per_s[place],
        nvlink_gb_per_s=sheet.nvlink_gb_per_s,
        pcie_gb_per_s=sheet.pcie_gb_per_s,
        switched=sheet.switched,
        power_w=sheet.power_w,
        boost_mhz=sheet.boost_mhz,
        product_gain=product_gain,
        memory_gain=memory_gain,
    )


def _rates(tflops: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of rates by those of a data sheet."""
    rates = {}
    for column, precisions in KNOWN_RATES.items():
        found = [tflops[precision] for precision in precisions if precision in tflops]
        if found:
            rates[column] = found[0]
    return rates


def _read(file: Path) -> list[GpuSpec]:
    """Return the GPUs of a file; raise SettingsError if one is incomplete or wrong."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}; it lists GPUs") from error
    reader = csv.DictReader(lines)
    _check_columns(file, reader.fieldnames or [])
    specs: dict[str, GpuSpec] = {}
    for number, row in enumerate(reader, start=2):
        line = f"{file}, line {number}"
        if None in row:
            raise SettingsError(f"{line}: it has more values than there are columns")
        try:
            spec = _spec(row)
        except ValidationError as error:
            column = error.errors()[0]["loc"][0]
            given = row.get(str(column)) or ""
            raise SettingsError(
                f"{line}: {column} is {given!r}: give the value of its data sheet"
            ) from error
        if spec.name in specs:
            raise SettingsError(f"{line}: name is {spec.name!r}, as in a line before")
        specs[spec.name] = spec
    return list(specs.values())


def _check_columns(file: Path, given: Sequence[str]) -> None:
    """Raise SettingsError for columns of a file of GPUs that are missing or unknown."""
    problems = []
    if "name" not in given:
        problems.append(f"{file}, line 1: it has no column 'name'")
    for column in given:
        if column not in {*COLUMNS, "source"}:  # the source is for its readers
            problems.append(f"{file}, line 1: unknown column {column!r}")
    if problems:
        raise SettingsError([*problems, f"the columns of a file of GPUs are {', '.join(COLUMNS)}"])


def _spec(row: Mapping[str, str]) -> GpuSpec:
    """Return the GPU of a row; an empty rate or bandwidth of memory is that of the GPU of its name."""
    given: dict[str, Any] = {column: text for column, text in row.items() if column and text}
    given.pop("source", None)
    name = str(given.get("name"))
    parsed = gpu_names.parse(name)
    if parsed:
        sheet = gpu_names.KINDS[parsed.kind][parsed.form]
        place = sheet.memory_gb.index(parsed.memory_gb or sheet.memory_gb[0])
        usual = {**_rates(sheet.tflops), "memory_gb_per_s": sheet.memory_gb_per_s[place]}
        given = {**usual, **given}
    product_gain, memory_gain = GAINS.get(name, (1.0, 1.0))
    return GpuSpec(**given, product_gain=product_gain, memory_gain=memory_gain)


def find(name: "str | GpuSpec") -> GpuSpec:
    """Return a GPU by a name (`4090`, `NVIDIA A100-SXM4-80GB`), or that of a file with its data sheet.

    Raises SettingsError for an unknown or ambiguous name, and for a file that does not have exactly
    one GPU.
    """
    if isinstance(name, GpuSpec):
        return name
    if name.lower().endswith(OF_A_FILE):
        return _of_file(Path(name).expanduser())
    spec = known_gpu(name)
    if spec is None:
        raise SettingsError(_unknown(name))
    return spec


def _of_file(file: Path) -> GpuSpec:
    specs = _read(file)
    if len(specs) != 1:
        where = f"{file} has {len(specs)} GPUs"
        raise SettingsError(f"{where}: give one with its data sheet, or name the file in DSNB_GPUS")
    return specs[0]


def _unknown(name: str) -> str:
    """Return why a name is no GPU's: which ones it may mean, or which are near."""
    names = list(known())
    meant = gpu_names.meant(name, names)
    if meant:
        return f"GPU {name!r} may be {' or '.join(meant)}: give the whole name"
    other = "`dsnb recommend --list` prints all; for another one, give a CSV file of its data sheet"
    near = gpu_names.nearest(name, names)
    if near:
        return f"unknown GPU {name!r}: the nearest are {', '.join(near)}; {other}"
    return f"unknown GPU {name!r}: {other}"


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
    return gpu_names.parse(name) or " ".join(gpu_names.words(name))


@dataclass(frozen=True)
class Link:
    """How GPUs are connected."""

    nvlink: bool = True  # whether the GPUs of a node use NVLink if they have it; otherwise PCIe
    network_gb_per_s: float = 0.0  # between nodes for each GPU; 0 where there is no such network
    node_gb_per_s: float = 0.0  # between nodes, shared by the GPUs of each; 0 where there is none
    sockets: bool = False  # whether NCCL sends through the sockets of Ethernet, not by RDMA

    @property
    def has_network(self) -> bool:
        """Whether something connects nodes."""
        return bool(self.network_gb_per_s or self.node_gb_per_s)

    def of_gpu_gb_per_s(self, node_gpus: int) -> float:
        """Return each GPU's part of the network between nodes of `node_gpus`."""
        return self.network_gb_per_s or self.node_gb_per_s / node_gpus

    def nodes(self, experiment: Experiment) -> int:
        """Return the number of nodes of an experiment."""
        return max(int(experiment.nodes or 1), math.ceil(experiment.gpus / NODE_GPUS))

    def check(self, gpus: int, nodes: int) -> None:
        """Raise SettingsError if GPUs are on several nodes, and nothing connects these."""
        if nodes > 1 and not self.has_network:
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
    if not match or float(match[2]) <= 0:
        raise SettingsError(
            f"link is {text!r}: use nvlink, pcie, ib:400 (Gbit/s for each GPU), ib:100/node, or eth:10/node "
            "(Ethernet without RDMA)"
        )
    sockets = match[1] == "eth"
    rate = float(match[2]) / 8
    if match[3]:
        return Link(node_gb_per_s=rate, sockets=sockets)
    return Link(network_gb_per_s=rate, sockets=sockets)
