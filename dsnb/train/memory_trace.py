"""Traces the memory of one training step without a GPU: every storage that the model allocates, none of it real.

The model of the settings is built of torch's fake tensors, runs forward, loss and backward, and the bytes of living
storages are followed operator by operator. Weights, optimizer states, buffers and collectives are the engine's and not
part of it. `python -m dsnb.train.memory_trace` reads settings as JSON from its standard input and prints the traces, so
that a reader of them needs no torch.
"""

import json
import sys
from typing import Any

import torch

from dsnb.formulas.memory import kept_activations, recomputed_blocks
from dsnb.settings.compile_rules import compiles_blocks
from dsnb.settings.experiment import Experiment
from dsnb.train.causal_loss import CausalLoss
from dsnb.train.fake_model import LiveBytes, autocast, build, fake_mode
from dsnb.train.model_parts import blocks, output_layer


def trace(experiment: Experiment) -> dict[str, Any]:
    """Return the memory of one micro-batch, from its forward to its backward pass.

    Returns
    -------
    dict
        The fields of `dsnb.prediction.moments.Trace`.
    """
    sizes = _sizes(experiment, build(experiment, fake_mode()))
    return {**sizes, **(_compiled(experiment, sizes) if experiment.compile != "off" else _eager(experiment))}


def _eager(experiment: Experiment) -> dict[str, Any]:
    """Follow every operator of the forward and backward pass."""
    fake = fake_mode()
    model = build(experiment, fake)
    with fake:
        trained = [one for one in model.parameters() if one.requires_grad]
        live = LiveBytes([*model.parameters(), *model.buffers()])
        moments: list[tuple[float, int]] = []
        done = 0

        def take(parameter: torch.Tensor) -> None:
            nonlocal done
            gradient, parameter.grad = parameter.grad, None
            moments.append((live.peak - _bytes(gradient), done))
            done += parameter.numel()
            live.peak = live.now - _bytes(gradient)

        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(take)
        kept = _bytes_kept(blocks(model.model), live)
        ids = torch.zeros(int(experiment.micro_batch_size), experiment.seq_len, dtype=torch.long)
        with live:
            with autocast(experiment):
                loss = model(ids)
            forward_peak, live.peak = live.peak, live.now
            loss.backward()
    moments.append((live.peak, done))
    offloaded = _offloaded_bytes(experiment, model)
    return {
        "forward_peak": forward_peak - offloaded,
        "kept": kept[-1] - kept[0] - offloaded,
        "moments": _hull([(size - offloaded, done) for size, done in moments]),
    }


def _compiled(experiment: Experiment, sizes: dict[str, Any]) -> dict[str, Any]:
    """Ask torch's compiler what it keeps of models of two and three blocks, and add the rest of the blocks."""
    from dsnb.train import compiled_trace

    compiled_trace.use_flash_attention()
    every_block = experiment.model_copy(update={"activation_checkpointing": False})
    found = []
    for layers in (2, 3):
        fake = fake_mode()
        model = build(every_block, fake, layers)
        found.append(compiled_trace.compiled_bytes(model, experiment, lambda: autocast(experiment), fake))
    block = found[1] - found[0]
    kept, again = _kept_of_blocks(experiment, sizes, block)
    whole = found[0] - 2 * block + kept
    loss, head = compiled_trace.loss_bytes(experiment, sizes["vocab"], sizes["width_of_head"])
    return {
        "forward_peak": whole,
        "kept": kept,
        "moments": _hull([(whole + loss, 0), (kept + again + head, 1), (head, sizes["trainable"])]),
    }


def _kept_of_blocks(experiment: Experiment, sizes: dict[str, Any], block: int) -> tuple[float, float]:
    """Return the bytes that compiled blocks keep, and those of a block that is computed again.

    If recomputed blocks follow each other in one graph, torch's partitioner keeps nothing between them, and the
    backward pass computes all of them again at once: OPT-13B took 70 GiB with every block recomputed, 51 GiB with every
    second one (docs/LOG.md).
    """
    layers, every = sizes["layers"], experiment.checkpoint_every
    at_once = every == 1 and not compiles_blocks(experiment.model_dump())
    if not experiment.activation_checkpointing or at_once:
        return layers * block, 0
    return kept_activations(layers, block, sizes["block_input"], every, experiment.checkpoint_offload)


def _sizes(experiment: Experiment, model: CausalLoss) -> dict[str, Any]:
    """Return the counts of a model's elements."""
    of_blocks = [sum(one.numel() for one in block.parameters()) for block in blocks(model.model)]
    parameters = list(model.parameters())
    whole, head = sum(one.numel() for one in parameters), output_layer(model).weight
    return {
        "parameters": whole,
        "trainable": sum(one.numel() for one in parameters if one.requires_grad),
        "layers": len(of_blocks),
        "hidden": model.config.hidden_size,
        "of_block": max(of_blocks),
        "of_root": whole - sum(of_blocks),
        "largest": max(one.numel() for one in parameters),
        "vocab": head.shape[0],
        "width_of_head": head.shape[1],
        "block_input": _block_input_bytes(experiment, model),
    }


def _bytes_kept(modules: list[Any], live: LiveBytes) -> list[int]:
    """Return a list that a forward pass fills with the bytes alive before the first block and after the last one."""
    found: list[int] = []
    modules[0].register_forward_pre_hook(lambda *_: found.append(live.now))
    modules[-1].register_forward_hook(lambda *_: found.append(live.now))
    return found


def _block_input_bytes(experiment: Experiment, model: CausalLoss) -> int:
    width = 4 if experiment.precision in {"fp32", "tf32"} else 2
    return width * experiment.micro_batch_size * experiment.seq_len * model.config.hidden_size


def _offloaded_bytes(experiment: Experiment, model: CausalLoss) -> int:
    """Return the bytes of block inputs that a run keeps in host memory; the trace has one device only."""
    recomputed = recomputed_blocks(model.config.num_hidden_layers, experiment.checkpoint_every)
    return recomputed * _block_input_bytes(experiment, model) if experiment.checkpoint_offload else 0


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


def _hull(moments: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the moments that can be a peak: no other has more bytes with as many gradients."""
    kept: list[tuple[float, int]] = []
    for size, done in sorted(moments, key=lambda moment: (-moment[1], -moment[0])):
        if not kept or size > kept[-1][0]:
            kept.append((size, done))
    return kept[::-1]


def main() -> None:
    """Trace the settings on the standard input, by a key of the caller's; print one line of JSON.

    Where a model cannot be traced, `error` says why.
    """
    found: dict[str, Any] = {}
    for key, settings in json.load(sys.stdin).items():
        experiment = Experiment.recorded(settings)
        try:
            found[key] = trace(experiment)
        except Exception as error:
            words = str(error).splitlines() or [type(error).__name__]
            found[key] = {"error": f"model {experiment.model!r} could not be traced: {words[0]}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
