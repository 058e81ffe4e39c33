"""Settings in words."""

import pytest

from dsnb.runs import labels
from dsnb.settings.experiment import DEFAULTS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "bf16"}, "ZeRO 0, bf16, micro-batch 8"),
        (
            {"zero_stage": 1, "mixed_precision": "autocast", "compile": "default", "grad_accum": 4},
            "ZeRO 1, bf16 autocast, compiled, micro-batch 8, 4 accumulated",
        ),
        ({"strategy": "plain", "compile": "reduce-overhead"}, "the plain loop, bf16, compiled with CUDA graphs"),
        ({"strategy": "fsdp", "activation_checkpointing": True, "checkpoint_every": 2}, "FSDP, bf16, checkpointing"),
        ({"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 1}, "TP 2 x PP 4 x ZeRO 1, bf16"),
        ({"strategy": None, "zero_stage": None, "precision": None, "micro_batch_size": None, "compile": None}, ""),
    ],
    ids=str,
)
def test_a_setting_is_said_as_an_engineer_would(settings, words):
    assert labels.setting({**DEFAULTS, "precision": "bf16", **settings}).startswith(words)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"gpus": 4, "gpu_name": "NVIDIA H200"}, "4 NVIDIA H200"),
        ({"gpus": 2.0, "device": "cpu"}, "2 CPU ranks"),
        ({"gpus": 1, "device": "cpu"}, "1 CPU rank"),
        ({"gpus": 512}, "512 GPUs"),
        ({"gpus": float("nan")}, "an unknown number of GPUs"),
        ({"checkpoint_every": 3}, "one block of 3 recomputed"),
        ({"memory_limit_gib": 79.5}, "memory limit 79.5 GiB"),
        ({"overlap_comm": "auto"}, "default overlapped communication"),
        ({"bucket_elements": None}, "unknown bucket size"),
        ({"bucket_elements": 100_000_000}, "buckets of 100,000,000 elements"),
        ({"offload": "all-nvme"}, "parameters and optimizer on NVMe"),
        ({"gradient_compression": "powersgd"}, "gradients compressed by PowerSGD"),
        ({"checkpoint_offload": False}, "checkpoints on the GPU"),
        ({"deepspeed.zero_optimization.reduce_scatter": None}, "default reduce_scatter"),
    ],
    ids=str,
)
def test_a_place_or_a_value_is_said_by_what_it_means(run, words):
    assert (labels.place(run) if "gpus" in run else labels.choice(run, *run)) == words


def test_how_blocks_are_recomputed_is_not_said_where_none_are():
    run = {**DEFAULTS, "checkpoint_every": 2, "activation_checkpointing": True}
    assert labels.unusual_choice(run, "checkpoint_every") == "one block of 2 recomputed"
    assert labels.unusual_choice({**run, "activation_checkpointing": False}, "checkpoint_every") == ""
    assert labels.has_effect({"checkpoint_every": 2}, "checkpoint_every")  # whether they are is unknown


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("compile", ["off", "default", "reduce-overhead"], ["not compiled", "compiled", "compiled with CUDA graphs"]),
        ("activation_checkpointing", [False, True], ["off", "on"]),
        ("memory_limit_gib", [0.0, 16.0], ["none", "16"]),
        ("attention", ["auto", None], ["default", "-"]),
        ("status", ["ok", "oom"], ["ok", "out of memory"]),
    ],
)
def test_a_value_below_its_title_is_a_plain_word(name, values, words):
    assert [labels.axis(name).label(value) for value in values] == words
