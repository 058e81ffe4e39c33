"""Times GPU kernels of attention and of the loss in passes of compiled models, for `benchmarks.family_kernels`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch  # replaces functions of libraries temporarily

import torch
from torch import profiler

from dsnb.measure.train.profiling import kernels_s, read_events
from dsnb.models import attention, build
from dsnb.models.attention import KernelWatch, whole_sequences
from dsnb.models.compile import compile_model
from dsnb.models.loss import CausalLoss
from dsnb.settings.experiment import Experiment

__all__ = ["as_transformers_has_it", "kernels_of", "whole_sequences"]
WARMUP, PASSES = 3, 5


@contextmanager
def as_transformers_has_it() -> Iterator[None]:
    """Let transformers choose attention and its masks."""
    with patch.object(attention, "fastest", lambda *_: "sdpa"):
        yield


def kernels_of(experiment: Experiment, lock: Any) -> dict[str, Any]:
    """Return the attention kernel, and the seconds of kernels of the fastest pass."""
    device = torch.device(experiment.device)
    torch._dynamo.reset()
    model = CausalLoss(build.build(experiment, {}, device), experiment.loss == "chunked")
    compile_model(experiment, model)
    vocab = model.config.vocab_size
    ids = torch.randint(3, vocab, (int(experiment.micro_batch_size), experiment.seq_len))
    ids = ids.to(device)
    watch = KernelWatch()
    for number in range(WARMUP):
        if number:
            one_pass(experiment, model, ids)
            continue
        with watch.watching():
            one_pass(experiment, model, ids)
    with lock:
        passes = traced(experiment, model, ids)
    figures: dict[str, Any] = {"kernel": watch.kernel}
    for name in passes[0]:
        known = [seconds[name] for seconds in passes if seconds[name] is not None]
        figures[name] = min(known, default=None)
    return figures


def one_pass(experiment: Experiment, model: CausalLoss, ids: torch.Tensor) -> None:
    """Compute the loss and its gradients."""
    with torch.autocast(experiment.device, dtype=torch.bfloat16):
        loss = model(ids)
    loss.backward()
    model.zero_grad()


def traced(
    experiment: Experiment, model: CausalLoss, ids: torch.Tensor
) -> list[dict[str, float | None]]:
    """Return the seconds of attention and loss kernels of each pass."""
    activities = [profiler.ProfilerActivity.CPU]
    if experiment.device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    found = []
    for _ in range(PASSES):
        with profiler.profile(activities=activities) as recorder:
            one_pass(experiment, model, ids)
            if experiment.device == "cuda":
                torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            recorder.export_chrome_trace(str(path))
            events = read_events(path)
        found.append(kernels_s(events))
    return found
