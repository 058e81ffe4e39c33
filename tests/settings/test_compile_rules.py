"""Modes of torch.compile: their former values, and where CUDA graphs cannot be right."""

import pytest

from dsnb.errors import SettingsError
from dsnb.settings.derived import compiles_blocks, gathers_blocks
from dsnb.settings.experiment import Experiment

GRAPHS = "compile is 'reduce-overhead', which uses CUDA graphs"


def test_truth_values_are_modes():
    modes = {False: "off", True: "default", "off": "off", "max-autotune": "max-autotune"}
    assert {value: Experiment(device="cpu", compile=value).compile for value in modes} == modes
    assert Experiment.recorded({"compile": True}).compile == "default"
    assert Experiment(device="cpu", compile=True).name.endswith("_compile")
    assert Experiment(device="cpu", compile="reduce-overhead").name.endswith("_compile-reduce-overhead")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"grad_accum": 2},
            f"{GRAPHS}, but grad_accum is 2: a graph owns its gradients and overwrites those of the micro-batch "
            "before; use compile 'default'",
        ),
        (
            {"zero_stage": 3},
            f"{GRAPHS}: ZeRO 3 gathers weights at changing addresses, which a graph cannot; use compile 'default'",
        ),
        (
            {"strategy": "fsdp"},
            f"{GRAPHS}: FSDP gathers weights at changing addresses, which a graph cannot; use compile 'default'",
        ),
        ({"compile": "fast"}, "compile is 'fast': allowed are 'off', 'default', 'reduce-overhead', 'max-autotune' or"),
        (
            {"compile": "deepcompile", "zero_stage": 2},
            "compile is 'deepcompile': it compiles the communication of ZeRO 1 and 3; use zero_stage 1 or 3",
        ),
        (
            {"compile": "off", "loss": "chunked", "pipeline_parallel": 2, "gpus": 2},
            "loss is 'chunked', but pipeline_parallel is set: the last stage computes the loss whole; use 'whole'",
        ),
        (
            {"compile": "default", "compile_unit": "model", "zero_stage": 3, "loss": "chunked"},
            "loss is 'chunked', but the engine compiles the whole model, and a chunked loss computes its",
        ),
        ({"compile": "off", "compile_unit": "block"}, "compile_unit is 'block', but compile is 'off': nothing is"),
        ({"compile_unit": "block"}, "compile_unit is 'block', but compile is 'reduce-overhead': a CUDA graph is of"),
        (
            {"compile": "default", "compile_unit": "model", "strategy": "fsdp"},
            "compile_unit is 'model', but strategy is 'fsdp': its hooks gather weights block by block; use 'block'",
        ),
        (
            {"compile": "default", "zero_stage": 3, "leaf_modules": "none"},
            "leaf_modules is 'none', but blocks are compiled one by one: gathering single layers would break their",
        ),
        (
            {"strategy": "plain", "gpus": 2},
            "gpus is 2, but strategy is 'plain': it is a single process; use gpus 1, or strategy 'ddp'",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(settings, message):
    with pytest.raises(SettingsError) as caught:
        Experiment(device="cpu", **{"compile": "reduce-overhead", "model": "gpt2-tiny", **settings})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "by_blocks", "gathered_whole"),
    [
        ({"zero_stage": 3}, True, True),
        ({"zero_stage": 3, "compile_unit": "model"}, False, False),
        ({"zero_stage": 3, "compile_unit": "model", "leaf_modules": "blocks"}, False, True),
        ({"zero_stage": 3, "compile": "off"}, False, False),
        ({"strategy": "fsdp"}, True, True),
        ({"zero_stage": 2}, False, False),
        ({"strategy": "ddp", "compile_unit": "block"}, True, True),
        ({"zero_stage": 1, "activation_checkpointing": True}, True, True),
        ({"zero_stage": 1, "activation_checkpointing": True, "compile_unit": "model"}, False, False),
        ({"zero_stage": 1, "activation_checkpointing": True, "compile": "reduce-overhead"}, False, False),
    ],
    ids=str,
)
def test_what_gathers_or_recomputes_blocks_is_compiled_by_blocks(settings, by_blocks, gathered_whole):
    settings = Experiment(**{"device": "cpu", "compile": "default", **settings}).model_dump()
    assert (compiles_blocks(settings), gathers_blocks(settings)) == (by_blocks, gathered_whole)
