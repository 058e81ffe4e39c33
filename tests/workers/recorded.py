"""A rank of trainings that are recorded, a run folder each."""

import os
from pathlib import Path

import accelerate
import deepspeed
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard

import dsnb

deepspeed.ops.__compatible_ops__ = {}  # else it compiles an operation that is never used
VOCABULARY = 64
LENGTH = 16
STEPS = 5
OWN = {"warmup_steps": 2, "optimizer": "adamw"}


def small_model():
    """Return a model of two blocks, the same on every rank."""
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": VOCABULARY, "n_positions": 32}
    special = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **special))


def batch(length=LENGTH):
    """Return two sequences of token ids."""
    return torch.randint(VOCABULARY, (2, length))


def deepspeed_auto(stage):
    """Return a configuration with `auto` for what the Trainer's arguments say."""
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {**dict.fromkeys(names, "auto"), "zero_optimization": {"stage": stage}}


def train(folder, stage=None):
    """Train with transformers' Trainer, by itself or with DeepSpeed."""
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(VOCABULARY, (64, LENGTH))]
    arguments = transformers.TrainingArguments(
        str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, logging_steps=1, report_to="none", disable_tqdm=True, save_strategy="no",
        deepspeed=None if stage is None else deepspeed_auto(stage),
    )  # fmt: skip
    trainer = transformers.Trainer(small_model(), arguments, train_dataset=rows)
    trainer.add_callback(dsnb.TrainerCallback(folder / "run1", warmup_steps=2))
    trainer.train()


def loop(model, run, lengths=(LENGTH,) * STEPS):
    """Train in a loop of torch."""
    optimizer = torch.optim.AdamW(model.parameters())
    for length in lengths:
        ids = batch(length)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss, grad_norm=norm)


def main(run_dir):
    """Train in every way."""
    home = Path(run_dir) / "out"
    torch.set_num_threads(1)
    os.environ["TORCHELASTIC_RUN_ID"] = "none"  # as torchrun does
    train(home / "trainer_ddp")
    for stage in range(4):
        train(home / f"trainer_zero{stage}", stage)
    wrapped = torch.nn.parallel.DistributedDataParallel(small_model())
    with dsnb.record(home / "ddp/run1", model=wrapped, **OWN) as run:
        loop(wrapped, run)
    padded = [LENGTH + step + 4 * dist.get_rank() for step in range(STEPS)]
    with dsnb.record(home / "padded/run1", model=wrapped.module, **OWN) as run:
        loop(wrapped, run, padded)
    sharded = small_model()
    for block in (*sharded.transformer.h, sharded):
        fully_shard(block)
    with dsnb.record(home / "fsdp/run1", model=sharded, **OWN) as run:
        loop(sharded, run)
    train_engine(home / "engine/run1")
    train_accelerated(home / "accelerate/run1")
    dist.destroy_process_group()
    return 0


def train_engine(run_dir):
    """Train DeepSpeed's engine, and call `step` in every micro-batch."""
    config = deepspeed_auto(1) | {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
    }  # fmt: skip
    model = small_model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config
    )
    with dsnb.record(run_dir, model=engine, warmup_steps=1, steps=3) as run:
        while True:
            ids = batch()
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            if run.step(tokens=ids.numel(), loss=loss):
                break


def train_accelerated(run_dir):
    """Train in a loop with accelerate, which accumulates."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    with dsnb.record(run_dir, model=model, warmup_steps=1) as run:
        for _ in range(8):
            with accelerator.accumulate(model):
                ids = batch()
                accelerator.backward(model(input_ids=ids, labels=ids).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                run.step()
