"""Sizes and names that follow from settings, by hand, and what runs did before a setting existed."""

import pytest

from dsnb.settings.experiment import Experiment, with_former_defaults


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
