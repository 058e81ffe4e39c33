"""A training's settings as other programs take them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange.facts import DEEPSPEED_FILE, facts
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
    """Yield the lines of DeepSpeed's configuration without those of dsnb's measurements."""
    for line in lines("deepspeed", facts(experiment)):
        if line.own != "measuring":
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
    return nested(lines("trainer", facts(experiment)))


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as words of a command line that `HfArgumentParser` reads.

    Examples
    --------
    >>> flags({"bf16": True, "max_grad_norm": 0.0, "fsdp_config": {"version": 2}})
    ['--bf16', 'true', '--max_grad_norm', '0.0', '--fsdp_config', '{"version": 2}']
    """
    words = []
    for name, value in arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name}", shown]
    return words


def model_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `AutoModelForCausalLM.from_pretrained`."""
    return nested(lines("model", facts(experiment)))


def lora_arguments(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of `peft.LoraConfig`; empty without LoRA."""
    return nested(lines("lora", facts(experiment)))


def accelerate_config(
    experiment: Experiment, deepspeed_file: str = DEEPSPEED_FILE
) -> dict[str, Any]:
    """Return the configuration for `accelerate launch --config_file`.

    Parameters
    ----------
    experiment
        The settings.
    deepspeed_file
        Path of a file of `deepspeed_accelerate`, from where accelerate is started.
    """
    known = facts(experiment)
    if known["deepspeed_file"]:
        known["deepspeed_file"] = deepspeed_file
    return nested(lines("accelerate", known))
