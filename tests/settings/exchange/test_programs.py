"""What other programs are told: they accept it, and it gives the engine that the settings describe."""

import itertools
import json
import runpy

import pytest
import yaml

from dsnb.base.errors import SettingsError
from dsnb.settings import exchange
from dsnb.settings.exchange import files
from dsnb.settings.experiment import Experiment
from tests.support.ranks import run_ranks

SMALL = {
    "model": "gpt2-tiny",
    "device": "cpu",
    "gpus": 2,
    "micro_batch_size": 2,
    "grad_accum": 2,
    "seq_len": 16,
}
ON_GPUS = {**SMALL, "device": "cuda", "model": "gpt2-xl", "gpus": 8}
TRAINED = [
    {"zero_stage": 0},
    {"zero_stage": 1, "precision": "fp32", "gradient_clipping": 0.5},
    {"zero_stage": 2, "mixed_precision": "autocast"},
    {"zero_stage": 3, "activation_checkpointing": True, "checkpoint_every": 2},
    {"strategy": "ddp", "bucket_elements": 1_000_000},
]


def accepted():
    """Yield every strategy and precision that the rules allow."""
    strategies = [{"strategy": name} for name in ("plain", "ddp", "fsdp")]
    strategies += [{"zero_stage": stage} for stage in range(4)]
    formats = itertools.product(("fp32", "bf16", "fp16"), ("native", "autocast", "none"))
    for strategy, (precision, mixed) in itertools.product(strategies, formats):
        settings = {**SMALL, **strategy, "precision": precision, "mixed_precision": mixed}
        if strategy.get("strategy") == "plain":
            settings["gpus"] = 1
        try:
            yield Experiment(**settings)
        except SettingsError:
            continue


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """Give the files to transformers and train with some, on two ranks; return what rank 0 found."""
    root = tmp_path_factory.mktemp("files")
    for experiment in accepted():
        files.write(experiment, root / "accepted" / experiment.name)
    for settings in TRAINED:
        experiment = Experiment(**{**SMALL, **settings})
        files.write(experiment, root / "trained" / experiment.name)
    printed = run_ranks("tests.workers.written_files", root)
    (found,) = (line for line in printed.splitlines() if line.startswith('{"accepted"'))
    return json.loads(found)


@pytest.mark.process
def test_the_trainer_accepts_every_strategy_and_precision_and_fills_deepspeeds_values(used):
    assert len(used["accepted"]) == len(list(accepted())) > 25
    assert {name: wrong for name, wrong in used["accepted"].items() if wrong} == {}


@pytest.mark.process
def test_the_trainer_trains_with_the_wanted_engine(used):
    """The ranks compare DeepSpeed's engine with the settings, as those of dsnb's runs do."""
    zero0, zero1, zero2, zero3, ddp = (
        used["trained"][Experiment(**{**SMALL, **settings}).name] for settings in TRAINED
    )
    wrappers = [one["wrapper"] for one in (zero0, zero1, zero2, zero3, ddp)]
    assert wrappers == ["DeepSpeedEngine"] * 4 + ["DistributedDataParallel"]
    formats = [one["mixed_precision"] for one in (zero0, zero1, zero2, zero3, ddp)]
    assert formats == ["bf16", "no", "no", "bf16", "bf16"]
    assert all(3 < one["loss"] < 5 for one in used["trained"].values())  # of 64 words: 4.2
    assert zero0["recomputed"] == [False, False]
    assert zero3["recomputed"] == [True, False]  # every second block


VARIED = [
    {},
    {"zero_stage": 3, "offload": "all-cpu", "compile": "default", "loss": "chunked"},
    {"strategy": "ddp", "compile": "reduce-overhead", "grad_accum": 1, "learning_rate": 1e-8},
    {"strategy": "fsdp", "shard_size": 4, "activation_checkpointing": True},
    {"strategy": "fsdp", "lora_rank": 8, "mixed_precision": "autocast", "attention": "eager"},
    {"strategy": "plain", "gpus": 1, "optimizer": "adamw-8bit", "mixed_precision": "none"},
]


