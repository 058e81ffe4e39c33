"""What DeepSpeed is told for each setting."""

import pytest

from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment

BASE = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "optimizer": {
        "type": "AdamW",
        "params": {
            "lr": 1e-4,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.01,
            "torch_adam": True,
        },
    },
    "zero_optimization": {"stage": 0},
    "gradient_clipping": 0.0,
    "steps_per_print": 2**31 - 1,
    "wall_clock_breakdown": False,
    "timers": {"throughput": {"enabled": False}},
}
"""For one rank on a CPU in fp32."""


def test_deepspeed_is_told_nothing_but_the_settings(small):
    assert deepspeed_config(small()) == BASE
    for strategy in ("plain", "ddp", "fsdp"):
        assert deepspeed_config(small(strategy=strategy)) == {}


CPU, NVME = {"device": "cpu", "pin_memory": False}, {"device": "nvme", "pin_memory": False}


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"micro_batch_size": 5, "grad_accum": 3},
         {"train_micro_batch_size_per_gpu": 5, "gradient_accumulation_steps": 3}),
        ({"gradient_clipping": 0.5}, {"gradient_clipping": 0.5}),
        ({"precision": "bf16"}, {"bf16": {"enabled": True}}),
        ({"precision": "bf16", "grad_accum_dtype": "fp32"},
         {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}),
        ({"precision": "bf16", "gradient_checks": "off", "zero_stage": 1},
         {"bf16": {"enabled": True, "check_grad_overflow": False},
          "zero_optimization": {"stage": 1, "compute_grad_norm": False}}),
        ({"precision": "bf16", "grad_accum": 2, "zero_stage": 1},  # sums would be rounded to 8 bits
         {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"},
          "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}}),
        ({"precision": "fp16"}, {"fp16": {"enabled": True}}),
        ({"precision": "bf16", "mixed_precision": "autocast"},
         {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
        ({"compile": "deepcompile"}, {"compile": {"deepcompile": True}}),
        ({"tensor_parallel": 2}, {"tensor_parallel": {"autotp_size": 2}}),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, {"tensor_parallel": {"autotp_size": 0}}),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_is_a_key_of_deepspeeds(small, settings, changed):
    experiment = small(gpus=4).model_copy(update=settings)
    config = deepspeed_config(experiment)
    assert config == {**BASE, **changed}


@pytest.mark.parametrize(
    ("settings", "zero"),
    [
        ({"zero_stage": 2}, {"stage": 2}),
        ({"offload": "optimizer-cpu"}, {"offload_optimizer": CPU}),
        ({"offload": "optimizer-nvme", "nvme_path": "/swap"},
         {"offload_optimizer": {**NVME, "nvme_path": "/swap"}}),
        ({"offload": "all-cpu"}, {"offload_optimizer": CPU, "offload_param": CPU}),
        ({"overlap_comm": "on"}, {"overlap_comm": True}),
        ({"overlap_comm": "off"}, {"overlap_comm": False}),
        ({"bucket_elements": 500}, {"reduce_bucket_size": 500, "allgather_bucket_size": 500}),
        ({"gradient_checks": "off"}, {"compute_grad_norm": False}),
        ({"zeropp": "weights"}, {"zero_quantized_weights": True}),
        ({"zeropp": "gradients"}, {"zero_quantized_gradients": True}),
        ({"zeropp": "partition", "nodes": 2}, {"zero_hpz_partition_size": 4}),  # ranks of a node
        ({"zeropp": "all", "nodes": 1},
         {"zero_quantized_weights": True, "zero_quantized_gradients": True, "zero_hpz_partition_size": 8}),
        ({"zero_stage": 3, "compile": "default", "compile_unit": "block"},
         {"stage": 3, "memory_efficient_linear": False}),
        ({"zero_stage": 3, "compile": "default", "compile_unit": "model"}, {"stage": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_zero(small, settings, zero):
    experiment = small(gpus=8).model_copy(update=settings)
    assert deepspeed_config(experiment)["zero_optimization"] == {"stage": 0, **zero}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"optimizer": "adafactor"}, None),
        ({"optimizer": "muon", "learning_rate": 0.5, "zero_stage": 1},
         {"type": "Muon", "params": {"lr": 0.5, "weight_decay": 0.01, "torch_adam": True}}),
        ({"learning_rate": 0.5}, {"type": "AdamW", "params": {**BASE["optimizer"]["params"], "lr": 0.5}}),
    ],
)  # fmt: skip
def test_the_optimizer_that_deepspeed_builds(small, settings, expected):
    config = deepspeed_config(small(**settings))
    assert config.get("optimizer") == expected
    assert config.get("zero_allow_untested_optimizer") is (True if expected is None else None)


def test_a_gpus_memory_is_offloaded_to_pinned_memory_and_keys_are_passed_on():
    keys = {"zero_optimization": {"sub_group_size": 7}}
    asked = Experiment(
        model="gpt2-tiny", device="cuda", precision="bf16", zero_stage=2, offload="optimizer-cpu",
        deepspeed=keys,
    )  # fmt: skip
    zero = deepspeed_config(asked)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert zero["sub_group_size"] == 7
