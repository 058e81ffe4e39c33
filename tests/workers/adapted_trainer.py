"""One rank that trains a tiny model with transformers' Trainer, itself and adapted, and writes down the losses."""

import copy
import functools
import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

import dsnb
from benchmarks import families

LENGTH = 24
WAYS = {
    "own": None,
    "chunked": {"loss": "chunked", "activation_checkpointing": True, "checkpoint_every": 2},
    "compiled": {"compile": "default", "strategy": "ddp"},
}


def rows():
    """Sequences of several lengths, padded on the right, or one on the left."""
    made = []
    for number in range(24):
        torch.manual_seed(number)
        ids = torch.randint(1, 251, (LENGTH,))
        mask = (torch.arange(LENGTH) < LENGTH - number % 5).long()
        if number == 3:
            mask = mask.flip(0)
        labels = ids.masked_fill(mask == 0, -100)
        labels[1:].masked_fill_(mask[:-1] == 0, -100)
        made.append({"input_ids": ids, "labels": labels, "attention_mask": mask})
    return made


def trained(model, asks):
    """Return losses, the loss of an evaluation, and the names and shapes of the saved weights."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=3,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            use_cpu=True,
            report_to="none",
            logging_steps=1,
            save_steps=3,
            gradient_checkpointing=asks,
            disable_tqdm=True,
        )
        data = rows()
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])
        trainer.train()
        evaluated = trainer.evaluate()["eval_loss"]
        saved = {}
        if trainer.is_world_process_zero():
            path = Path(folder, "checkpoint-3", "model.safetensors")
            with safe_open(path, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    saved[name] = weights.get_slice(name).get_shape()
        trainer.accelerator.wait_for_everyone()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"losses": losses, "evaluated": evaluated, "saved": saved}


def main(run_dir):
    """Train in all ways."""
    rank = os.environ["RANK"]
    if os.environ["WORLD_SIZE"] == "1":
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # a script that torchrun did not start
            del os.environ[name]
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    torch.manual_seed(0)
    config = AutoConfig.for_model(**families.configuration("llama"))
    model = AutoModelForCausalLM.from_config(config)
    found = {}
    for name, settings in WAYS.items():
        one = copy.deepcopy(model)
        if settings is not None:
            one = dsnb.adapt(one, settings)
        found[name] = trained(one, asks=name == "chunked")
    if rank == "0":
        Path(run_dir, "result.json").write_text(json.dumps(found))
    return 0
