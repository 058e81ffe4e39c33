"""Formulas, with numbers that can be done in the head."""

import pytest

from dsnb import hardware, metrics
from dsnb.hostfile import Host
from dsnb.launcher.share import Share


def test_tokens_per_s_is_work_over_time():
    assert metrics.tokens_per_s(100, [1.0, 3.0]) == 50.0  # the mean of the rates would be 66.7
    assert metrics.tokens_per_s(100, []) is None


def test_flops_tflops_and_mfu():
    flops = metrics.model_flops_per_token(parameters=1000, layers=2, hidden=10, seq_len=5)
    assert flops == 6 * 1000 + 12 * 2 * 10 * 5
    assert metrics.tflops(2e9, 500.0) == 1.0
    assert metrics.tflops(2e9, None) is None
    assert metrics.mfu(100.0, 400.0) == 0.25
    assert metrics.mfu(100.0, None) is None


def test_recomputation_is_the_published_four_against_three():
    assert metrics.recomputation_factor(True) / metrics.recomputation_factor(False) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H100 NVL", "bf16", 835),
        ("NVIDIA H100 80GB HBM3", "fp32", 67),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA A10G", "bf16", None),
        (None, "bf16", None),
    ],
)
def test_peaks_by_name(name, precision, peak):
    assert hardware.peak_tflops(name, precision) == peak


def test_gpus_that_a_notebook_chooses_later_are_those_that_are_used(monkeypatch, tmp_path):
    cards = [hardware.Gpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0)) for number in range(4)]
    monkeypatch.setattr(hardware, "_all_gpus", lambda: cards)
    share = Share("cuda", (Host("localhost", (0, 1)),), 0, "", 1, {}, "worker", tmp_path, tmp_path / "console.log")
    for choice, numbers in (("0,1,2", "0,1"), ("GPU-3,1", "3,1")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", choice)
        assert [rank["CUDA_VISIBLE_DEVICES"] for rank in share.variables] == [numbers, numbers]


def test_visible_gpus_follow_cudas_rule():
    found = [hardware.Gpu(index, "X", f"GPU-{letter}", 1.0, (9, 0)) for index, letter in enumerate("abc")]
    chosen = hardware._visible
    assert [gpu.index for gpu in chosen(found, None)] == [0, 1, 2]
    assert [gpu.index for gpu in chosen(found, "2,0")] == [2, 0]
    assert [gpu.index for gpu in chosen(found, "GPU-b")] == [1]
    assert [gpu.index for gpu in chosen(found, "1,7,0")] == [1]
    assert chosen(found, "") == []
    assert chosen(found, "-1") == []
