"""Batches of token ids that do not depend on how a step is divided into ranks and micro-batches.

Sequence i of a step's global batch depends on the seed and the step only. Data-parallel rank r
takes the r-th slice of the step, and its micro-batches are slices of that. Losses are therefore
comparable across strategies, rank counts and gradient accumulation.
"""

import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dsnb.settings.experiment import Experiment

STDLIB_BYTES = 4 * 2**20
SYNTHETIC_STEPS = 4
"""Number of steps after which synthetic data repeats: more than one batch, in little memory."""
Batches = Callable[[int], list[torch.Tensor]]
"""Returns a step's micro-batches on the rank's device, int64, each of shape (micro_batch_size,
seq_len)."""


def batches(experiment: Experiment, vocab: int, rank: int, device: torch.device) -> Batches:
    """Return the batches for these settings: uniformly random tokens, or sequences at random positions of one text."""
    generator = torch.Generator().manual_seed(experiment.seed)
    length = experiment.seq_len
    place = data_rank(experiment, rank)
    step_shape = (experiment.data_parallel, experiment.grad_accum, experiment.micro_batch_size)
    if experiment.data == "synthetic":
        shape = (SYNTHETIC_STEPS, *step_shape, length)
        ids = torch.randint(vocab, shape, generator=generator)[:, place].to(device)
        return lambda step: list(ids[step % SYNTHETIC_STEPS])
    tokens = tokenize(experiment)
    check_tokens(experiment, tokens, vocab)
    steps = experiment.warmup_steps + experiment.steps
    starts = torch.randint(len(tokens) - length + 1, (steps, *step_shape), generator=generator)
    starts = starts[:, place].to(device)
    text = torch.from_numpy(tokens.astype(np.int64)).to(device)
    offsets = torch.arange(length, device=device)
    return lambda step: list(text[starts[step][..., None] + offsets])


def check_tokens(experiment: Experiment, tokens: np.ndarray, vocab: int) -> None:
    """Raise ValueError if a text is shorter than a sequence, or has tokens that the model does not know."""
    if len(tokens) < experiment.seq_len:
        raise ValueError(
            f"data {experiment.data!r} has {len(tokens)} tokens: seq_len {experiment.seq_len} needs more text"
        )
    largest = int(tokens.max())
    if largest >= vocab:
        raise ValueError(
            f"tokenizer {experiment.tokenizer!r} gives token {largest}: the model's vocabulary ends at {vocab - 1}"
        )


def data_rank(experiment: Experiment, rank: int) -> int:
    """Return the data-parallel rank of a rank.

    Ranks are numbered as in DeepSpeed: tensor-parallel ranks are adjacent, pipeline stages are
    farthest apart.
    """
    return rank // experiment.tensor_parallel % experiment.data_parallel


def tokenize(experiment: Experiment) -> np.ndarray:
    """Return the tokens of the experiment's text, shape (tokens,)."""
    if experiment.data == "stdlib":  # Python's source code, which every machine has
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"\n".join(path.read_bytes() for path in files)[:STDLIB_BYTES]
    else:
        text = Path(experiment.data).expanduser().read_bytes()
    if experiment.tokenizer == "bytes":
        return np.frombuffer(text, dtype=np.uint8)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(experiment.tokenizer)
    ids = tokenizer(text.decode("utf-8", errors="replace"))["input_ids"]
    return np.asarray(ids, dtype=np.int64)
