"""What data sheets say of GPUs: rates, bandwidths, memory and how the GPUs of a node are connected.

Peak rates of most of them are `dsnb.system.hardware.PEAKS`; all bandwidths are decimal GB/s in one direction.
"""

from dataclasses import dataclass
from functools import lru_cache

from dsnb.errors import SettingsError
from dsnb.system import hardware


@dataclass(frozen=True)
class Gpu:
    """One GPU by its data sheet.

    Attributes
    ----------
    fp32_tflops, tf32_tflops, half_tflops
        Dense peak rates. A GPU without tf32 computes it in fp32, one without bf16 cannot train in it.
    memory_gb_per_s
        Bandwidth of the GPU's memory.
    nvlink_gb_per_s
        Bandwidth of all links to other GPUs of the node, in one direction; 0 for none.
    pcie_gb_per_s
        Bandwidth to host memory, in one direction.
    switched
        Whether a switch gives two GPUs of a node all links. Without one each pair has its share of the links.
    """

    name: str
    fp32_tflops: float
    tf32_tflops: float
    half_tflops: float
    memory_gib: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float
    pcie_gb_per_s: float
    switched: bool

    def peak_flops(self, precision: str) -> float:
        """Return the dense peak rate in FLOP/s."""
        if precision in {"fp16", "bf16"}:
            return self.half_tflops * 1e12
        return (self.tf32_tflops if precision == "tf32" else self.fp32_tflops) * 1e12


def _gpu(name: str, key: str, memory: tuple[float, float], links: tuple[float, float], switched: bool = True) -> Gpu:
    peak = hardware.PEAKS[key]
    half = peak.bf16 or peak.fp16
    return Gpu(name, peak.fp32, peak.tf32 or peak.fp32, half, *memory, *links, switched)


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
GPUS = {
    "B200": _gpu("B200", "b200", (178.4, 8000), (900, 64)),
    "H200": _gpu("H200", "h200", (139.8, 4800), (450, 64)),
    "H200 NVL": _gpu("H200 NVL", "h200 nvl", (139.8, 4800), (450, 64), switched=False),
    "H100": _gpu("H100", "h100", (79.1, 3350), (450, 64)),
    "H100 NVL": _gpu("H100 NVL", "h100 nvl", (93.1, 3900), (300, 64), switched=False),
    "H100 PCIe": _gpu("H100 PCIe", "h100 pcie", (79.1, 2000), (300, 64), switched=False),
    "A100": _gpu("A100", "a100", (79.2, 2039), (300, 32)),
    "A100-40GB": _gpu("A100-40GB", "a100", (39.4, 1555), (300, 32)),
    "V100": _gpu("V100", "v100", (31.7, 900), (150, 16), switched=False),
    "V100-16GB": _gpu("V100-16GB", "v100", (15.8, 900), (150, 16), switched=False),
    "L40S": _gpu("L40S", "l40s", (44.4, 864), (0, 32)),
    "L4": _gpu("L4", "l4", (22.0, 300), (0, 32)),
    "A10": _gpu("A10", "a10", (22.0, 600), (0, 32)),
    "T4": _gpu("T4", "t4", (14.6, 320), (0, 16)),
    "RTX 4090": _gpu("RTX 4090", "rtx 4090", (23.6, 1008), (0, 32)),
    "RTX 3090": _gpu("RTX 3090", "rtx 3090", (23.6, 936), (56, 32), switched=False),
    "MI250X": Gpu("MI250X", 23.9, 23.9, 191.5, 64.0, 1638, 200, 36, False),
}


@lru_cache
def find(name: str) -> Gpu:
    """Return a GPU by its key, or by a name as NVML or a publication writes it (`NVIDIA H200`, `A100-SXM4-80GB`).

    Raises
    ------
    SettingsError
        If no GPU of that name is known.
    """
    words = f" {name.lower().replace('-', ' ')} "
    keys = sorted(GPUS, key=len, reverse=True)
    found = next((key for key in keys if f" {key.lower().replace('-', ' ')} " in words), None)
    if found is None and " mi150x " in words:  # the publication's name for the die of an MI250X
        found = "MI250X"
    if found is None:
        raise SettingsError([f"unknown GPU {name!r}: choose one of {', '.join(GPUS)}"])
    small = {"A100": "40gb", "V100": "16gb"}.get(found)
    if small and f" {small} " in words:
        found = f"{found}-{small.upper()}"
    return GPUS[found]
