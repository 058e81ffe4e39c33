"""Scripts that end badly: `python -m tests.workers.recorded_failures FOLDER CASE...`, each on forked ranks.

A case is `loop:value_error:2`: kind of script, what happens in step 3 on the last rank, and ranks. As torchrun does,
the parent stops the other ranks once one has failed.
"""

import gc
import os
import signal
import sys
import time

import deepspeed
import torch
import torch.distributed as dist
import transformers

import dsnb
from dsnb.measure.launcher.local import free_port

BAD_STEP = 3
PREPARED = (
    deepspeed, transformers.Trainer, transformers.TrainingArguments, dsnb.record, dsnb.TrainerCallback,
)  # fmt: skip
"""Imported before the ranks are forked."""


def fork_ranks(case: str) -> int | None:
    """Start the ranks of a case; return the rank in the children, and None in the parent when all have ended."""
    ranks = int(case.split(":")[2])
    port = free_port("127.0.0.1")
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            return rank
        pids.append(pid)
    codes = {}
    while len(codes) < ranks:
        pid, status = os.wait()
        codes[pids.index(pid)] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            time.sleep(0.2)
            for other in set(pids) - {pids[rank] for rank in codes}:
                os.kill(other, signal.SIGTERM)
    print(case, dict(sorted(codes.items())), flush=True)
    return None


def fail(how: str) -> None:
    """End this process, or make its loss useless."""
    if how == "value_error":
        raise ValueError("a bad batch")
    if how == "out_of_memory":
        raise torch.OutOfMemoryError("Tried to allocate 4096 bytes")
    if how == "exit":
        sys.exit(3)
    number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}[how]
    os.kill(os.getpid(), number)
    time.sleep(5.0)


class Failing(transformers.GPT2LMHeadModel):
    """A model that ends its training in a forward pass."""

    how = ""
    passes = 0

    def forward(self, *inputs, **named):
        self.passes += 1
        if self.how and self.passes == BAD_STEP:
            if self.how != "nan":
                fail(self.how)
            with torch.no_grad():
                self.transformer.wte.weight.fill_(torch.nan)
        return super().forward(*inputs, **named)


def train(kind: str, how: str, folder: str, rank: int, ranks: int) -> None:
    """Train six steps in a Trainer or a loop of its own; the last rank fails."""
    size = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    special = {"bos_token_id": None, "eos_token_id": None}
    model = Failing(transformers.GPT2Config(**size, **special))
    if rank == ranks - 1:
        model.how = how
    ids = torch.ones(8, dtype=torch.long)
    if kind == "trainer":
        arguments = transformers.TrainingArguments(
            f"{folder}/out", max_steps=6, per_device_train_batch_size=2, use_cpu=True, logging_steps=1,
            report_to="none", disable_tqdm=True, save_strategy="no", remove_unused_columns=False,
        )  # fmt: skip
        rows = [{"input_ids": ids, "labels": ids}] * 64
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(dsnb.TrainerCallback(f"{folder}/run1", warmup_steps=1))
        trainer.train()
        return
    if ranks > 1:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with dsnb.record(f"{folder}/run1", model=model, warmup_steps=1) as run:
        for _ in range(6):
            batch = ids.expand(2, 8)
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)


def main(folder: str, cases: list[str]) -> None:
    """Run each case in processes of its own."""
    torch.set_num_threads(1)
    gc.freeze()  # else each rank takes seconds to end: it copies and frees every page that was imported
    for case in cases:
        rank = fork_ranks(case)
        if rank is not None:
            kind, how, ranks = case.split(":")
            train(kind, how, f"{folder}/{case.replace(':', '_')}", rank, int(ranks))
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
