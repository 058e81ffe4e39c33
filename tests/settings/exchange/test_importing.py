"""Configurations of other programs in dsnb's settings, and back."""

import json
import pickle
import time
import zipfile
from types import SimpleNamespace

import pytest
import yaml

from dsnb.base.errors import SettingsError
from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange import (
    files,
    from_accelerate,
    from_arguments,
    from_deepspeed,
    importing,
    programs,
)
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import read_params

ON_GPUS = {"device": "cuda", "model": "llama-3.1-8b"}
TRAINER_FILE = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "wall_clock_breakdown": False,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": False,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
"""As many repositories have it."""


class Holder:
    """Stands for the objects in saved arguments: only their states are read."""

    def __init__(self, **state):
        self.__dict__.update(state)


@pytest.fixture(autouse=True)
def no_deepspeed(monkeypatch):
    """Ask no process for DeepSpeed's keys."""
    monkeypatch.setattr(deepspeed_keys, "unknown_keys", lambda *_: [])


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(content))
    elif path.suffix == ".bin":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("training_args/data.pkl", pickle.dumps(Holder(**content)))
    else:
        path.write_text(yaml.safe_dump(content))
    return path


def problem(path, **given):
    with pytest.raises(SettingsError) as caught:
        importing.read(path, given)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_file_for_the_trainer_leaves_its_arguments_open(tmp_path):
    found = importing.read(write(tmp_path / "ds.json", TRAINER_FILE), {})
    assert found.settings == {"strategy": "deepspeed", "zero_stage": 3, "overlap_comm": "off"}
    assert found.left_open["train_micro_batch_size_per_gpu"] == "give micro_batch_size"
    assert found.left_open["zero_optimization.reduce_bucket_size"] == (
        "it follows from the hidden size: give the model"
    )
    assert found.left_open["model"] == "give the model"
    assert found.dropped == {
        "wall_clock_breakdown": "it waits for the GPU inside the timed steps; set profile",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": "dsnb saves no checkpoints",
    }


def test_a_model_gives_numbers_to_what_follows_from_its_hidden_size(tmp_path):
    path = write(tmp_path / "ds.json", TRAINER_FILE)
    found = importing.read(
        path, {"model": "llama-3.1-8b", "precision": "bf16", "micro_batch_size": 2}
    )
    assert found.settings["deepspeed.zero_optimization.reduce_bucket_size"] == 4096 * 4096
    assert found.settings["deepspeed.zero_optimization.stage3_prefetch_bucket_size"] == 15_099_494
    assert found.left_open.keys() == {
        "train_batch_size", "gradient_accumulation_steps", "gradient_clipping", "gpus", "seq_len",
    }  # fmt: skip


DEEPSPEED = {
    "batch": (
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        {"micro_batch_size": 4, "grad_accum": 2, "gpus": 8, "precision": "fp32"},
    ),
    "optimizer on the CPU": (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}},
        {"zero_stage": 2, "offload": "optimizer-cpu", "precision": "fp32"},
    ),
    "former name of offload": (
        {"zero_optimization": {"stage": 2, "cpu_offload": True}},
        {"zero_stage": 2, "offload": "optimizer-cpu", "precision": "fp32"},
    ),
    "all on NVMe": (
        {"zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"},
            "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
        }},
        {"zero_stage": 3, "offload": "all-nvme", "nvme_path": "/nvme", "precision": "fp32"},
    ),
    "autocast": (
        {"torch_autocast": {"enabled": True, "dtype": "float16"}},
        {"precision": "fp16", "mixed_precision": "autocast"},
    ),
    "options of fp16": (
        {"fp16": {"enabled": True, "loss_scale_window": 500}},
        {"precision": "fp16", "deepspeed.fp16.loss_scale_window": 500},
    ),
    "one bucket": (
        {"zero_optimization": {"reduce_bucket_size": 5e8}},
        {"precision": "fp32", "deepspeed.zero_optimization.reduce_bucket_size": 500_000_000},
    ),
    "both buckets": (
        {"zero_optimization": {"reduce_bucket_size": 5e7, "allgather_bucket_size": 5e7}},
        {"precision": "fp32", "bucket_elements": 50_000_000},
    ),
    "Adam": (
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8}}},
        {"precision": "fp32", "optimizer": "adamw", "learning_rate": 1e-3,
         "deepspeed.optimizer.params.betas": [0.9, 0.95]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEEPSPEED)
