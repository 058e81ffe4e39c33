"""One run of `benchmarks.trainers` with transformers' Trainer or a loop of plain torch, in one rank.

All start with dsnb's weights and train on dsnb's tokens, so that losses are comparable. Tokens/s are
those of the timed steps by the wall clock, with the device idle at both ends.
"""

import tempfile
import time
from typing import Any

import deepspeed
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.initialization import no_init_weights

from benchmarks import gpt2_loop
from benchmarks.trainers import (
    ADAPTED,
    CLIPPING,
    RATE,
    WARMUP,
    Record,
    Run,
    first_and_mean,
    make_rank,
    recommendation,
    training_of,
)
from dsnb.base.formulas import metrics
from dsnb.base.system.hardware import GIB
from dsnb.measure.train.data import SYNTHETIC_STEPS, batches
from dsnb.models.adapt import adapt
from dsnb.models.build import init_weights, model_config
from dsnb.settings.exchange.programs import training_arguments
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

TRAINER_OPTIONS: dict[str, dict[str, Any]] = {
    "trainer": {},
    "compile": {"torch_compile": True},
    "liger": {"use_liger_kernel": True},
    "liger_compile": {"use_liger_kernel": True, "torch_compile": True},
}
AUTO = "auto"
ZERO: dict[str, dict[str, Any]] = {
    "zero1": {"stage": 1},
    "zero2": {
        "stage": 2,
        "overlap_comm": True,
        "reduce_scatter": True,
        "contiguous_gradients": True,
        "allgather_partitions": True,
        "allgather_bucket_size": 5e8,
        "reduce_bucket_size": 5e8,
    },
    "zero3": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": AUTO,
        "stage3_prefetch_bucket_size": AUTO,
        "stage3_param_persistence_threshold": AUTO,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
    },
}
"""DeepSpeed's ZeRO in the examples of transformers' documentation, without offload."""


class Tokens(Dataset[dict[str, Tensor]]):
    """dsnb's synthetic sequences in the order of steps; after `SYNTHETIC_STEPS` steps they repeat."""

    def __init__(self, ids: Tensor, length: int) -> None:
        self.ids = ids
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index % len(self.ids)]
        return {"input_ids": ids, "labels": ids}


