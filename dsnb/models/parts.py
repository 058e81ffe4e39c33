"""The parts of a causal language model of transformers: blocks, pipeline stages, shards of tensor-parallel ranks.

For a pipeline the forward pass is followed once: which layers with weights the model calls before
and after the blocks, and which arguments it passes to each block beside the hidden state (masks,
ALiBi, positions). A stage calls its blocks with the same arguments, so all batches must have one
shape and no padding, as dsnb's have.

Tensor parallelism is DeepSpeed's AutoTP; `dsnb.models.layout` says how it splits a block.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dsnb.base.formulas import model_shapes
from dsnb.settings.experiment import Experiment


def blocks(model: Any) -> list[Any]:
    """Return the transformer blocks in order: the module list whose length is the configured number of layers."""
    layers, family = model.config.num_hidden_layers, model.config.model_type
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == layers:
            return list(module)
    raise ValueError(
        f"the {layers} blocks of {family} are in no list of modules: models like it cannot be trained"
    )


def language_model(model: Any) -> Any:
    """Return the causal language model of transformers inside of peft's wrapper, or the model itself without one."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def below_output(model: Any) -> Any:
    """Return the part of a causal language model that computes the last hidden states."""
    if model.base_model is not model:
        return model.base_model
    # Llama 4's text model has no attribute of the name that transformers looks for.
    parts_of_it = (child for child in model.children() if isinstance(child, PreTrainedModel))
    return next(parts_of_it, model)


def output_layer(model: nn.Module) -> Any:
    """Return the layer that computes the logits."""
    models = (module for module in model.modules() if isinstance(module, PreTrainedModel))
    return next(models).get_output_embeddings()