def test_settings_of_deepspeeds_keys(tmp_path, name):
    config, settings = DEEPSPEED[name]
    found = importing.read(write(tmp_path / "ds.json", config), {})
    assert found.settings == {"strategy": "deepspeed", **settings}


REFUSED = {
    "offload_param": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
        "offload_param is given without offload_optimizer: dsnb offloads optimizer states, or these and parameters "
        "(all-cpu), which is another training; add offload_optimizer, or leave offload_param out",
    ),
    "two places": (
        {"zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"},
        }},
        "optimizer states are offloaded to cpu and parameters to nvme: dsnb offloads both to one place; "
        "name one device",
    ),
    "two formats": (
        {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
        "bf16 and fp16 are both enabled: DeepSpeed takes one of them",
    ),
    "optimizer": (
        {"optimizer": {"type": "Lamb"}},
        "optimizer.type is 'Lamb': dsnb has AdamW, Adafactor and Muon; name one of them",
    ),
    "no sharding": (
        {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}},
        "FSDP's sharding is NO_SHARD, which shards nothing: it is DDP; use distributed_type MULTI_GPU",
    ),
    "offload by FSDP": (
        {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}},
        "FSDP offloads parameters to the host, which dsnb does not measure: leave it out, or use ZeRO 3 and offload",
    ),
    "Megatron": (
        {"distributed_type": "MEGATRON_LM"},
        "distributed_type is 'MEGATRON_LM', which dsnb does not measure: use DEEPSPEED, FSDP or MULTI_GPU",
    ),
    "shared sequences": (
        {"per_device_train_batch_size": 1, "sequence_parallel_size": 4},
        "sequence_parallel_size is 4: dsnb does not measure sequence or context parallelism; set it to 1",
    ),
    "shared sequences of accelerate": (
        {"distributed_type": "FSDP", "parallelism_config": {"parallelism_config_cp_size": 2}},
        "cp_size is 2: dsnb does not measure sequence or context parallelism; set it to 1",
    ),
    "no program": (
        {"a": 1},
        "its keys are of no program that dsnb reads: give DeepSpeed's configuration, accelerate's, arguments of "
        "transformers' Trainer, axolotl or LLaMA-Factory, or a folder with training_args.bin, args.json or "
        "training_args.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused(tmp_path, name):
    config, sentence = REFUSED[name]
    assert problem(write(tmp_path / "config.json", config)) == sentence


def test_a_folder_with_the_files_of_a_recommendation(tmp_path):
    experiment = accepted(OTHERS[0])
    for file, text in files.files(experiment).items():
        (tmp_path / file).write_text(text)
    found = importing.read(tmp_path, {})
    assert accepted(found.settings) == experiment


def test_permission_for_any_optimizer_names_none(tmp_path):
    path = write(
        tmp_path / "ds.json", {"zero_allow_untested_optimizer": True, "bf16": {"enabled": True}}
    )
    found = importing.read(path, {})
    assert found.settings == {"strategy": "deepspeed", "precision": "bf16"}
    assert found.dropped.keys() == {"zero_allow_untested_optimizer"}


def test_keys_that_deepspeed_does_not_know_are_named(tmp_path, monkeypatch):
    says = {
        "comms_config.x": "deepspeed.comms_config is no key of DeepSpeed: did you mean 'comms_logger'?",
        "prescale": "deepspeed.prescale is 3: give a truth value",
    }
    asked = []

    def unknown(stage, keys):
        """Say one thing at a time, as DeepSpeed does."""
        asked.append(stage)
        return [says[key] for key in says if key in keys][:1]

    monkeypatch.setattr(deepspeed_keys, "unknown_keys", unknown)
    config = {
        "zero_optimization": {"stage": 2},
        "comms_config": {"x": 1},
        "prescale": 3,
        "dump_state": True,
        "prescale_gradients": True,
    }
    found = importing.read(write(tmp_path / "ds.json", config), {})
    assert found.settings["deepspeed.prescale_gradients"] is True
    assert found.dropped == {
        "comms_config": "is no key of DeepSpeed: did you mean 'comms_logger'?",
        "prescale": "is 3: give a truth value",
        "dump_state": "it prints the engine",
    }
    assert asked == [2, 2, 2]


def test_a_given_setting_that_contradicts_the_file_is_refused(tmp_path):
    path = write(tmp_path / "ds.json", {"zero_optimization": {"stage": 2}})
    assert problem(path, zero_stage=3) == (
        "zero_stage is 2 by zero_optimization.stage, but 3 by --set zero_stage: correct one of them"
    )
    assert problem(path, zero=3) == "unknown setting 'zero': did you mean 'zero_stage'?"


FSDP = {
    "FULL_SHARD": {"gathered_weights": "pass"},
    "SHARD_GRAD_OP": {"gathered_weights": "micro-batch"},
    2: {"gathered_weights": "micro-batch"},
    "HYBRID_SHARD": {"gathered_weights": "pass", "shard_size": 8},
    "HYBRID_SHARD_ZERO2": {"gathered_weights": "micro-batch", "shard_size": 8},
}


@pytest.mark.parametrize("sharding", FSDP)
def test_sharding_of_fsdp(tmp_path, sharding):
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "num_machines": 2,
        "mixed_precision": "bf16",
        "fsdp_config": {"fsdp_sharding_strategy": sharding, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    }  # fmt: skip
    found = importing.read(write(tmp_path / "accelerate.yaml", config), {})
    ranks = {"strategy": "fsdp", "gpus": 16, "nodes": 2, "precision": "bf16"}
    assert found.settings == {**ranks, **FSDP[sharding]}


def test_accelerates_own_section_and_its_file_of_deepspeed(tmp_path):
    section = {
        "distributed_type": "DEEPSPEED", "num_processes": 8, "num_machines": 1, "mixed_precision": "bf16",
        "deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0, "offload_param_device": "none"},
    }  # fmt: skip
    found = importing.read(write(tmp_path / "accelerate.yaml", section), {})
    assert found.settings == {
        "strategy": "deepspeed", "zero_stage": 3, "gradient_clipping": 1, "precision": "bf16",
        "gpus": 8, "nodes": 1,
    }  # fmt: skip
    section["deepspeed_config"] = {"deepspeed_config_file": "ds.json"}
    path = write(tmp_path / "accelerate.yaml", section)
    missing = importing.read(path, {})
    assert (
        missing.left_open["zero_stage"]
        == "ds.json is not there: import it, too, or give zero_stage"
    )
    write(tmp_path / "ds.json", {"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}})
    found = importing.read(path, {})
    assert (found.settings["zero_stage"], found.settings["precision"]) == (1, "fp16")


AXOLOTL = {
    "base_model": "NousResearch/Meta-Llama-3-8B", "sequence_len": 4096, "sample_packing": True,
    "adapter": "qlora", "load_in_4bit": True, "lora_r": 32, "lora_target_linear": True,
    "gradient_accumulation_steps": 4, "micro_batch_size": 2, "optimizer": "paged_adamw_32bit",
    "learning_rate": 0.0002, "bf16": True, "tf32": False, "gradient_checkpointing": True,
    "flash_attention": True, "deepspeed": "deepspeed_configs/zero2.json", "val_set_size": 0.05,
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B", "stage": "sft", "finetuning_type": "lora", "lora_rank": 8,
    "lora_target": "q_proj,v_proj", "deepspeed": "ds_z2_config.json", "template": "llama3", "cutoff_len": 2048,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True, "flash_attn": "fa2",
}  # fmt: skip


def test_a_file_of_axolotl(tmp_path):
    write(tmp_path / "deepspeed_configs" / "zero2.json", {
        "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
    })  # fmt: skip
    found = importing.read(write(tmp_path / "axolotl.yml", AXOLOTL), {"gpus": 2})
    assert found.settings == {
        "model": "NousResearch/Meta-Llama-3-8B", "strategy": "deepspeed", "zero_stage": 2, "precision": "bf16",
        "activation_checkpointing": True, "optimizer": "adamw", "lora_rank": 32, "lora_targets": "linear",
        "frozen_weights": "nf4", "attention": "sdpa", "seq_len": 4096, "micro_batch_size": 2, "grad_accum": 4,
        "learning_rate": 0.0002, "gpus": 2,
    }  # fmt: skip
    assert found.left_open == {}
    assert found.dropped == {"val_set_size": "no settings of dsnb"}


def test_a_file_of_llama_factory(tmp_path):
    found = importing.read(write(tmp_path / "sft.yaml", FACTORY), {})
    assert found.settings["lora_targets"] == "query-value"
    assert found.settings["activation_checkpointing"] is True  # its default
    assert found.sources["activation_checkpointing"] == "LLaMA-Factory's default"
    assert found.left_open.keys() == {"deepspeed", "padding", "gpus"}


def test_kernels_without_a_counterpart_are_named(tmp_path):
    found = importing.read(
        write(tmp_path / "sft.yaml", {**FACTORY, "enable_liger_kernel": True}), {}
    )
    assert found.dropped == {
        "enable_liger_kernel": "dsnb has no Liger kernels; loss 'chunked' saves the memory of logits as they do",
        "stage, template": "no settings of dsnb",
    }


def test_saved_arguments_of_a_trainer(tmp_path):
    """With DeepSpeed's configuration as the Trainer filled it, and what accelerate knew of the ranks."""
    filled = {
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
    }
    state = Holder(num_processes=8, distributed_type="MULTI_GPU")
    arguments = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0, "bf16": True,
        "deepspeed": "ds.json", "hf_deepspeed_config": Holder(config=filled), "distributed_state": state,
        "optim": "adamw_torch_fused", "logging_steps": 10,
    }  # fmt: skip
    write(tmp_path / "out" / "training_args.bin", arguments)
    shape = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    write(tmp_path / "out" / "config.json", {**shape, "vocab_size": 100})
    found = importing.read(tmp_path / "out", {})
    assert found.settings == {
        "model": str(tmp_path / "out" / "config.json"), "strategy": "deepspeed", "zero_stage": 2, "gpus": 8,
        "precision": "bf16", "micro_batch_size": 4, "grad_accum": 1, "gradient_clipping": 1, "optimizer": "adamw",
    }  # fmt: skip
    assert found.left_open == {"seq_len": "give seq_len"}


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        ("float32", {"precision": "fp32"}),
        ("bfloat16", {"precision": "bf16", "mixed_precision": "none"}),
        (None, {}),
    ],
)
def test_without_mixed_precision_the_weights_say_the_format(tmp_path, dtype, settings):
    write(tmp_path / "args.json", {"per_device_train_batch_size": 4, "bf16": False, "fp16": False})
    write(tmp_path / "config.json", {"model_type": "llama", "torch_dtype": dtype})
    found = importing.read(tmp_path, {"model": "llama-3.1-8b"})
    said = {name: found.settings[name] for name in found.settings if "precision" in name}
    assert said == settings
    assert ("precision" in found.left_open) != bool(settings)


