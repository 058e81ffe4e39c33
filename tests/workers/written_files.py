"""A rank that trains by written files, as a user's script would: FOLDER has a folder for each setting.

The settings of `ACCEPTED` are only given to `TrainingArguments`. Rank 0 prints what it found as JSON.
"""

import json
import os
import runpy
from pathlib import Path
from typing import Any

import deepspeed
import torch
from accelerate.state import AcceleratorState
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

from dsnb.measure.train.engine import check
from dsnb.settings import exchange
from dsnb.settings.exchange import files
from dsnb.settings.experiment import Experiment

deepspeed.ops.__compatible_ops__ = {}  # else it compiles an operation that is never used
TINY = GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16)
OPTIONS = {"max_steps": 1, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
DATA = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(16)]


def differences(wanted: Any, found: Any) -> bool:
    """Return whether a configuration lacks something that is wanted, or has it otherwise."""
    if isinstance(wanted, dict):
        return any(differences(wanted[name], found.get(name)) for name in wanted)
    return bool(wanted != found)


def accept(experiment: Experiment, folder: Path) -> str:
    """Give the written arguments to `TrainingArguments`, as a dict and as flags; return what is wrong."""
    flags = (folder / files.WORDS_FILE).read_text().split()
    parser = HfArgumentParser([TrainingArguments])
    for place in ("flags", "module"):
        if place == "module":
            written = runpy.run_path(str(folder / files.ARGUMENTS_FILE))["arguments"]
            arguments = TrainingArguments(output_dir=str(folder / "out"), **written)
        else:
            output = ["--output_dir", str(folder / "out")]
            (arguments,) = parser.parse_args_into_dataclasses([*flags, *output])
        if arguments.deepspeed:
            filled = arguments.hf_deepspeed_config.config
            if differences(exchange.deepspeed_plain(experiment), filled):
                return f"{place}: {filled}"
    return ""


def train(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Train one step with the Trainer; a DeepSpeed engine is compared with the settings as in dsnb's runs."""
    AcceleratorState._reset_state()
    written = runpy.run_path(str(folder / files.ARGUMENTS_FILE))
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), **{**written["arguments"], **OPTIONS}
    )
    dtype = getattr(torch, written["model_arguments"]["dtype"])
    model = AutoModelForCausalLM.from_config(TINY, dtype=dtype)
    trainer = Trainer(model, arguments, train_dataset=DATA)
    trainer.train()
    if experiment.parallel_strategy.is_deepspeed:
        check(experiment, trainer.deepspeed)
    blocks = model.transformer.h
    return {
        "wrapper": type(trainer.model_wrapped).__name__,
        "mixed_precision": trainer.accelerator.mixed_precision,
        "recomputed": [bool(block.gradient_checkpointing) for block in blocks],
        "loss": trainer.state.log_history[-1]["train_loss"],
    }


def main(run_dir: str) -> int:
    """Go through the folders."""
    found: dict[str, Any] = {"accepted": {}, "trained": {}}
    for settings in sorted(Path(run_dir).glob("*/*/settings.json")):
        os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)  # of the setting before
        experiment = Experiment(**json.loads(settings.read_text()))
        folder = settings.parent
        kind = folder.parent.name
        found[kind][folder.name] = {"accepted": accept, "trained": train}[kind](experiment, folder)
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    return 0