class Window:
    """Times the steps after the warm-up, each of `tokens` tokens."""

    def __init__(self, run: Run, tokens: int) -> None:
        self.tokens = tokens
        self.first = WARMUP
        self.last = WARMUP + run.task.steps
        self.is_cuda = run.device == "cuda"
        self.began_s = 0.0
        self.ended_s = 0.0

    def after_step(self, step: int) -> None:
        """Note the time if a step, counted from 1, is at an end of the window."""
        if step == self.first:
            self.began_s = self._idle_s()
        if step == self.last:
            self.ended_s = self._idle_s()

    def figures(self) -> Record:
        """Return speed, and the peaks of memory of the whole training on this rank."""
        wall_s = self.ended_s - self.began_s
        steps = self.last - self.first
        speed = metrics.tokens_per_s(self.tokens, [wall_s / steps] * steps)
        figures: Record = {"tokens_per_s": speed, "step_s": wall_s / steps}
        if self.is_cuda:
            figures["peak_allocated_gib"] = torch.cuda.max_memory_allocated() / GIB
            figures["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
        return figures

    def _idle_s(self) -> float:
        """Return the time once the device is idle."""
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class WindowCallback(TrainerCallback):
    """Tells a window when transformers' Trainer has ended a step."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the time after an optimizer step."""
        self.window.after_step(state.global_step)


def build_model(experiment: Experiment, device: torch.device) -> PreTrainedModel:
    """Return the model as transformers has it, in fp32, partitioned if DeepSpeed's ZeRO 3 is active."""
    config = model_config(experiment)
    with no_init_weights(), device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    init_weights(model, experiment.seed)
    model.tie_weights()
    return model


def micro_batches(experiment: Experiment, vocab: int) -> list[Tensor]:
    """Return the micro-batches of all ranks in host memory, step by step, until they repeat."""
    host = torch.device("cpu")
    ranks = [batches(experiment, vocab, rank, host) for rank in range(experiment.gpus)]
    return [ids for step in range(SYNTHETIC_STEPS) for rank in ranks for ids in rank(step)]


def deepspeed_options(way: str, device: str) -> dict[str, Any]:
    """Return DeepSpeed's configuration with all values that the Trainer can fill in left to it."""
    optimizer: Record = {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO}
    if device == "cpu":
        optimizer["torch_adam"] = True  # DeepSpeed would compile its own for a minute
    return {
        "bf16": {"enabled": AUTO},
        "optimizer": {"type": "AdamW", "params": optimizer},
        "zero_optimization": ZERO[way],
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
    }


def trainer_options(run: Run) -> dict[str, Any]:
    """Return the arguments of the Trainer that depend on the way: those that dsnb writes, or others."""
    if run.way in ADAPTED:
        return training_arguments(recommendation(run))
    options = TRAINER_OPTIONS.get(run.way)
    if options is None:
        options = {"deepspeed": deepspeed_options(run.way, run.device)}
    first_beta, second_beta = ADAMW["betas"]
    return {
        "per_device_train_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.grad_accum,
        "bf16": run.device == "cuda",
        "use_cpu": run.device == "cpu",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta1": first_beta,
        "adam_beta2": second_beta,
        "adam_epsilon": ADAMW["eps"],
        "weight_decay": ADAMW["weight_decay"],
        "max_grad_norm": CLIPPING,
        **options,
    }


def with_trainer(run: Run) -> Record:
    """Train with transformers' Trainer."""
    experiment = training_of(run)
    steps = WARMUP + run.task.steps
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        train_sampling_strategy="sequential",
        logging_first_step=True,
        logging_steps=steps,  # reading a loss waits for the device: only outside of the window
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
        **trainer_options(run),
    )
    model = build_model(experiment, arguments.device)
    if run.way == "adapt":
        model = adapt(model, recommendation(run))
        print(model.dsnb_applied)
    window = Window(run, experiment.tokens_per_step)
    ids = torch.cat(micro_batches(experiment, model.config.vocab_size))
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Tokens(ids, steps * experiment.tokens_per_step // run.task.seq_len),
        callbacks=[WindowCallback(window)],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {**window.figures(), "loss_first": losses[0], "loss_mean": losses[1]}


def with_gpt2_loop(run: Run) -> Record:
    """Train with a loop of plain torch."""
    experiment = training_of(run)
    source = build_model(experiment, torch.device(run.device))
    model = gpt2_loop.with_weights_of(source)
    ids = micro_batches(experiment, source.config.vocab_size)
    del source
    options = {key: ADAMW[key] for key in ("betas", "eps")}
    optimizer = gpt2_loop.make_optimizer(model, RATE, ADAMW["weight_decay"], **options)
    if run.device == "cuda":
        ids = [some.pin_memory() for some in ids]
    each = run.grad_accum
    in_steps = [ids[first : first + each] for first in range(0, len(ids), each)]
    steps = [in_steps[step % SYNTHETIC_STEPS] for step in range(WARMUP + run.task.steps)]
    window = Window(run, experiment.tokens_per_step)
    losses = gpt2_loop.train(model, optimizer, steps, CLIPPING, window.after_step)
    return {**window.figures(), **first_and_mean(losses)}


def main(run: Run) -> Record:
    """Train in the way of a run."""
    if run.device == "cpu":
        deepspeed.ops.__compatible_ops__ = {}  # it would compile an op for a minute
    train = with_gpt2_loop if run.way == "gpt2_loop" else with_trainer
    return train(run)


if __name__ == "__main__":
    make_rank(main)