@pytest.mark.parametrize("settings", VARIED, ids=str)
def test_files_with_comments_say_what_the_tables_say(settings, tmp_path):
    experiment = Experiment(**{**ON_GPUS, **settings})
    files.write(experiment, tmp_path)
    module = runpy.run_path(str(tmp_path / "training_arguments.py"))
    arguments = exchange.training_arguments(experiment)
    if experiment.parallel_strategy.is_deepspeed:
        arguments["deepspeed"] = str(tmp_path / "deepspeed_auto.json")
    assert module["arguments"] == arguments
    assert module["model_arguments"] == exchange.model_arguments(experiment)
    assert module.get("lora_arguments", {}) == exchange.lora_arguments(experiment)
    words = (tmp_path / "training_arguments.args").read_text().split()
    assert words == exchange.flags(arguments)
    config = yaml.safe_load((tmp_path / "accelerate.yaml").read_text())
    path = str(tmp_path / "deepspeed_accelerate.json")
    assert config == exchange.accelerate_config(experiment, path)
    for name in ("axolotl.yaml", "llamafactory.yaml"):
        shared = yaml.safe_load((tmp_path / name).read_text())
        assert shared["learning_rate"] == experiment.learning_rate
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert Experiment(**settings) == experiment


def test_deepspeeds_file_for_the_trainer_says_auto_where_the_trainer_decides():
    keys = {"zero_optimization": {"round_robin_gradients": True}}
    experiment = Experiment(**ON_GPUS, zero_stage=2, deepspeed=keys)
    config = exchange.deepspeed_auto(experiment)
    assert "reduce_bucket_size" not in config["zero_optimization"]  # DeepSpeed's default, 5e8
    assert config["zero_optimization"]["round_robin_gradients"]
    assert config["optimizer"]["params"]["lr"] == config["bf16"]["enabled"] == "auto"
    buckets = exchange.deepspeed_auto(Experiment(**ON_GPUS, zero_stage=2, bucket_elements=10**7))
    assert buckets["zero_optimization"]["reduce_bucket_size"] == 10**7
    for config in (exchange.deepspeed_plain(experiment), exchange.deepspeed_accelerate(experiment)):
        assert "auto" not in json.dumps(config)
        assert not {"steps_per_print", "wall_clock_breakdown", "timers"} & config.keys()


@pytest.mark.parametrize(
    ("program", "settings", "missing"),
    [
        ("trainer", {"loss": "chunked"}, {"loss"}),
        ("trainer", {"compile": "default"}, set()),  # whole: torch_compile
        ("trainer", {"compile": "default", "zero_stage": 3}, {"compile"}),  # by block
        ("trainer", {"strategy": "fsdp", "tensor_parallel": 5, "gpus": 10}, {"tensor_parallel", "fsdp"}),
        ("trainer", {"strategy": "fsdp", "mixed_precision": "autocast"}, {"mixed_precision", "fsdp"}),
        ("trainer", {"strategy": "ddp", "gradient_compression": "bf16"}, {"gradient_compression", "ddp"}),
        ("trainer", {"strategy": "fsdp", "shard_size": 4}, {"shard_size", "fsdp"}),
        ("accelerate", {"strategy": "fsdp", "shard_size": 4}, {"fsdp", "dtype", "arguments"}),
        ("axolotl", {"activation_checkpointing": True, "checkpoint_ops": "cheap"}, set()),
        ("llama_factory", {"activation_checkpointing": True, "checkpoint_every": 2}, {"checkpoint_every"}),
        ("deepspeed", {"activation_checkpointing": True}, {"activation_checkpointing", "dtype"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # sets have no order
)  # fmt: skip
def test_what_a_program_is_not_told_is_named(program, settings, missing):
    experiment = Experiment(**{**ON_GPUS, **settings})
    found = {one.name for one in files.not_said(experiment, program)}
    assert found - {"mask", "lengths", "dropout", "allocator"} == missing
    assert {"mask", "lengths", "dropout", "allocator"} <= found


def test_a_strategy_of_another_package_is_named():
    experiment = Experiment(**ON_GPUS).model_copy(update={"strategy": "rounded"})
    sentences = [one.text for one in files.not_said(experiment)]
    assert "The strategy rounded is not one of the program's." in sentences
