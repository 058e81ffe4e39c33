"""A training with transformers' Trainer that `own_script.yaml` sweeps; put your own script in its place.

What makes it one that dsnb can measure is one line: `trainer.add_callback(dsnb.TrainerCallback())`.
"""

from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

import dsnb


@dataclass
class Arguments:
    """The arguments that are not the Trainer's."""

    layers: int = field(default=2, metadata={"help": "blocks of the model"})
    hidden: int = field(default=64, metadata={"help": "hidden size of the model"})
    seq_len: int = field(default=64, metadata={"help": "tokens of a sequence"})
    attn_implementation: str = field(default="sdpa", metadata={"help": "eager or sdpa"})


def main() -> None:
    """Train a small GPT-2 on random tokens."""
    own, arguments = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
    config = GPT2Config(
        n_layer=own.layers,
        n_embd=own.hidden,
        n_head=2,
        vocab_size=512,
        n_positions=own.seq_len,
        attn_implementation=own.attn_implementation,
    )
    tokens = torch.randint(config.vocab_size, (256, own.seq_len))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows)
    trainer.add_callback(dsnb.TrainerCallback())
    trainer.train()


if __name__ == "__main__":
    main()
