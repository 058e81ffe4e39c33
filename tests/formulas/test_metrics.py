"""Formulas, with numbers that can be done in the head."""

import pytest

from dsnb.formulas import metrics
from dsnb.formulas.model_shapes import PRESETS
from dsnb.system import hardware


def test_tokens_per_s_is_work_over_time():
    assert metrics.tokens_per_s(100, [1.0, 3.0]) == 50.0  # the mean of the rates would be 66.7
    assert metrics.tokens_per_s(100, []) is None


def test_flops_tflops_and_mfu():
    work = {"parameters": 1000, "layers": 2, "hidden": 10, "seq_len": 5}
    assert metrics.model_flops_per_token(**work) == 6 * 1000 + 12 * 2 * 10 * 5
    assert metrics.model_flops_per_token(**work, trained=30) == 4 * 1000 + 2 * 30 + 12 * 2 * 10 * 5  # LoRA
    assert metrics.tflops(2e9, 500.0) == 1.0
    assert metrics.tflops(2e9, None) is None
    assert metrics.mfu(100.0, 400.0) == 0.25
    assert metrics.mfu(100.0, None) is None


def test_only_blocks_are_recomputed():
    work = {"layers": 4, "hidden": 10, "seq_len": 5}
    forward = 2 * 600 + 4 * 4 * 10 * 5
    assert [metrics.recomputed_flops_per_token(600, every=every, **work) for every in (0, 1, 2, 3)] == [
        0, forward, forward / 2, forward / 2,
    ]  # fmt: skip


def test_recomputed_flops_are_those_that_torch_counts():
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    shape, ids = PRESETS["gpt2-tiny"], torch.zeros(1, 64, dtype=torch.int64)
    config = AutoConfig.for_model(**shape.config(), use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()

    def counted():
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, labels=ids).loss.backward()
        return counter.get_total_flops() / ids.numel()

    once = counted()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    blocks = shape.layers, shape.hidden, 64
    again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks, every=1)
    assert counted() - once == pytest.approx(again, rel=0.01)  # biases and norms are in the formula, not in the count
    used = shape.parameters - shape.positions * shape.hidden  # positions are looked up, not multiplied
    assert once == pytest.approx(metrics.model_flops_per_token(used, *blocks), rel=0.01)


def test_a_window_limits_the_keys_of_a_query():
    work = {"layers": 2, "width": 10, "seq_len": 8}
    for window, keys in ((None, 8), (100, 8), (8, 8), (2, 2)):
        assert metrics.attention_flops_per_token(**work, window=window) == 12 * 2 * 10 * keys
    assert metrics.masked_flops_per_token(**work) == 12 * 2 * 10 * 8 / 2
    # 2 of 8 keys are counted for 8 queries: 16 pairs, of which the first two queries lack half of 4.
    assert metrics.masked_flops_per_token(**work, window=2) == 12 * 2 * 10 * 2 * (2 / 16)


def test_peaks_by_name():
    peaks = {
        ("NVIDIA H200", "bf16"): 989,
        ("NVIDIA H100 NVL", "bf16"): 835,
        ("NVIDIA H100 80GB HBM3", "fp32"): 67,
        ("NVIDIA A100-SXM4-80GB", "tf32"): 156,
        ("Tesla V100-SXM2-32GB", "bf16"): None,
        ("NVIDIA A10G", "bf16"): None,
        (None, "bf16"): None,
    }
    assert {asked: hardware.peak_tflops(*asked) for asked in peaks} == peaks


def test_visible_gpus_follow_cudas_rule():
    found = [hardware.InstalledGpu(index, "X", f"GPU-{letter}", 1.0, (9, 0)) for index, letter in enumerate("abc")]
    chosen = {None: [0, 1, 2], "2,0": [2, 0], "GPU-b": [1], "1,7,0": [1], "": [], "-1": []}
    assert {asked: [gpu.index for gpu in hardware._visible(found, asked)] for asked in chosen} == chosen
