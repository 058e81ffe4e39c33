"""Sizes and names that follow from settings, by hand, and what runs did before a setting existed."""

import pytest

from dsnb.settings import auto_values
from dsnb.settings.experiment import Experiment, with_former_defaults
from dsnb.settings.training import ADAMW


@pytest.mark.parametrize(
    ("split", "data_parallel"),
    [
        ({}, 8),
        ({"tensor_parallel": 2}, 4),
        ({"pipeline_parallel": 4}, 2),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, 2),
    ],
    ids=str,
)
def test_ranks_that_share_a_model_share_its_sequences(split, data_parallel):
    made = Experiment(gpus=8, micro_batch_size=4, grad_accum=3, seq_len=128, **split)
    assert made.data_parallel == data_parallel
    assert made.model_parallel == 8 // data_parallel
    assert made.global_batch_size == 4 * 3 * data_parallel
    assert made.tokens_per_step == 4 * 3 * data_parallel * 128
    assert made.micro_batch_tokens == 4 * 128


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({}, "ac"),
        ({"checkpoint_every": 2}, "ac2"),
        ({"checkpoint_ops": "cheap"}, "ac-cheap"),
        ({"checkpoint_ops": "cheap", "checkpoint_every": 2}, "ac2-cheap"),
        ({"checkpoint_offload": True}, "ac-cpu"),
        ({"checkpoint_every": 3, "checkpoint_offload": True}, "ac3-cpu"),
    ],
)
def test_the_name_says_which_blocks_are_recomputed(settings, part):
    made = Experiment(activation_checkpointing=True, **settings)
    assert made.name.split("_")[-1] == part


def test_before_it_was_a_setting_the_allocator_was_torchs_own():
    assert with_former_defaults({"device": "cuda", "gpus": 2})["allocator"] == "default"
    chosen = {"device": "cuda", "allocator": "expandable"}
    assert with_former_defaults(chosen)["allocator"] == "expandable"
    assert "allocator" not in with_former_defaults({"device": "cpu", "gpus": 2})


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"gradient_compression": "powersgd", "powersgd_rank": 4}, "powersgd4"),
        ({"gradient_compression": "bf16"}, "send-bf16"),
        ({"compile": "default"}, "compile"),
        ({"compile": "max-autotune"}, "compile-max-autotune"),
        ({"data": "stdlib", "tokenizer": "someone/Words"}, "stdlib_tok-Words"),
    ],
)
def test_settings_whose_part_of_the_name_is_more_than_a_value(settings, part):
    made = Experiment(strategy="ddp", gpus=2, device="cuda", **settings)
    assert made.name == f"ddp_bf16_gpus2_bs8_sl128_{part}"


def test_before_they_were_settings_zero_accumulated_in_bf16_and_fsdp_reduced_once_a_step():
    bf16 = {"grad_accum": 2, "precision": "bf16"}
    assert with_former_defaults(bf16)["grad_accum_dtype"] == "bf16"
    assert with_former_defaults({**bf16, "strategy": "fsdp"})["reduce_gradients"] == "step"
    for other in ({"grad_accum": 1}, {"precision": "fp16"}, {"mixed_precision": "autocast"}):
        assert "grad_accum_dtype" not in with_former_defaults({**bf16, **other})
    assert "reduce_gradients" not in with_former_defaults({"strategy": "fsdp", "grad_accum": 1})


def test_what_a_run_does_if_nothing_else_is_said():
    made = Experiment()
    assert (made.warmup_steps, made.steps, made.seed) == (5, 20, 0)
    assert (made.micro_batch_size, made.grad_accum, made.seq_len) == (8, 1, 128)
    assert (made.learning_rate, made.gradient_clipping, made.dropout) == (1e-4, 0, 0)
    assert (made.strategy, made.zero_stage, made.offload) == ("deepspeed", 0, "none")
    assert (made.precision, made.mixed_precision, made.optimizer) == ("bf16", "native", "adamw")
    assert ADAMW == {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("setting", "yaml", "value"),
    [
        ("compile", True, "default"),
        ("compile", False, "off"),
        ("overlap_comm", True, "on"),
        ("overlap_comm", False, "off"),
    ],
)
def test_truth_values_of_yaml_are_words(setting, yaml, value):
    assert getattr(Experiment(**{"zero_stage": 1, setting: yaml}), setting) == value


def test_a_scheduler_spans_the_warm_up_and_the_timed_steps():
    keys = {"scheduler.params.total_num_steps": "auto"}
    found = auto_values.resolved(keys, {"warmup_steps": 3, "steps": 7})
    assert found == ({"scheduler.params.total_num_steps": 10}, [])


def test_auto_inside_a_list_has_no_value():
    _, problems = auto_values.resolved({"some.list": [{"inside": "auto"}]}, {})
    assert len(problems) == 1
