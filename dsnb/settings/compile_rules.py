"""Rules for the modes of torch.compile and for the loss, each with the reason why a combination cannot be right."""

from collections.abc import Mapping

from dsnb.formulas.model_shapes import facts
from dsnb.settings.rules import Rule, Settings

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of `compile` that use CUDA graphs on a GPU."""
CHUNKABLE = ("gpt2", "opt", "bloom")
"""Families whose logits are one matrix product of the last hidden state."""
CHUNK_TOKENS = 2048
"""The most tokens of a chunk of the loss. The output layer's gradient is read and written once for each chunk: with
half as many, the layer and its loss took 4 to 15 % longer, compiled (docs/LOG.md)."""


def _cuda_graphs(s: Settings) -> str | None:
    """Refuse CUDA graphs where memory that a graph owns would be used after its next replay, or at another address."""
    if s["compile"] not in CUDA_GRAPHS:
        return None
    mode = f"compile is '{s['compile']}', which uses CUDA graphs"
    if s["grad_accum"] > 1:
        return (
            f"{mode}, but grad_accum is {s['grad_accum']}: a graph owns its gradients and overwrites those of the "
            "micro-batch before; use compile 'default'"
        )
    if s["strategy"] == "fsdp" or s["zero_stage"] == 3:
        who = "FSDP" if s["strategy"] == "fsdp" else "ZeRO 3"
        return f"{mode}: {who} gathers weights at changing addresses, which a graph cannot; use compile 'default'"
    if s["tensor_parallel"] > 1:
        return f"{mode}, but tensor_parallel is set: its collectives cannot be in a graph; use compile 'default'"
    if s["checkpoint_offload"]:
        return f"{mode}, but checkpoint_offload is on: copies to host memory cannot be in a graph; use 'default'"
    return None


def disabled(environment: Mapping[str, str]) -> list[str]:
    """Return why nothing would be compiled in an environment: torch then runs eagerly without a word."""
    return [
        f"compile is set, but the environment variable {name} is 1, which disables torch.compile: unset it"
        for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
        if environment.get(name) == "1"
    ]


def _deepcompile(s: Settings) -> str | None:
    if s["compile"] != "deepcompile":
        return None
    if s["strategy"] != "deepspeed" or s["zero_stage"] not in {1, 3}:
        return "compile is 'deepcompile': it compiles the communication of ZeRO 1 and 3; use zero_stage 1 or 3"
    if s["device"] == "cpu":
        return "compile is 'deepcompile', but device is 'cpu': its kernels need a GPU; use 'default'"
    return None


def compiles_blocks(s: Settings) -> bool:
    """Return whether torch.compile sees the blocks one by one.

    By itself it does where weights are gathered block by block, and where blocks are recomputed: in a graph of the
    whole model the backward pass would compute all of them again at once.
    """
    if s["compile"] in {"off", "deepcompile"}:
        return False
    if s["compile_unit"] != "auto":
        return bool(s["compile_unit"] == "block")
    gathers = s["strategy"] == "fsdp" or (s["strategy"] == "deepspeed" and s["zero_stage"] == 3)
    return bool(gathers or (s["activation_checkpointing"] and s["compile"] not in CUDA_GRAPHS))


def gathers_blocks(s: Settings) -> bool:
    """Return whether blocks are gathered whole where weights are gathered at all: hooks are then outside of graphs."""
    return bool(s["leaf_modules"] == "blocks" or (s["leaf_modules"] == "auto" and compiles_blocks(s)))


def _unit(s: Settings) -> str | None:
    unit, mode = s["compile_unit"], s["compile"]
    reasons = {
        f"compile is '{mode}': nothing is compiled; set it to 'default'": mode == "off",
        f"compile is '{mode}', which orders communication over the whole model; use 'default'": unit == "block"
        and mode == "deepcompile",
        f"compile is '{mode}': a CUDA graph is of a whole step; use 'default'": unit == "block" and mode in CUDA_GRAPHS,
        "strategy is 'fsdp': its hooks gather weights block by block; use 'block'": unit == "model"
        and s["strategy"] == "fsdp",
    }
    why = next((why for why, holds in reasons.items() if holds), None)
    return f"compile_unit is '{unit}', but {why}" if why and unit != "auto" else None


def _leaf_modules(s: Settings) -> str | None:
    if s["leaf_modules"] != "none" or s["zero_stage"] != 3 or not compiles_blocks(s):
        return None
    return (
        "leaf_modules is 'none', but blocks are compiled one by one: gathering single layers would break their graphs; "
        "use 'blocks'"
    )


def _loss_chunks(s: Settings) -> str | None:
    if s["loss"] == "whole":
        return None
    if s["pipeline_parallel"] > 1:
        return "loss is 'chunked', but pipeline_parallel is set: the last stage computes the loss whole; use 'whole'"
    whole = s["compile"] != "off" and s["strategy"] == "deepspeed" and not compiles_blocks(s)
    if whole and (s["compile"] == "deepcompile" or s["zero_stage"] == 3):
        return (
            "loss is 'chunked', but the engine compiles the whole model, and a chunked loss computes its gradients "
            "outside of that graph; use 'whole'"
        )
    family = facts(s["model"]).get("family")
    if family and family not in CHUNKABLE:
        return f"loss is 'chunked': it is tested for {', '.join(CHUNKABLE)} models, not for {family}; use 'whole'"
    return None


RULES: list[tuple[set[str], Rule]] = [
    ({"compile", "grad_accum", "strategy", "zero_stage", "tensor_parallel", "checkpoint_offload"}, _cuda_graphs),
    ({"compile", "strategy", "zero_stage", "device"}, _deepcompile),
    ({"compile", "compile_unit", "strategy"}, _unit),
    ({"compile", "compile_unit", "strategy", "zero_stage", "leaf_modules", "activation_checkpointing"}, _leaf_modules),
    (
        {"loss", "pipeline_parallel", "model", "compile", "compile_unit", "strategy", "zero_stage"}
        | {"activation_checkpointing"},
        _loss_chunks,
    ),
]
