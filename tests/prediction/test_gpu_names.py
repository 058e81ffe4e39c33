"""Names of GPUs as NVML, CUDA and publications print them: whole cards are known, parts and relatives are not."""

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.system import gpu_names, hardware
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
    "MI150X": ("MI250X", 191.5),
    "AMD Instinct MI250X": ("MI250X", 191.5),
    "NVIDIA GB200": ("GB200", 2500),
    "NVIDIA GH200 480GB": ("GH200", 989),
    "NVIDIA GH200 144G HBM3e": ("GH200-144GB", 989),
    "NVIDIA H800": ("H800", 989),
    "NVIDIA H20": ("H20", 148),
    "NVIDIA A800-SXM4-80GB": ("A800", 312),
    "NVIDIA A800 80GB PCIe": ("A800 PCIe", 312),
    "NVIDIA A10G": ("A10G", 70),
    "NVIDIA A40": ("A40", 149.7),
    "NVIDIA L40": ("L40", 181),
    "NVIDIA RTX A6000": ("RTX A6000", 154.8),
    "NVIDIA RTX A5000": ("RTX A5000", 111.1),
    "NVIDIA RTX 6000 Ada Generation": ("RTX 6000 Ada", 364.2),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": ("RTX PRO 6000", 503.8),
    "NVIDIA GeForce RTX 5090": ("RTX 5090", 209.5),
    "NVIDIA GeForce RTX 4080": ("RTX 4080", 97.5),
    "NVIDIA GeForce RTX 4080 SUPER": ("RTX 4080 SUPER", 104.4),
    "NVIDIA GeForce RTX 3090 Ti": ("RTX 3090 Ti", 80),
    "AMD Instinct MI300X": ("MI300X", 1307.4),
    "AMD Instinct MI325X OAM": ("MI325X", 1307.4),
}
"""Name -> the name of dsnb, and the dense peak rate of fp16 in TFLOP/s by the data sheet."""
TYPED = {
    "4090": "RTX 4090",
    "rtx4090": "RTX 4090",
    "RTX_4090": "RTX 4090",
    "3090ti": "RTX 3090 Ti",
    "a6000": "RTX A6000",
    "6000 ada": "RTX 6000 Ada",
    "h100-pcie": "H100 PCIe",
    "h100nvl": "H100 NVL",
    "A100 (80 GB)": "A100",
    "a100-40g": "A100-40GB",
    "a10080gb": "A100",
    "a100sxm40gb": "A100-40GB",
    "v100-sxm-32gb": "V100",
    "v100-16g": "V100-16GB",
    "h20 141gb": "H20-141GB",
    "mi300x": "MI300X",
    " H200 ": "H200",
}
"""Name as it is typed -> the name of dsnb."""
OTHERS = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA H100 NVL MIG 1g.12gb",
    "NVIDIA H200 MIG 7g.141gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "RTX 4090 D",
    "NVIDIA A10-4Q", "NVIDIA A10-24C", "NVIDIA A100X", "NVIDIA A10M", "NVIDIA A100-SXM-64GB",
    "NVIDIA H100 64GB HBM2", "NVIDIA L40S-48Q", "NVIDIA L4-24Q", "NVIDIA L20", "NVIDIA RTX A6000-48Q",
    "GRID T4-16Q", "NVIDIA T4G", "NVIDIA T400", "GRID V100D-32Q", "Tesla V100S-PCIE-32GB", "Tesla V100-FHHL-16GB",
    "Tesla V100-SXM2-32GB-LS", "Tesla V100-DGXS-32GB", "NVIDIA H100-80C", "NVIDIA H100XM-80C", "NVIDIA A100-PG509-200",
    "NVIDIA RTX A1000", "NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA B200A", "NVIDIA",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA Graphics Device", "Tesla P100-SXM2-16GB", "AMD Instinct MI250", "AMD Instinct MI300A", "Z9", "", "nan",
    "4090 D", "L4 SXM", "H100 SXM 94GB", "A100-0GB", "A1000",
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_whole_cards(name):
    key, rate = WHOLE[name]
    assert (gpus.find(name).name, hardware.peak_tflops(name, "fp16")) == (key, rate)


def test_the_bandwidth_of_memory_is_that_of_its_size():
    names = {"NVIDIA A100-SXM4-80GB": 2039, "NVIDIA A100-SXM4-40GB": 1555, "A100": 2039}
    names |= {"NVIDIA H100 PCIe": 2000, "H20-141GB": 4800, "H20": 4000, "NVIDIA B300": None}
    assert {name: hardware.memory_gb_per_s(name) for name in names} == names
    assert gpus.find("A100-PCIE-40GB").memory_gb_per_s == 1555


@pytest.mark.parametrize("name", OTHERS)
def test_parts_and_relatives_of_cards_are_unknown(name):
    assert hardware.peak_tflops(name, "fp32") is None
    assert hardware.matmul_tflops(name, "bf16") is None
    with pytest.raises(SettingsError, match=f"unknown GPU '{name}': .*`dsnb recommend --list`"):
        gpus.find(name)


@pytest.mark.parametrize("name", TYPED)
def test_case_makers_and_separators_do_not_matter(name):
    assert gpus.find(name).name == TYPED[name]


@pytest.mark.parametrize("name", ["rtx 6000", "6000", "RTX-6000"])
def test_names_that_several_gpus_may_have_are_ambiguous(name):
    words = f"GPU '{name}' may be RTX PRO 6000 or RTX 6000 Ada: give the whole name"
    with pytest.raises(SettingsError) as caught:
        gpus.find(name)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("name", "near"),
    [("h21", "H20"), ("mi300", "MI300X"), ("rtx 4091", "RTX 4090"), ("A100-48GB", "A100-40GB")],
)
def test_near_names_are_suggested_for_unknown_ones(name, near):
    with pytest.raises(SettingsError, match=f"unknown GPU '{name}': the nearest are {near}"):
        gpus.find(name)


def test_rates_are_dense_and_ordered_by_precision():
    for sheet, _ in gpu_names.variants().values():
        rates = sheet.tflops
        half = rates.get("bf16", rates["fp16"])
        assert rates["fp32"] <= rates.get("tf32", rates["fp32"]) <= half, sheet.kind
        assert half <= rates.get("fp8", half) <= 2.1 * half, sheet.kind
        assert len(sheet.memory_gb) == len(sheet.memory_gib) == len(sheet.memory_gb_per_s)


def test_drivers_report_less_memory_than_the_nominal_one():
    for name, (sheet, memory_gb) in gpu_names.variants().items():
        if name != "MI250X":  # whose size is that of two dies
            gib = sheet.memory_gib[sheet.memory_gb.index(memory_gb)]
            assert 0.88 * memory_gb < gib <= memory_gb, name


def test_every_key_of_the_table_names_itself():
    assert {key: gpus.find(key).name for key in gpus.known()} == {key: key for key in gpus.known()}
    assert hardware.matmul_tflops("NVIDIA H200", "bf16") == 771.6
    assert hardware.matmul_tflops("NVIDIA H200 NVL", "bf16") is None
