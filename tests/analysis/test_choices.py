"""What can be chosen: one strategy, and nothing that belongs to the measurement."""

import pandas as pd

from dsnb.analysis.choices import choices, variants, varying, with_choices

SHARED = pd.DataFrame(
    [
        {"strategy": "plain", "zero_stage": 0},
        {"strategy": "ddp", "zero_stage": 0},
        {"strategy": "fsdp", "zero_stage": 0},
        {"strategy": "deepspeed", "zero_stage": 3},
        {"strategy": "deepspeed", "zero_stage": 1, "tensor_parallel": 2, "pipeline_parallel": 4},
        {"strategy": "deepspeed", "zero_stage": None},
        {"strategy": "another", "zero_stage": None},
    ]
)


def test_how_a_training_is_shared_is_one_choice():
    known = with_choices(SHARED)
    assert known["strategy"].to_list() == ["plain", "DDP", "FSDP", "ZeRO 3", "TP 2 x PP 4 x ZeRO 1", None, "another"]
    assert varying(known) == ["strategy"]


def test_what_belongs_to_the_measurement_is_no_choice():
    runs = SHARED.assign(steps=range(7), warmup_steps=range(7), seed=range(7), profile=False, precision="bf16")
    assert choices(with_choices(runs)) == ["strategy", "precision"]


def test_variants_differ_in_more_than_strategy_and_precision():
    runs = SHARED.assign(seq_len=[100] * 6 + [200], gpus=[1, *[2] * 6], device="cpu", seed=range(7), steps=range(7))
    parts = variants(runs)
    assert {title: list(part.index) for title, part in parts.items()} == {
        "1 rank, sequence 100": [0], "2 ranks, sequence 100": [1, 2, 3, 4, 5], "2 ranks, sequence 200": [6],
    }  # fmt: skip
    assert list(parts["2 ranks, sequence 100"]["strategy"]) == ["ddp", "fsdp", "deepspeed", "deepspeed", "deepspeed"]
    many = pd.concat([runs, *(runs.tail(1).assign(seq_len=length) for length in (300, 400, 500))], ignore_index=True)
    assert list(variants(many)) == ["1 rank, sequence 100", *(f"2 ranks, sequence {n}" for n in (100, 200, 300))]
    assert list(variants(SHARED)) == [""]
    on_gpus = variants(runs.assign(device="cuda", gpu_name="H200"))
    assert "2 GPUs, sequence 100" in on_gpus