def test_a_preset_is_recognised_by_its_configuration(tmp_path):
    from dsnb.base.formulas.model_shapes import PRESETS

    config = PRESETS["llama-3.1-8b"].config()
    path = write(tmp_path / "config.json", {**config, "max_position_embeddings": 8192})
    assert importing.known_model(path) == "llama-3.1-8b"
    write(path, {**config, "num_hidden_layers": 31})
    assert importing.known_model(path) is None


WRITTEN = [
    {"zero_stage": stage, "offload": offload, **more}
    for stage in (0, 1, 2, 3)
    for offload in ("none", "optimizer-cpu", "all-cpu")
    for more in (
        {},
        {"precision": "fp16", "gradient_clipping": 1.0},
        {"mixed_precision": "autocast", "overlap_comm": "on"},
        {"mixed_precision": "none", "bucket_elements": 2**24},
        {"precision": "fp32", "grad_accum": 4, "optimizer": "muon"},
        {"grad_accum": 4, "zeropp": "weights"},
        {"gradient_checks": "off", "deepspeed": {"zero_optimization": {"reduce_scatter": False}}},
    )
]
OTHERS = [
    {"strategy": "fsdp", "gathered_weights": "micro-batch"},
    {"strategy": "fsdp", "shard_size": 8, "gpus": 16, "nodes": 2},
    {"strategy": "ddp", "gpus": 4, "precision": "fp16"},
    {"strategy": "plain"},
    {"zero_stage": 2, "gpus": 8, "gradient_clipping": 1.0},
]


