"""Names of GPUs as NVML, CUDA and publications print them: whole cards are known, parts and relatives are not."""

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.system import hardware
from dsnb.prediction import gpus

WHOLE = {
    "NVIDIA B200": ("B200", 2250),
    "NVIDIA H200": ("H200", 989),
    "NVIDIA H200 NVL": ("H200 NVL", 835),
    "NVIDIA H100 80GB HBM3": ("H100", 989),
    "H100-SXM-80GB": ("H100", 989),
    "NVIDIA-H100-80GB-HBM3": ("H100", 989),
    "NVIDIA H100 PCIe": ("H100 PCIe", 756),
    "NVIDIA H100 80GB HBM2e": ("H100 PCIe", 756),
    "NVIDIA H100 NVL": ("H100 NVL", 835),
    "H100-NVL": ("H100 NVL", 835),
    "NVIDIA A100-SXM4-80GB": ("A100", 312),
    "NVIDIA A100-SXM4-40GB": ("A100-40GB", 312),
    "A100-SXM4-40GB": ("A100-40GB", 312),
    "NVIDIA A100 80GB PCIe": ("A100 PCIe", 312),
    "NVIDIA A100-PCIE-40GB": ("A100 PCIe-40GB", 312),
    "A100-PCIE-40GB": ("A100 PCIe-40GB", 312),
    "A100": ("A100", 312),
    "a100-80gb": ("A100", 312),
    "Tesla V100-SXM2-32GB": ("V100", 125),
    "Tesla V100-SXM3-32GB": ("V100", 125),
    "Tesla V100-SXM2-16GB": ("V100-16GB", 125),
    "V100-32GB": ("V100", 125),
    "Tesla V100-PCIE-16GB": ("V100 PCIe-16GB", 112),
    "Tesla V100-PCIE-32GB": ("V100 PCIe", 112),
    "Tesla T4": ("T4", 65),
    "NVIDIA L4": ("L4", 121),
    "NVIDIA L40S": ("L40S", 362),
    "NVIDIA A10": ("A10", 125),
    "NVIDIA GeForce RTX 4090": ("RTX 4090", 165.2),
    "GeForce RTX 3090": ("RTX 3090", 71),
    "MI150X": ("MI250X", None),
    "AMD Instinct MI250X": ("MI250X", None),
}
"""Name -> the key in `gpus.csv`, and the peak rate of fp16 in TFLOP/s by the data sheet."""
OTHERS = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA H100 NVL MIG 1g.12gb",
    "NVIDIA H200 MIG 7g.141gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti", "NVIDIA A10-4Q", "NVIDIA A10-24C", "NVIDIA A10G", "NVIDIA A100X", "NVIDIA A10M",
    "NVIDIA A100-SXM-64GB", "NVIDIA H100 64GB HBM2", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H800",
    "NVIDIA A800-SXM4-80GB", "NVIDIA H20", "NVIDIA L40", "NVIDIA L40S-48Q", "NVIDIA L4-24Q", "NVIDIA L20",
    "GRID T4-16Q", "NVIDIA T4G", "NVIDIA T400", "GRID V100D-32Q", "Tesla V100S-PCIE-32GB", "Tesla V100-FHHL-16GB",
    "Tesla V100-SXM2-32GB-LS", "Tesla V100-DGXS-32GB", "NVIDIA H100-80C", "NVIDIA H100XM-80C", "NVIDIA A100-PG509-200",
    "NVIDIA RTX A1000", "NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA GeForce RTX 4080", "NVIDIA B200A", "NVIDIA",
    "NVIDIA Graphics Device", "Tesla P100-SXM2-16GB", "AMD Instinct MI250", "AMD Instinct MI300X", "Z9", "", "nan",
    "4090", "L4 SXM", "H100 SXM 94GB",
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_whole_cards(name):
    key, rate = WHOLE[name]
    assert (gpus.find(name).name, hardware.peak_tflops(name, "fp16")) == (key, rate)


def test_the_bandwidth_of_memory_is_that_of_its_size():
    names = {"NVIDIA A100-SXM4-80GB": 2039, "NVIDIA A100-SXM4-40GB": 1555, "A100": 2039}
    names |= {"NVIDIA H100 PCIe": 2000, "AMD Instinct MI250X": None, "NVIDIA GB200": None}
    assert {name: hardware.memory_gb_per_s(name) for name in names} == names
    assert gpus.find("A100-PCIE-40GB").memory_gb_per_s == 1555


@pytest.mark.parametrize("name", OTHERS)
def test_parts_and_relatives_of_cards_are_unknown(name):
    assert hardware.peak_tflops(name, "fp32") is None
    assert hardware.matmul_tflops(name, "bf16") is None
    with pytest.raises(SettingsError, match=f"unknown GPU '{name}': choose one of B200, "):
        gpus.find(name)


def test_every_key_of_the_table_names_itself():
    assert {key: gpus.find(key).name for key in gpus.known()} == {key: key for key in gpus.known()}
    assert hardware.matmul_tflops("NVIDIA H200", "bf16") == 771.6
    assert hardware.matmul_tflops("NVIDIA H200 NVL", "bf16") is None
