"""Records what a model's forward and backward pass allocates and frees, operator by operator, without a GPU."""

from collections.abc import Iterable
from typing import Any

import torch

from dsnb.settings.experiment import Experiment
from dsnb.train.fake_model import CudaOperators, autocast, build, compute_recomputed_as_cuda, fake_mode
from dsnb.train.live_bytes import LiveBytes, Size
from dsnb.train.model_parts import blocks

ALLOCATED, FREED, GRADIENT = 0, 1, 2
"""The kinds of events, as `dsnb.prediction.replay.recording` reads them."""


def record(experiment: Experiment, micro_batch: int) -> dict[str, Any]:
    """Return the tensors of a model and the events of one micro-batch of it, which is not compiled.

    Parameters
    ----------
    micro_batch
        Sequences of the pass, as `dsnb.train.live_bytes.size` takes them.

    Returns
    -------
    dict
        The fields of `dsnb.prediction.replay.recording.Recording`.
    """
    fake = fake_mode()
    model = build(experiment, fake)
    parameters, buffers = list(model.parameters()), list(model.buffers())
    with fake:
        recorder = _Recorder([*parameters, *buffers], micro_batch)
        for number, parameter in enumerate(parameters):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(recorder.hook(number))
        if experiment.activation_checkpointing:
            for block in blocks(model.model)[:: experiment.checkpoint_every]:
                compute_recomputed_as_cuda(block, experiment.checkpoint_offload)
        ids = torch.zeros(micro_batch, experiment.seq_len, dtype=torch.long)
        with recorder:
            with CudaOperators(), autocast(experiment):
                loss = model(ids)
            loss.backward()
        del loss
    return {"tensors": tensors_of(model), "events": recorder.events}


def tensors_of(model: Any) -> list[tuple[list[int], int, bool]]:
    """Return the shape of each weight and buffer, the bytes of an element, and whether it is trained."""
    return [(list(one.shape), one.element_size(), one.requires_grad) for one in [*model.parameters(), *model.buffers()]]


class _Recorder(LiveBytes):
    """Follows living tensors and notes each event: a size allocated, an allocation freed, a parameter's gradient."""

    def __init__(self, existing: Iterable[torch.Tensor], micro_batch: int) -> None:
        super().__init__(existing, micro_batch)
        self.events: list[tuple[int, float, float]] = []
        self._numbers: dict[int, int] = {}
        self._count = 0

    def hook(self, parameter: int) -> Any:
        """Return a hook that notes a parameter's gradient, and drops it: gradients are the engine's."""

        def take(tensor: torch.Tensor) -> None:
            gradient, tensor.grad = tensor.grad, None
            if gradient is not None:
                key = gradient.untyped_storage()._cdata
                self.events.append((GRADIENT, parameter, self._numbers.get(key, -1)))

        return take

    def change(self, more: Size, times: float = 1) -> None:
        """Count nothing besides the events."""

    def _add(self, storage: Any) -> None:
        known = len(self._sizes)
        super()._add(storage)
        if len(self._sizes) > known:
            key = storage._cdata
            self._numbers[key] = self._count
            self._count += 1
            self.events.append((ALLOCATED, *self._sizes[key]))

    def _remove(self, key: int) -> None:
        del self._sizes[key]
        self.events.append((FREED, self._numbers.pop(key), 0))