def accepted(settings):
    """Return the experiment with these settings, or None for a combination that is refused."""
    try:
        return Experiment(**{**ON_GPUS, "gpus": 8, **settings})
    except SettingsError:
        return None


@pytest.mark.draws
def test_what_is_written_for_deepspeed_is_read_back():
    experiments = [experiment for experiment in map(accepted, WRITTEN) if experiment]
    assert len(experiments) > 30
    for experiment in experiments:
        for written in (programs.deepspeed_config, programs.deepspeed_plain):
            found = from_deepspeed.read(json.loads(json.dumps(written(experiment))))
            found.close()
            assert not found.problems
            assert accepted(found.settings) == experiment


@pytest.mark.parametrize("settings", OTHERS)
def test_what_is_written_for_accelerate_is_read_back(settings):
    experiment = accepted({"gpus": 1, **settings})
    config = yaml.safe_load(yaml.safe_dump(programs.accelerate_config(experiment)))
    files = {"deepspeed_accelerate.json": programs.deepspeed_accelerate(experiment)}
    found = from_accelerate.read(config, files.get)
    assert not found.problems
    again = accepted(found.settings)
    assert {name: getattr(again, name) for name in found.settings if "deepspeed." not in name} == {
        name: getattr(experiment, name) for name in found.settings if "deepspeed." not in name
    }
    assert {*settings} <= {*found.settings}