def has_own_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters that belong to none of its submodules."""
    return next(iter(module.parameters(recurse=False)), None) is not None


@dataclass
class ForwardPath:
    """The path of a hidden state through a model, without the head."""

    before: list[nn.Module]
    """Layers with weights that are called before the blocks, in order, as `after` holds those
    behind them."""
    after: list[nn.Module] = field(default_factory=list)
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """Arguments of each block beside the hidden state: positional, by keyword."""
    hidden: Tensor = field(default_factory=lambda: torch.empty(0))
    """A hidden state without values, shape (batch, length, width)."""


def forward_path(model: Any, batch: int, length: int, device: torch.device) -> ForwardPath:
    """Follow the forward pass of sequences of shape (batch, length) without computing any block.

    The model's weights may be on the meta device: zeros replace the few outside of the blocks.
    """
    embedding = model.get_input_embeddings()
    base = model.base_model
    path = ForwardPath(before=[embedding])
    within = {module for part in [embedding, *blocks(model)] for module in part.modules()}
    outside = [module for module in base.modules() if module not in within]
    outside = [module for module in outside if has_own_parameters(module)]

    def forward(hidden: Tensor, *inputs: Any, **named: Any) -> Any:
        path.hidden = hidden
        path.arguments.append((inputs, named))
        if model.config.model_type == "bloom":
            return (hidden,)
        return hidden

    def record(module: nn.Module, _: Any) -> None:
        (path.after if path.arguments else path.before).append(module)

    zeros = {name: buffer.to(device) for name, buffer in base.named_buffers()}
    weights = {weight for module in outside for weight in module.parameters(recurse=False)}
    for name, weight in base.named_parameters():
        if weight in weights:
            zeros[name] = torch.zeros_like(weight, device=device)
    weight = embedding.weight
    inputs = torch.zeros(batch, length, weight.shape[1], dtype=weight.dtype, device=device)
    with ExitStack() as stack, torch.no_grad():
        for block in blocks(model):
            block.forward = forward
            stack.callback(delattr, block, "forward")
        for module in outside:
            stack.callback(module.register_forward_pre_hook(record).remove)
        named = {"inputs_embeds": inputs, "use_cache": False}
        torch.func.functional_call(base, zeros, kwargs=named)
    return path


class Embedding(nn.Module):
    """Everything before the first block: the model without its blocks and the layers behind them."""

    def __init__(self, model: Any, path: ForwardPath) -> None:
        super().__init__()
        model_blocks = blocks(model)
        self.base = model.base_model
        self.weight = model.get_input_embeddings().weight
        for parent in list(self.base.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.ModuleList) and list(child) == model_blocks:
                    setattr(parent, name, nn.ModuleList())
                elif any(child is layer for layer in path.after):
                    setattr(parent, name, nn.Identity())

    def forward(self, ids: Tensor) -> Tensor:
        """Return the hidden state, shape (batch, length, width), of token ids of shape (batch, length)."""
        return self.base(input_ids=ids, use_cache=False)[0]


class Block(nn.Module):
    """One transformer block with its recorded arguments."""

    def __init__(self, block: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.block = block
        self.arguments = arguments

    def called_with(self, hidden: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return all arguments of the block for a hidden state, shape (batch, length, width)."""
        inputs, named = self.arguments
        return (hidden, *inputs), named

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next hidden state, shape (batch, length, width)."""
        inputs, named = self.called_with(hidden)
        output = self.block(*inputs, **named)
        if isinstance(output, tuple):
            return output[0]
        return output


def stage_modules(model: Any, path: ForwardPath, stage: int, stages: int) -> Iterator[nn.Module]:
    """Yield the modules of one pipeline stage; tied weights belong to the first and the last stage."""
    model_blocks = blocks(model)
    share = len(model_blocks) // stages
    tied = model.config.tie_word_embeddings
    is_first = stage == 0
    is_last = stage == stages - 1
    if is_first or (tied and is_last):
        yield path.before[0]
    if is_first:
        yield from path.before[1:]
    yield from model_blocks[stage * share : (stage + 1) * share]
    if is_last:
        yield from path.after
    if is_last or (tied and is_first):
        yield model.get_output_embeddings()


def check_split(experiment: Experiment, config: Any) -> None:
    """Raise ValueError if a model's sizes or family do not allow tensor or pipeline parallelism."""
    fields = config.to_dict()
    sizes = {
        "heads": config.num_attention_heads,
        "layers": config.num_hidden_layers,
        **model_shapes.shared_sizes(fields),
    }
    for setting in model_shapes.DIVIDED:
        ranks = getattr(experiment, setting)
        for size in model_shapes.undivided(setting, ranks, sizes):
            raise ValueError(f"{setting} is {ranks}: it must divide the model's {size}")
    experts = sizes.get("experts", 0)
    ranks = experiment.tensor_parallel
    if ranks > 1 and experts > 1:
        reason = model_shapes.has_experts(experiment.model, experts)
        raise ValueError(model_shapes.not_split(ranks, reason))
    stages = experiment.pipeline_parallel
    if stages > 1 and config.model_type not in model_shapes.STAGED:
        raise ValueError(model_shapes.not_staged(stages, config.model_type))


def prepare(experiment: Experiment, model: Any) -> None:
    """Prepare a model, or a pipeline stage's part of it, for AutoTP; raise ValueError if its sizes do not allow it."""
    check_split(experiment, model.config)
    use_linear_layers(model)
    # Mark the model as done: AutoTP would also divide the model's head count, from which ALiBi's
    # slopes are made.
    model.base_model.replaced = True


def use_linear_layers(model: nn.Module) -> None:
    """Replace every Conv1D, a linear layer with a transposed weight, by a linear layer.

    AutoTP would split the wrong dimension, and torchao converts linear layers only.
    """
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Conv1D):
                inputs, outputs = child.weight.shape
                linear = nn.Linear(inputs, outputs, device="meta")
                linear.weight = nn.Parameter(child.weight.data.t().contiguous())
                linear.bias = child.bias
                setattr(parent, name, linear)
