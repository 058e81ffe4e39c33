"""GPUs are found by whatever name a program or publication gives them."""

import pytest

from dsnb.errors import SettingsError
from dsnb.prediction import gpus


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "H200"),
        ("H200 NVL", "H200 NVL"),
        ("H100-SXM-80GB", "H100"),
        ("H100-NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("V100-32GB", "V100"),
        ("V100-16GB", "V100-16GB"),
        ("MI150X", "MI250X"),
    ],
)
def test_names_of_publications_and_drivers(name, key):
    assert gpus.find(name) is gpus.GPUS[key]


def test_an_unknown_gpu_is_refused_with_those_that_are_known():
    with pytest.raises(SettingsError, match="unknown GPU 'Z9': choose one of B200, H200, "):
        gpus.find("Z9")


def test_the_rate_is_that_of_the_precision():
    gpu = gpus.find("H200")
    assert [gpu.peak_flops(name) / 1e12 for name in ("fp32", "tf32", "fp16", "bf16")] == [67, 494, 989, 989]
    assert gpus.find("V100").peak_flops("tf32") == 15.7e12  # it has no tf32