@pytest.mark.parametrize("settings", OTHERS)
def test_what_is_written_for_the_trainer_is_read_back(settings):
    experiment = accepted({
        "gpus": 1, "grad_accum": 2, "activation_checkpointing": True, "learning_rate": 3e-4, **settings,
    })  # fmt: skip
    arguments = {
        **programs.training_arguments(experiment),
        "deepspeed": programs.deepspeed_auto(experiment),
    }
    found = from_arguments.read(arguments)
    found.close()
    assert not found.problems
    assert not found.left_open
    for name, value in found.settings.items():
        assert getattr(experiment, name) == value, name
    known = {
        "grad_accum",
        "activation_checkpointing",
        "learning_rate",
        "micro_batch_size",
        "precision",
    }
    assert known <= found.settings.keys()


@pytest.mark.parametrize("settings", OTHERS)
@pytest.mark.parametrize("name", ["axolotl.yaml", "llamafactory.yaml"])
def test_what_is_written_for_programs_around_the_trainer_is_read_back(tmp_path, settings, name):
    more = {"grad_accum": 2, "activation_checkpointing": True, "lora_rank": 8, "seq_len": 2048}
    experiment = accepted({"gpus": 1, **more, **settings})
    for file, text in files.files(experiment).items():
        (tmp_path / file).write_text(text)
    given = {"model": "llama-3.1-8b", "strategy": experiment.strategy, "gpus": experiment.gpus}
    found = importing.read(tmp_path / name, {**given, "nodes": experiment.nodes})
    for setting, value in found.settings.items():
        assert getattr(experiment, setting) == value, setting
    assert {*more, "precision", "micro_batch_size", "lora_targets"} <= found.settings.keys()
    assert {*found.left_open} <= {"padding"}


def test_the_params_file_can_be_read(tmp_path):
    found = importing.read(write(tmp_path / "ds.json", TRAINER_FILE), {"model": "llama-3.1-8b"})
    path = tmp_path / "params.yaml"
    path.write_text(importing.params_text(found, importing.sweep_name("my ds"), "ds.json"))
    file = read_params(path)
    assert file.name == "my_ds"
    assert file.defaults["zero_stage"] == 3
    assert file.defaults["deepspeed.zero_optimization.stage3_prefetch_bucket_size"] == 15_099_494
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comments[:2] == ["# Imported from ds.json.", "# Left open:"]


