"""The built-in settings: none of them changes what is trained, and their sizes by hand."""

import pytest

from dsnb.prediction import candidates as built_in
from dsnb.prediction.candidates import Training, candidates
from dsnb.settings.experiment import DEFAULTS, Experiment

VARIED = {
    "strategy", "zero_stage", "tensor_parallel", "mixed_precision", "compile", "loss", "activation_checkpointing",
    "checkpoint_every", "micro_batch_size", "grad_accum", "bucket_elements", "offload",
}  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "strategies"),
    [(1, {"plain", "deepspeed"}), (8, {"plain", "ddp", "fsdp", "deepspeed"})],
)
def test_every_setting_trains_the_same(gpus, strategies):
    training = Training("opt-1.3b", gpus, 2048, 512)
    found = [*candidates(training), *candidates(training, offloaded=True)]
    assert len(found) > 500
    assert len({one.name for one in found}) == len(found)
    each = {"micro_batch_size": [1, 2, 4, 8, 16, 32]}  # given, so each is checked against the rules
    assert candidates(Training("opt-1.3b", gpus, 2048, 512, pinned=each)) == candidates(training)
    assert {one.global_batch_size for one in found} == {512}
    assert {one.strategy for one in found} == strategies
    varied = {
        name for name in DEFAULTS for one in found if getattr(one, name) != getattr(found[0], name)
    }
    assert varied <= VARIED
    assert {one.tensor_parallel for one in found} == ({1} if gpus == 1 else {1, 2, 4, 8})
    assert {one.compile for one in found if one.grad_accum > 1} == {"off", "default"}


def test_the_usual_batch_is_that_of_gpt_3_shared_among_the_gpus():
    assert built_in.usual_batch(0.4e9, seq_len=2048, gpus=8) == 256  # half a million tokens
    assert built_in.usual_batch(1.3e9, seq_len=2048, gpus=8) == 512  # 1 million tokens
    assert (
        built_in.usual_batch(175e9, seq_len=2048, gpus=64) == 2048
    )  # 3.2 million as a power of two
    assert built_in.usual_batch(124e6, seq_len=1024, gpus=48) == 528  # 512 / 48 is nearest to 11
    assert built_in.usual_batch(124e6, seq_len=1024, gpus=4096) == 4096  # one each


def test_fine_tuning_has_64_sequences_a_step():
    assert built_in.usual_batch(13e9, seq_len=2048, gpus=8, fine_tuning=True) == 64
    assert (
        built_in.usual_batch(13e9, seq_len=2048, gpus=48, fine_tuning=True) == 48
    )  # 64 / 48 is nearest to 1
    for pinned, is_so in (({"lora_rank": [8, 0]}, False), ({"lora_rank": 8}, True), ({}, False)):
        assert Training("opt-13b", 8, 2048, 64, pinned=pinned).is_fine_tuning == is_so


def test_micro_batches_divide_what_a_rank_has():
    assert built_in.micro_batches(96, 2048) == [1, 2, 3, 6, 12, 24]
    assert built_in.micro_batches(64, 256) == [4, 8, 16, 32, 64]
    assert built_in.micro_batches(64, 2048) == [1, 2, 4, 8, 16, 32]  # 65,536 tokens at most
    assert built_in.micro_batches(7, 131072) == [1]


def test_fixed_settings_are_in_every_setting_and_lists_are_what_to_choose_from():
    fixed = {
        "zero_stage": [1, 2],
        "micro_batch_size": 4,
        "compile": "off",
        "optimizer": "adamw",
        "steps": 7,
    }
    found = candidates(Training("opt-1.3b", 8, 2048, 512, pinned=fixed))
    chosen = {
        (one.strategy, one.zero_stage, one.micro_batch_size, one.compile, one.steps)
        for one in found
    }
    assert chosen == {("deepspeed", stage, 4, "off", 7) for stage in (1, 2)}


def test_the_order_of_simplicity():
    common = {"model": "opt-1.3b", "device": "cuda", "gpus": 8, "precision": "bf16"}
    ordered = [
        {"strategy": "ddp", "compile": "default"},
        {"zero_stage": 0},
        {"zero_stage": 1},
        {"zero_stage": 1, "grad_accum": 2},
        {"zero_stage": 1, "compile": "default", "mixed_precision": "autocast"},
        {"zero_stage": 1, "compile": "reduce-overhead"},
        {"zero_stage": 1, "activation_checkpointing": True},
        {"zero_stage": 3},
        {"strategy": "fsdp"},
        {"zero_stage": 0, "tensor_parallel": 2},
        {"zero_stage": 1, "offload": "optimizer-cpu"},
    ]
    experiments = [Experiment(**common, **one) for one in ordered]
    backwards = list(reversed(experiments))
    assert sorted(backwards, key=built_in.simplicity) == experiments


def test_compiled_ddp_has_messages_of_100_million_gradients_unless_a_size_is_asked_for():
    ddp = {"strategy": "ddp", "micro_batch_size": 4, "loss": "whole"}
    found = candidates(Training("opt-1.3b", 8, 2048, 512, pinned=ddp))
    assert {(one.compile != "off", one.bucket_elements) for one in found} == {
        (False, 0),
        (True, 100_000_000),
    }
    asked = {**ddp, "bucket_elements": 50_000_000}
    found = candidates(Training("opt-1.3b", 8, 2048, 512, pinned=asked))
    assert {one.bucket_elements for one in found} == {50_000_000}


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("gpt2", {1, 2, 4}),  # 12 heads
        ("llama-3.1-8b", {1, 2, 4, 8}),  # 8 key-value heads
        ("qwen2.5-0.5b", {1, 2}),  # 14 heads, 2 key-value heads
        ("falcon-7b", {1}),  # 1 key-value head
        ("mixtral-8x7b", {1}),  # experts
    ],
)
def test_tensor_parallel_ranks_share_heads_equally(model, sizes):
    found = candidates(Training(model, 8, 1024, 512))
    assert {one.tensor_parallel for one in found} == sizes


@pytest.mark.parametrize(
    ("gpus", "pinned", "sizes"),
    [
        (8, {}, {0}),
        (32, {}, {0, 8}),
        (8, {"nodes": 2}, {0, 4}),
        (8, {"nodes": 8}, {0}),  # one GPU each
        (12, {}, {0, 6}),
        (16, {"strategy": "ddp"}, {0}),
        (16, {"shard_size": 4}, {4}),
    ],
)
def test_over_several_nodes_the_gpus_of_each_may_share_shards(gpus, pinned, sizes):
    found = candidates(Training("opt-1.3b", gpus, 2048, 96 * gpus, pinned=pinned))
    assert {one.shard_size for one in found} == sizes
    assert {one.strategy for one in found if one.shard_size} <= {"fsdp"}


def test_split_layers_are_sharded_by_zero_1_or_among_groups_by_fsdp_or_are_one_group():
    found = candidates(Training("llama-3.1-8b", 8, 1024, 512))
    ways = {(one.label, one.tensor_parallel) for one in found if one.tensor_parallel > 1}
    by_zero = {(f"TP {size} x ZeRO 1", size) for size in (2, 4, 8)}
    by_fsdp = {(f"TP {size} x FSDP", size) for size in (2, 4)}
    assert ways == by_zero | by_fsdp | {("TP 8 x plain", 8)}


def test_sequences_are_as_long_as_the_model_allows_and_at_most_4096():
    names = ("gpt2", "opt-1.3b", "bloom-560m", "llama-3.1-8b")
    assert [built_in.usual_length(name) for name in names] == [1024, 2048, 4096, 4096]
