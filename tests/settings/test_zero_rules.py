"""Settings that tune ZeRO: where they do not apply, they are refused with the reason."""

import pytest

from dsnb.errors import SettingsError
from dsnb.launcher.config import deepspeed_config
from dsnb.settings.derived import accumulates_in_fp32
from dsnb.settings.experiment import Experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"overlap_comm": True},
            "overlap_comm is 'on', but zero_stage is 0: there are no buckets; use zero_stage 1 or 2 or 3",
        ),
        (
            {"bucket_elements": 10, "strategy": "ddp", "compile": "default"},
            "bucket_elements is 10: compiled DDP needs at least 262144",
        ),
        (
            {"bucket_elements": 10, "strategy": "fsdp"},
            "bucket_elements is 10, but strategy is 'fsdp', which has no buckets; use strategy 'deepspeed' or 'ddp'",
        ),
        (
            {"leaf_modules": "blocks", "zero_stage": 2},
            "leaf_modules is 'blocks', but zero_stage is 2: nothing is gathered; use zero_stage 3",
        ),
        (
            {"zeropp": "gradients", "zero_stage": 3, "device": "cuda"},
            "zeropp is 'gradients', but nodes is 1: gradients are quantized between nodes only; use 'weights'",
        ),
        (
            {"zeropp": "weights", "zero_stage": 3},
            "zeropp is 'weights', but device is 'cpu': DeepSpeed quantizes on GPUs only; use 'partition'",
        ),
        (
            {"gradient_checks": False, "zero_stage": 1, "gradient_clipping": 1.0},
            "gradient_checks is 'off', but gradient_clipping is set: clipping needs the norm; set it to 0",
        ),
        (
            {"gradient_checks": "off", "zero_stage": 1, "grad_accum": 2},
            "gradient_checks is 'off', but ZeRO 1 accumulates in fp32, which computes the norm; use ZeRO 2",
        ),
        (
            {"grad_accum_dtype": "fp32", "zero_stage": 0},
            "grad_accum_dtype is 'fp32', but zero_stage is 0: DeepSpeed accumulates in the weights' format there",
        ),
        (
            {"grad_accum_dtype": "fp16", "zero_stage": 1},
            "grad_accum_dtype is 'fp16', but precision is 'bf16': use 'fp32' or 'bf16'",
        ),
        (
            {"optimizer": "muon"},
            "optimizer is 'muon': it is ZeRO's, which sees whole matrices; use zero_stage 1, 2 or 3",
        ),
        ({"gradient_checks": "auto", "zero_stage": 1}, "gradient_checks is 'auto': allowed are 'on' or 'off'"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(SettingsError) as caught:
        Experiment(**{"device": "cpu", **settings})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "is_fp32"),
    [
        ({"zero_stage": 1}, False),
        ({"zero_stage": 1, "grad_accum": 2}, True),
        ({"zero_stage": 3, "grad_accum": 256}, True),
        ({"zero_stage": 0, "grad_accum": 2}, False),
        ({"zero_stage": 2, "grad_accum": 2, "precision": "fp16"}, False),
        ({"zero_stage": 2, "grad_accum": 2, "mixed_precision": "autocast"}, False),
        ({"zero_stage": 1, "grad_accum": 2, "grad_accum_dtype": "bf16"}, False),
        ({"zero_stage": 1, "grad_accum_dtype": "fp32"}, True),
    ],
    ids=str,
)
def test_several_micro_batches_are_accumulated_in_fp32(settings, is_fp32):
    experiment = Experiment(device="cuda", **settings)
    assert accumulates_in_fp32(experiment.model_dump()) is is_fp32
    assert (deepspeed_config(experiment).get("data_types") == {"grad_accum_dtype": "fp32"}) is is_fp32


def test_every_axis_reaches_deepspeed(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=8\nb slots=8\n")
    zero = {"zero_stage": 3, "device": "cuda", "gpus": 16, "nodes": 2, "hostfile": str(hosts)}
    config = deepspeed_config(Experiment(**zero, zeropp="all", overlap_comm=False, bucket_elements=7))
    assert config["zero_optimization"] == {
        "stage": 3, "overlap_comm": False, "reduce_bucket_size": 7, "allgather_bucket_size": 7,
        "zero_quantized_weights": True, "zero_quantized_gradients": True, "zero_hpz_partition_size": 8,
    }  # fmt: skip
    config = deepspeed_config(Experiment(zero_stage=2, device="cuda", gradient_checks="off"))
    assert config["zero_optimization"] == {"stage": 2, "compute_grad_norm": False}
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": False}
    config = deepspeed_config(Experiment(zero_stage=1, device="cuda", compile="deepcompile", optimizer="muon"))
    assert config["compile"] == {"deepcompile": True}
    assert config["optimizer"]["type"] == "Muon"