@pytest.mark.draws
def test_values_of_any_kind_are_read_or_refused(tmp_path):
    section = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "gradient_clipping": 1.0},
    }
    sharded = {
        "distributed_type": "FSDP",
        "num_processes": 8,
        "num_machines": 2,
        "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"},
        "parallelism_config": {"parallelism_config_cp_size": 1},
    }
    deepspeed = {
        **TRAINER_FILE,
        "optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.95]}},
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 1,
        "tensor_parallel": {"autotp_size": 1},
    }
    for config in (deepspeed, section, sharded, AXOLOTL, FACTORY):
        for key in config:
            for odd in (
                True,
                -1,
                2.5,
                10**30,
                "x",
                [],
                [1, None],
                {},
                {"a": {"b": 1}},
                {"stage": "x"},
            ):
                path = write(tmp_path / "odd.json", {**config, key: odd})
                try:
                    importing.read(path, {})
                except SettingsError as error:
                    assert str(error).count(str(path)) >= 1  # noqa: PT017


def test_files_that_hold_no_configuration(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{")
    assert "cannot be read" in problem(path)
    path.write_text("[]")
    assert "holds no keys" in problem(path)
    path = tmp_path / "training_args.bin"
    path.write_text("no pickle")
    assert "cannot be read as saved arguments" in problem(path)
    path.write_bytes(pickle.dumps([1]))
    assert "holds no saved arguments" in problem(path)
    (tmp_path / "empty").mkdir()
    assert "has no file of arguments" in problem(tmp_path / "empty")


def test_what_only_seems_to_be_of_llama_factory_has_not_its_defaults(tmp_path):
    axolotl = {
        "base_model": "NousResearch/Meta-Llama-3-8B",
        "adapter": "lora",
        "lora_r": 8,
        "bf16": True,
    }
    found = importing.read(write(tmp_path / "axolotl.yml", axolotl), {})
    assert "activation_checkpointing" not in found.settings


@pytest.mark.parametrize(
    ("modules", "targets"),
    [
        (["q_proj", "v_proj"], "query-value"),
        (["q_proj", "o_proj"], "attention"),
        (["q_proj", "up_proj"], "linear"),
        (["qkv_proj"], "linear"),
        (["fc1", "fc2"], None),
        (["query_key_value"], None),
    ],
)
def test_modules_of_other_names_are_no_targets_that_dsnb_knows(tmp_path, modules, targets):
    arguments = {"base_model": "x", "adapter": "lora", "lora_r": 8, "lora_target_modules": modules}
    found = importing.read(write(tmp_path / "axolotl.yml", arguments), {})
    assert found.settings.get("lora_targets") == targets
    assert ("lora_targets" in found.left_open) == (targets is None)


def test_quantization_to_8_bits_is_named(tmp_path):
    found = importing.read(write(tmp_path / "sft.yaml", {**FACTORY, "quantization_bit": 8}), {})
    assert "frozen_weights" not in found.settings
    assert "quantization_bit" in found.dropped


def test_sections_that_stand_at_very_many_places_are_refused(tmp_path):
    """Each section is twice in the next one: twenty of them are a million keys."""
    section = {"a": 1}
    for _ in range(20):
        section = {"a": section, "b": section}
    path = tmp_path / "training_args.bin"
    arguments = SimpleNamespace(per_device_train_batch_size=1, fsdp_config=section)
    path.write_bytes(pickle.dumps(arguments))
    assert "this is no configuration of a training" in problem(path)


def test_many_keys_take_little_time(tmp_path):
    config = {"zero_optimization": {f"key{number}": number for number in range(9_000)}}
    began = time.process_time()
    deepspeed_keys.flattened({"deepspeed": config})
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("named", ["e" * 300, "x\0y"])
def test_a_configuration_that_is_no_name_of_a_file_is_not_looked_for(tmp_path, named):
    path = write(tmp_path / "args.json", {"per_device_train_batch_size": 1, "deepspeed": named})
    assert importing.read(path, {}).settings["micro_batch_size"] == 1


def test_words_of_a_command_line_are_quoted(tmp_path):
    experiment = Experiment(model="gpt2", zero_stage=2, gpus=2)
    words = files.files(experiment, tmp_path / "my plan")["training_arguments.args"]
    assert f"--deepspeed '{tmp_path}/my plan/deepspeed_auto.json'" in words
