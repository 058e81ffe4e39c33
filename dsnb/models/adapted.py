"""The training pass of a user's own model after `dsnb.adapt`: which batches it computes in which way.

A batch of labels that asks for its loss alone is computed as dsnb's own loop computes it: without a
mask where the mask changes nothing, compiled, and without keeping logits. Anything else, such as
evaluation, generation, or a call that asks for hidden states, runs the model's own forward pass as
it was before.

The model keeps its modules, and so the names of its weights: functions are set as `forward` of
instances, bound to their modules, so that a copy of a model computes with the copy's weights.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutputWithPast

from dsnb.models.attention import whole_sequences
from dsnb.models.build import ADDED_LOGIT
from dsnb.models.compile import separate_caches
from dsnb.models.logits import LogitMap
from dsnb.models.loss import IGNORED, Differentiate, differentiate, next_tokens, sum_of_losses
from dsnb.models.parts import below_output

COUNT = "num_items_in_batch"
"""Tokens with a loss in all micro-batches of a step: transformers' Trainer divides sums of losses by it."""
TARGETS = "shift_labels"
"""Labels that are shifted already, as some collators give them."""
OF_LOSS = (COUNT, TARGETS, "labels")
NOT_OF_BATCH = (
    "output_attentions", "output_hidden_states", "output_router_logits", "logits_to_keep", "return_dict",
)  # fmt: skip
"""Arguments that say what is returned."""
OF_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""Arguments of packed sequences, which transformers hands on to attention."""
Forward = Callable[..., Any]


@dataclass
class TrainingPass:
    """How a model computes the loss of a batch; `dsnb.models.adapt` fills it in."""

    forward: Forward
    """The model's own forward pass, as a function of the model."""
    reads_masks: bool = False
    """Whether masks and positions that change nothing are left out."""
    chunks: LogitMap | None = None
    """How logits are made, if the loss is computed a chunk of them at a time."""
    head: Forward | None = None
    """Computes whole logits in place of the output layer, as a function of it, or None."""
    loss: Forward | None = None
    """Computes the loss of whole logits in place of the model's own function, or None."""
    differentiate: Differentiate = differentiate
    """Computes the loss and the gradients of a chunk."""
    is_compiled: bool = False
    graphs_own_gradients: bool = False
    """Whether CUDA graphs overwrite gradients at their next replay."""

    def __post_init__(self) -> None:
        self.compute: Forward = own_loss
        """Returns the loss, or the last hidden states if the loss is in chunks."""

    @functools.cached_property
    def parameters(self) -> list[str]:
        """The names of the forward pass's arguments."""
        return list(inspect.signature(self.forward).parameters)[1:]

    @functools.cached_property
    def constant(self) -> list[str]:
        """Arguments that are always passed on: where some batches lack one, torch 2.13 fails to compile again."""
        names: list[str] = []
        for name in ("attention_mask", "position_ids"):
            if name in self.parameters:
                names.append(name)
        kinds = [one.kind for one in inspect.signature(self.forward).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            names.append(COUNT)
        return names

    def __call__(self, model: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the output of a forward pass."""
        batch = {**dict(zip(self.parameters, inputs, strict=False)), **named}
        if not self.trains(model, batch):
            return self.forward(model, *inputs, **named)
        if self.graphs_own_gradients:
            begin_step(model)
        if self.is_compiled:
            separate_caches(str(torch.get_autocast_dtype(batch["labels"].device.type)))
        for name in NOT_OF_BATCH:
            batch.pop(name, None)
        for name in self.constant:
            batch.setdefault(name, None)
        if "use_cache" in self.parameters:
            batch["use_cache"] = False
        if batch.get(COUNT) is not None:
            # A number would be a constant of the compiled graph.
            batch[COUNT] = torch.as_tensor(batch[COUNT], device=batch["labels"].device)
        is_whole = False
        if self.reads_masks:
            batch, is_whole = without_needless(batch)
        with whole_sequences() if is_whole else nullcontext():
            return CausalLMOutputWithPast(loss=self.loss_of(model, batch))

    def trains(self, model: Any, batch: Mapping[str, Any]) -> bool:
        """Return whether nothing but the loss of a batch is asked for, to train with it."""
        if not model.training or not torch.is_grad_enabled():
            return False
        if not isinstance(batch.get("labels"), Tensor) or batch.get("return_dict") is False:
            return False
        asked = [batch.get(name) for name in NOT_OF_BATCH if name != "return_dict"]
        asked += [batch.get("past_key_values"), model.config.output_hidden_states]
        asked.append(getattr(model.config, "output_attentions", False))
        if not all(map(is_off, asked)):
            return False
        return {*self.parameters, *OF_LOSS, *OF_PACKING}.issuperset(batch)

    def loss_of(self, model: Any, batch: dict[str, Any]) -> Tensor:
        """Return the loss of a batch, shape ()."""
        if self.chunks is not None:
            return self.in_chunks(model, batch, self.chunks)
        with ExitStack() as stack:
            if self.head is not None:
                head = model.get_output_embeddings()
                stack.enter_context(replaced(head, "forward", types.MethodType(self.head, head)))
            if self.loss is not None:
                stack.enter_context(replaced(model, "_loss_function", self.loss))
            loss: Tensor = self.compute(self.forward, model, batch)
            return loss

    def in_chunks(self, model: Any, batch: dict[str, Any], made: LogitMap) -> Tensor:
        """Return the loss with the logits of one chunk of tokens at a time in memory.

        The output layer returns it, so that hooks which gather its weights run.
        """
        targets = targets_of(batch)
        count = batch.get(COUNT)
        if count is None:
            count = targets.ne(IGNORED).sum()
        below = {name: value for name, value in batch.items() if name not in OF_LOSS}
        hidden = self.compute(below_output(model), below)
        head = model.get_output_embeddings()
        summed = functools.partial(
            sum_of_losses, head, loss_and_gradient=self.differentiate, made=made
        )
        with replaced(head, "forward", summed):
            total: Tensor = head(hidden.flatten(0, 1), targets.flatten())
        return total / count


def is_off(value: Any) -> bool:
    """Return whether an argument asks for nothing."""
    return value is None or (isinstance(value, int) and not value)


def targets_of(batch: Mapping[str, Any]) -> Tensor:
    """Return the target of each position, shape (batch, length)."""
    given: Tensor | None = batch.get(TARGETS)
    if given is not None:
        return given
    return next_tokens(batch["labels"])


def own_loss(forward: Forward, model: Any, batch: dict[str, Any]) -> Any:
    """Return the loss as a model computes it; a compiled pass need not keep its logits."""
    return forward(model, **batch).loss


def last_hidden(below: Any, batch: dict[str, Any]) -> Any:
    """Return the input of the output layer, shape (batch, length, width)."""
    return below(**batch).last_hidden_state


def without_needless(batch: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Leave out a mask that changes nothing; return whether rows are known to be one sequence each.

    Reading the batch waits for the device, once, and only if there is a mask or are positions.
    Where a mask is given, transformers does not look for packed sequences.
    """
    mask = batch.get("attention_mask")
    positions = batch.get("position_ids")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        if is_needless(mask, batch):
            batch = {**batch, "attention_mask": None}
        return batch, True
    if mask is not None:
        return batch, False
    if positions is None:
        return batch, not any(name in batch for name in OF_PACKING)
    is_one = isinstance(positions, Tensor) and positions.dim() == 2
    return batch, is_one and bool(positions.diff(dim=-1).eq(1).all())


def is_needless(mask: Tensor, batch: Mapping[str, Any]) -> bool:
    """Return whether a mask, shape (batch, length), changes no loss beside causality.

    A token sees only earlier ones, so padding on the right is seen by padding alone; what is
    computed there must have no target.
    """
    targets = targets_of(batch)
    is_real = mask.ne(0)
    if is_real.shape != targets.shape:
        return False
    is_last = is_real[:, :-1] >= is_real[:, 1:]
    return bool(is_last.all() & (is_real | targets.eq(IGNORED)).all())


def begin_step(model: nn.Module) -> None:
    """Mark the start of a step for CUDA graphs; raise ValueError if gradients are added up."""
    first = next(weight for weight in model.parameters() if weight.requires_grad)
    if first.grad is not None:
        raise ValueError(
            "compile uses CUDA graphs, which own their gradients and overwrite them, but gradients of an earlier "
            "micro-batch are still there: use gradient_accumulation_steps 1 and set gradients to None after each "
            "step, or compile 'default'"
        )
    torch.compiler.cudagraph_mark_step_begin()


def padded_logits(multiple: int) -> Forward:
    """Return an output layer's pass with added columns, whose logits leave them out of the loss."""

    def forward(head: Any, hidden: Tensor) -> Tensor:
        rows = -len(head.weight) % multiple
        bias = head.bias
        if bias is None:
            bias = head.weight.new_zeros(len(head.weight))
        bias = F.pad(bias, (0, rows), value=ADDED_LOGIT)
        return F.linear(hidden, F.pad(head.weight, (0, 0, 0, rows)), bias)

    return forward


def loss_of_all_columns(loss: Forward) -> Forward:
    """Let a loss function of transformers count the columns of its logits, whatever the vocabulary."""

    def of_columns(logits: Tensor, labels: Tensor, vocab_size: int = 0, **named: Any) -> Any:
        return loss(logits=logits, labels=labels, vocab_size=logits.shape[-1], **named)

    return of_columns


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an instance, which it may not have itself."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not missing:
            setattr(owner, name, before)


def unbound(module: nn.Module) -> Forward:
    """Return a module's forward pass as a function of the module, so that copies do not share it."""
    own = vars(module).get("forward")
    if own is None:
        return type(module).forward
    if isinstance(own, types.MethodType):
        return own.__func__
    return lambda _, *inputs, **named: own(*inputs, **named)


def bind(module: nn.Module, function: Forward) -> None:
    """Make a function of a module and its inputs the module's forward pass."""
    module.forward = types.MethodType(function, module)


def replace_in_training(module: nn.Module, computation: Forward) -> None:
    """Let a module compute something else while it trains, recomputed if the module is to be.

    The checkpoint is around the computation and inside of hooks, and nobody else adds another.
    """
    plain = unbound(module)
    is_recomputed = bool(getattr(module, "gradient_checkpointing", False))
    if is_recomputed:
        vars(module)["gradient_checkpointing"] = False

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        if not self.training or not torch.is_grad_enabled():
            return plain(self, *inputs, **named)
        if not is_recomputed:
            return computation(self, *inputs, **named)
        function = functools.partial(computation, self, **named)
        return self._gradient_checkpointing_func(function, *inputs)

    bind(module, forward)


def install(model: Any, training: TrainingPass) -> None:
    """Make a training pass that of a model, with the arguments that its forward pass had."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        return self.dsnb_training(self, inputs, named)

    signature = inspect.signature(training.forward)
    if training.is_compiled:
        # Whoever compiles the model again would compile what reads the batch.
        forward = torch.compiler.disable(forward)
        vars(forward).pop("__wrapped__", None)  # accelerate follows it to take its own wrappers off
    forward.__signature__ = signature  # type: ignore[attr-defined]
    model.dsnb_training = training
    bind(model, forward)
