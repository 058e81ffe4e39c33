"""Keys of DeepSpeed's configuration: both notations, as axes, what dsnb decides itself, misspellings."""

import pytest

from dsnb.base.files import plain_yaml
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.train import ask_deepspeed
from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment

OVERLAP = "zero_optimization.overlap_comm"


def test_keys_are_merged_over_dsnbs_own_and_change_nothing_given():
    experiment = Experiment(
        zero_stage=1, device="cpu", deepspeed={"zero_optimization": {"overlap_comm": True}}
    )
    config, plain = (
        deepspeed_config(experiment),
        deepspeed_config(Experiment(zero_stage=1, device="cpu")),
    )
    assert plain["zero_optimization"] == {"stage": 1}
    assert config == {**plain, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    mixed = deepspeed_keys.flattened(
        {"deepspeed": {OVERLAP: True}, "deepspeed.zero_optimization": {"x": [1]}}
    )
    assert mixed == {OVERLAP: True, "zero_optimization.x": [1]}


def test_they_are_part_of_the_name():
    keys = {
        OVERLAP: True,
        "zero_optimization.reduce_bucket_size": 1000,
        "communication_data_type": "bf16",
    }
    name = Experiment(zero_stage=1, device="cpu", deepspeed=keys).name
    assert name.endswith("_communication_data_type-bf16_overlap_comm-on_reduce_bucket_size-1000")
    hostile = Experiment(zero_stage=1, device="cpu", deepspeed={"a.b": "../../x y\n"}).name
    assert hostile.endswith("_b-..-..-x-y")
    assert "/" not in hostile


@pytest.mark.process
def test_misspellings_are_found_in_another_process_that_imports_nothing_of_the_current_folder(
    tmp_path, monkeypatch
):
    for name in ("json.py", "dsnb/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    wrong = {"zero_optimization.overlap_com": True, "zero_optimization.reduce_bucket_size": "x"}
    assert sorted(deepspeed_keys.unknown_keys(1, wrong)) == [
        "deepspeed.zero_optimization.overlap_com is no key of DeepSpeed: did you mean 'overlap_comm'?",
        "deepspeed.zero_optimization.reduce_bucket_size is 'x': input should be a valid integer, unable to parse "
        "string as an integer",
    ]
    assert not (tmp_path / "imported").exists()


@pytest.mark.process
def test_keys_that_deepspeed_never_reads_are_misspelled():
    import deepspeed  # noqa: F401  (the worker of a test run that has loaded it runs this file)

    right = {
        "zero_optimization.reduce_scatter": False, "zero_optimization.stage3_max_live_parameters": 10,
        "communication_data_type": "fp32", "torch_autocast.lower_precision_safe_modules": ["torch.nn.Linear"],
        "optimizer.params.torch_adam": True, "compile.free_activation": True, "checkpoint.tag_validation": "Ignore",
        "scheduler.type": "WarmupLR", "scheduler.params.warmup_num_steps": 3, "aio.block_size": 2**20,
    }  # fmt: skip
    unread = {
        "communication_datatype": "fp32",
        "aio.blocksize": 1,
        "zero_optimisation.overlap_comm": True,
    }
    assert sorted(ask_deepspeed.check(3, {**right, **unread})) == [
        "deepspeed.aio.blocksize is no key of DeepSpeed: did you mean 'block_size'?",
        "deepspeed.communication_datatype is no key of DeepSpeed: did you mean 'communication_data_type'?",
        "deepspeed.zero_optimisation is no key of DeepSpeed: did you mean 'zero_optimization'?",
    ]


def test_a_key_is_an_axis_of_a_sweep(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(
        "name: keys\norder: listed\n"
        "defaults: {model: gpt2-tiny, device: cpu, precision: fp32, deepspeed: {communication_data_type: fp32}}\n"
        "grid:\n  zero_stage: [1, 2]\n  deepspeed: {zero_optimization: {overlap_comm: [false, true]}}\n"
        "exclude: [{zero_stage: 2, deepspeed.zero_optimization.overlap_comm: true}]\n"
    )
    keys = [(run.experiment.zero_stage, run.experiment.deepspeed) for run in load_sweep(path).runs]
    fp32 = {"communication_data_type": "fp32"}
    assert keys == [
        (1, {**fp32, OVERLAP: False}),
        (1, {**fp32, OVERLAP: True}),
        (2, {**fp32, OVERLAP: False}),
    ]
    changed = load_sweep(
        path, {f"deepspeed.{OVERLAP}": True, "deepspeed.communication_data_type": ["fp16", "bf16"]}
    )
    assert [run.experiment.deepspeed["communication_data_type"] for run in changed.runs] == [
        "fp16",
        "bf16",
    ]


AUTO = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "auto",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto"},
    },
    "zero_optimization": {
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
"""A file for transformers' Trainer."""


@pytest.mark.parametrize("model", ["gpt2", "openai-community/gpt2"])
def test_auto_is_resolved_as_transformers_does_and_recorded_as_a_value(model):
    experiment = Experiment(
        model=model,
        zero_stage=3,
        device="cpu",
        precision="fp32",
        learning_rate=3e-4,
        deepspeed=AUTO,
    )
    assert experiment.deepspeed == {
        "scheduler.type": "WarmupDecayLR",
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": 3e-4,
        "zero_optimization.reduce_bucket_size": 589_824,  # GPT-2's hidden size is 768
        "zero_optimization.stage3_prefetch_bucket_size": 530_841,
        "zero_optimization.stage3_param_persistence_threshold": 7_680,
    }
    assert "auto" not in str(deepspeed_config(experiment))
    at_zero_2 = Experiment(
        model=model, zero_stage=2, device="cpu", precision="fp32", deepspeed=AUTO
    ).deepspeed
    assert [key for key in at_zero_2 if key.startswith("zero")] == [
        "zero_optimization.reduce_bucket_size"
    ]


def test_the_hidden_size_is_that_of_a_configuration_file(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mpt", "d_model": 64, "n_layers": 2}')
    key = "zero_optimization.reduce_bucket_size"
    assert Experiment(
        model=str(tmp_path), zero_stage=2, device="cpu", deepspeed={key: "auto"}
    ).deepspeed == {key: 4096}


def test_numbers_of_json_are_numbers_in_yaml(tmp_path):
    text = "reduce_bucket_size: 5e8, x: 1e-8, y: 1.5E+3, z: '5e8', t: 5e8x"
    path = tmp_path / "numbers.yaml"
    path.write_text(
        "name: numbers\ndefaults:\n  {device: cpu, zero_stage: 1, deepspeed: {zero_optimization: {"
        + text
        + "}}}\n"
    )
    (run,) = load_sweep(path).runs
    assert list(run.experiment.deepspeed.values()) == [500_000_000, 1e-8, 1500, "5e8", "5e8x"]
    assert isinstance(run.experiment.deepspeed["zero_optimization.reduce_bucket_size"], int)
    values = {"a": "1e-4", "b": 1e-4}
    assert plain_yaml.parse(plain_yaml.dump(values)) == values


@pytest.mark.process
def test_a_value_that_deepspeed_replaces_is_refused_before_a_run():
    import deepspeed  # noqa: F401  (the worker of a test run that has loaded it runs this file)

    assert ask_deepspeed.check(2, {OVERLAP: "true"}) == [
        f"deepspeed.{OVERLAP} is 'true': DeepSpeed would use True; write that, or leave the key out"
    ]
    assert ask_deepspeed.check(2, {OVERLAP: True, "optimizer.params.eps": 1e-8}) == []
