"""Settings in words."""

import re
from typing import get_args

import pytest

from dsnb.runs import labels
from dsnb.settings.experiment import DEFAULTS, SUPERVISION, Experiment


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
    assert labels.setting({**DEFAULTS, "precision": "bf16", **settings}).startswith(words)


def test_where_it_ran():
    places = {
        "4 NVIDIA H200": {"gpus": 4, "gpu_name": "NVIDIA H200"},
        "2 CPU ranks": {"gpus": 2.0, "device": "cpu"},
        "1 CPU rank": {"gpus": 1, "device": "cpu"},
        "512 GPUs": {"gpus": 512},
        "an unknown number of GPUs": {"gpus": float("nan")},
    }
    assert {words: labels.place(run) for words, run in places.items()} == {words: words for words in places}


def edge_values(name, field):
    """Give every value of a closed list, and of an open one the default, the least and the one above."""
    options = [one for part in [field.annotation, *get_args(field.annotation)] for one in get_args(part)]
    literals = [one for one in options if isinstance(one, str | int)]
    least = [rule.ge for rule in field.metadata if getattr(rule, "ge", None) is not None]
    numbers = [*least, *(one + 1 for one in least)] if isinstance(field.default, int | float) else []
    truths = [True, False] if isinstance(field.default, bool) else []
    return list(dict.fromkeys([field.default, *literals, *numbers, *truths]))


SAID_WITH_0 = {"zero_stage", "seed"}
"""Settings of which 0 is a value like any other."""
ODD = [r"\b(none|auto|gib)\b", r"_", r"\s$", r"^\s*$", r"\s\s", r"\b1 \w+s\b", r"\bone block of 1\b", r"-$"]


@pytest.mark.parametrize("name", [name for name in Experiment.model_fields if name not in {*SUPERVISION, "deepspeed"}])
def test_no_value_of_a_setting_is_said_as_nobody_would(name):
    values = edge_values(name, Experiment.model_fields[name])
    odd = [*ODD, *([] if name in SAID_WITH_0 else [r"(?<![\d.])0(?![\d.])"])]
    said = {value: labels.choice({name: value}, name) for value in values}
    assert {value: words for value, words in said.items() if any(re.search(form, words) for form in odd)} == {}
    assert len(set(said.values())) == len({str(value).removesuffix(".0") for value in values})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bucket_elements", 1, "buckets of 1 element"),
        ("checkpoint_every", 3, "one block of 3 recomputed"),
        ("checkpoint_offload", False, "checkpoints on the GPU"),
        ("memory_limit_gib", 0.0, "no memory limit"),
        ("memory_limit_gib", 79.5, "memory limit 79.5 GiB"),
        ("offload", "none", "no offload"),
        ("overlap_comm", "auto", "default overlapped communication"),
        ("micro_batch_size", "auto", "the largest micro-batch that fits"),
        ("bucket_elements", None, "unknown bucket size"),
    ],
)
def test_a_value_is_said_by_what_it_means(name, value, words):
    assert labels.choice({name: value}, name) == words


def test_how_blocks_are_recomputed_is_not_said_where_none_are():
    run = {**DEFAULTS, "checkpoint_every": 2, "activation_checkpointing": True}
    assert labels.unusual_choice(run, "checkpoint_every") == "one block of 2 recomputed"
    assert labels.unusual_choice({**run, "activation_checkpointing": False}, "checkpoint_every") == ""
    assert labels.has_effect({"checkpoint_every": 2}, "checkpoint_every")  # whether they are is unknown
