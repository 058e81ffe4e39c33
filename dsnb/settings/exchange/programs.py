"""A training's settings as other programs take them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange.facts import ACCELERATE_FILE, AUTO_FILE, facts
from dsnb.settings.exchange.table import Line, lines, nested
from dsnb.settings.experiment import Experiment


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Return the content of `deepspeed.json` for dsnb's own runs; empty for the strategies of torch."""
    if not experiment.parallel_strategy.is_deepspeed:
        return {}
    config = nested(lines("deepspeed", facts(experiment)))
    return deepspeed_keys.merged(config, experiment.deepspeed)


def deepspeed_plain(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize` in another program; empty without DeepSpeed."""
    return _deepspeed(experiment, _of_others(experiment))


def deepspeed_auto(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration for the Trainer, which fills `auto` from its arguments; empty without DeepSpeed.

    Buckets are numbers: for "auto" the Trainer would put the square of the hidden size.
    """
    return _deepspeed(experiment, map(_filled_by_trainer, _of_others(experiment)))


def deepspeed_accelerate(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration for accelerate; empty without DeepSpeed.

    accelerate fills "auto" with a clipping of 1 and no half precision, so there is none. Without
    AdamW it takes the script's own optimizer.
    """
    config = deepspeed_plain(experiment)
    if experiment.optimizer == "adamw":
        config.pop("optimizer", None)
    return config


def _of_others(experiment: Experiment) -> Iterator[Line]:
    """Yield the lines of DeepSpeed's configuration without those that only dsnb's own runs need."""
    for line in lines("deepspeed", facts(experiment)):
        if line.own != "dsnb":
            yield line


def _filled_by_trainer(line: Line) -> Line:
    return replace(line, value="auto") if line.auto else line


def _deepspeed(experiment: Experiment, found: Iterator[Line]) -> dict[str, Any]:
    if not experiment.parallel_strategy.is_deepspeed:
        return {}
    return deepspeed_keys.merged(nested(found), experiment.deepspeed)


def training_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `transformers.TrainingArguments`; with DeepSpeed its file comes on top.

    `deepspeed=` names a file of `deepspeed_auto`, unless `accelerate launch` starts the script.
    """
    return nested(trainer_lines(experiment))


def trainer_lines(experiment: Experiment) -> list[Line]:
    """Return the arguments of the Trainer with their reasons."""
    return list(lines("trainer", facts(experiment)))


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as words of a command line that `HfArgumentParser` reads.

    A true flag has no value: the Trainer takes the word after `--fsdp` for an old option.

    Examples
    --------
    >>> flags({"bf16": True, "max_grad_norm": 0.0, "fsdp_config": {"version": 2}})
    ['--bf16', '--max_grad_norm', '0.0', '--fsdp_config', '{"version":2}']
    """
    words = []
    for name, value in arguments.items():
        words.append(f"--{name}")
        if isinstance(value, str):
            words.append(value)
        elif value is not True:
            words.append(json.dumps(value, separators=(",", ":")))
    return words


def model_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `AutoModelForCausalLM.from_pretrained`."""
    return nested(model_lines(experiment))


def model_lines(experiment: Experiment) -> list[Line]:
    """Return the arguments of the model with their reasons."""
    return list(lines("model", facts(experiment)))


def lora_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `peft.LoraConfig`; empty without LoRA."""
    return nested(lora_lines(experiment))


def lora_lines(experiment: Experiment) -> list[Line]:
    """Return the arguments of peft's adapters with their reasons."""
    return list(lines("lora", facts(experiment)))


def accelerate_config(
    experiment: Experiment, deepspeed_file: str = ACCELERATE_FILE
) -> dict[str, Any]:
    """Return the configuration for `accelerate launch --config_file`.

    Parameters
    ----------
    experiment
        The settings.
    deepspeed_file
        Path of a file of `deepspeed_accelerate`, from where accelerate is started.
    """
    return nested(accelerate_lines(experiment, deepspeed_file))


def accelerate_lines(experiment: Experiment, deepspeed_file: str = ACCELERATE_FILE) -> list[Line]:
    """Return the configuration of accelerate with its reasons."""
    return _with_file("accelerate", experiment, "accelerate_file", deepspeed_file)


def axolotl_lines(experiment: Experiment, deepspeed_file: str = AUTO_FILE) -> list[Line]:
    """Return the lines of axolotl's file with their reasons; `deepspeed_file` is one of `deepspeed_auto`."""
    return _with_file("axolotl", experiment, "auto_file", deepspeed_file)


def llama_factory_lines(experiment: Experiment, deepspeed_file: str = AUTO_FILE) -> list[Line]:
    """Return the lines of LLaMA-Factory's file with their reasons.

    They are the Trainer's arguments but for recomputation, which LLaMA-Factory has words of its
    own for. `deepspeed_file` is one of `deepspeed_auto`.
    """
    shared = []
    for line in trainer_lines(experiment):
        if not line.path.startswith("gradient_checkpointing"):
            shared.append(line)
    return [*shared, *_with_file("llama_factory", experiment, "auto_file", deepspeed_file)]


def _with_file(program: str, experiment: Experiment, name: str, file: str) -> list[Line]:
    """Return the lines of a program that opens DeepSpeed's configuration by a path."""
    known = facts(experiment)
    if known[name]:
        known[name] = file
    return list(lines(program, known))
