"""Settings in words."""

import pytest

from dsnb.runs import setting_words
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
        ({"compile": "max-autotune", "offload": "optimizer-cpu"}, "ZeRO 0, bf16, compiled (max-autotune), offload op"),
        ({"strategy": None, "zero_stage": None, "precision": None, "micro_batch_size": None, "compile": None}, ""),
    ],
    ids=str,
)
def test_a_setting_is_said_as_an_engineer_would(settings, words):
    assert setting_words.setting({**DEFAULTS, "precision": "bf16", **settings}).startswith(words)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"gpus": 4, "gpu_name": "NVIDIA H200"}, "4 NVIDIA H200"),
        ({"gpus": 2.0, "device": "cpu"}, "2 CPU ranks"),
        ({"gpus": 1, "device": "cpu"}, "1 CPU rank"),
        ({"gpus": 512}, "512 GPUs"),
        ({"gpus": float("nan")}, "an unknown number of GPUs"),
    ],
)
def test_where_it_ran(run, words):
    assert setting_words.place(run) == words
