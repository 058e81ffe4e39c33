"""A rank of `benchmarks.families`: one kind of model, trained with every strategy in turn."""

import functools
import gc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch  # replaces functions of libraries temporarily

import torch
from torch import Tensor
from transformers import AttentionInterface

from benchmarks.families import GENERATED, STRATEGIES
from dsnb.base.files import json_files
from dsnb.measure.train import over_ranks, worker
from dsnb.measure.train.data import Batches, batches
from dsnb.models import attention, build
from dsnb.models.attention import KernelWatch, whole_sequences
from dsnb.models.compile import compiled_graphs
from dsnb.models.loss import CausalLoss, chunkable
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

STEPS = 5
EAGER: dict[str, Any] = {"compile": "off", "loss": "whole", "attention": "eager"}


def main(run_dir: str) -> int:
    """Train one rank and return its exit code."""
    torch._dynamo.config.automatic_dynamic_shapes = False
    return worker.run_rank(run_dir, try_all)


def try_all(run: RunPaths, experiment: Experiment, *_: Any) -> None:
    """Train with every strategy and write, on rank 0, what the model can do and how far losses differ."""
    device = worker.set_up(experiment)
    if build.model_config(experiment).model_type not in GENERATED:
        torch.compile = functools.partial(torch.compile, backend="aot_eager")
    with whole_sequences():
        plain = experiment.model_copy(update={**STRATEGIES["plain"], **EAGER})
        expected = losses_of(plain, device)
        row = properties(plain.model_copy(update={"attention": "auto"}), device)
        changes = {"loss": row["loss"] if row["loss"] == "chunked" else "whole"}
        for name, strategy in STRATEGIES.items():
            chosen = experiment.model_copy(update={**strategy, **changes})
            row[name] = difference(lambda chosen=chosen: losses_of(chosen, device), expected)
            gc.collect()
            if worker.rank() == 0:
                json_files.write_json(run.dir / "family.json", row)
    if not compiled_graphs():
        raise RuntimeError("nothing was compiled")
    torch.distributed.destroy_process_group()


def losses_of(experiment: Experiment, device: torch.device) -> Tensor:
    """Return the mean loss of each step; one process trains on the sequences of both ranks."""
    trainer = worker.make_trainer(experiment, deepspeed_config(experiment), device)
    vocab = trainer.config.vocab_size
    ranks = [worker.rank()]
    if experiment.strategy == "plain":
        ranks = [0, 1]
    data: list[Batches] = []
    for rank in ranks:
        data.append(
            batches(
                experiment.model_copy(update={"gpus": 2, "strategy": "ddp"}), vocab, rank, device
            )
        )
    losses = []
    for step in range(STEPS):
        micro_batches = [ids for of_rank in data for ids in of_rank(step)]
        losses.append(trainer.step(micro_batches)[0])
    return torch.tensor(over_ranks.mean_of_ranks(torch.stack(losses)))


def difference(train: Callable[[], Tensor], expected: Tensor) -> Any:
    """Return the largest relative difference of losses, or the error instead of them."""
    try:
        return float(((train() - expected) / expected).abs().max())
    except Exception as error:  # whatever a strategy cannot do with a model
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"


def properties(experiment: Experiment, device: torch.device) -> dict[str, Any]:
    """Return the attention of a model, in how many of its layers it is given a mask, and how its loss is computed."""
    masks = []

    def watched(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        masks.append(mask)
        return fused(module, query, key, value, mask, **options)

    known = AttentionInterface._global_mapping
    fused = known[attention.CAUSAL]
    model = build.build(experiment, {}, device)
    ids = torch.randint(3, model.config.vocab_size, (2, experiment.seq_len))
    kernel = KernelWatch()
    with patch.dict(known, {attention.CAUSAL: watched}), kernel.watching():
        CausalLoss(model)(ids)
    try:
        chunkable(model)
        loss = "chunked"
    except ValueError as error:
        loss = str(error)
    given = sum(mask is not None for mask in masks)
    return {
        "attention": f"{model.config._attn_implementation} ({kernel.kernel})",
        "masks": f"{given} of {len(masks)}" if masks else "",
        "loss": loss,
    }
