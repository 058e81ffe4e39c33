"""Parts of an experiment's name that are more than a form of one value."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsnb.base.formulas import model_shapes
from dsnb.settings import flat_keys

if TYPE_CHECKING:  # it imports this module
    from dsnb.settings.experiment import Experiment


def _compiled(s: "Experiment") -> str:
    if s.compile == "default":
        return "compile"
    return f"compile-{s.compile}"


def _compressed(s: "Experiment") -> str:
    if s.gradient_compression == "powersgd":
        return f"powersgd{s.powersgd_rank}"
    return f"send-{s.gradient_compression}"


def _checkpointed(s: "Experiment") -> str:
    every = ""
    if s.checkpoint_every not in {None, 1}:
        every = str(s.checkpoint_every)
    if s.checkpoint_offload:
        return f"ac{every}-cpu"
    if s.checkpoint_ops not in {None, "all"}:
        return f"ac{every}-{s.checkpoint_ops}"
    return f"ac{every}"


def _mixed(s: "Experiment") -> str:
    if s.mixed_precision == "none":
        return "pure"
    return s.mixed_precision


PARTS: dict[str, Callable[["Experiment"], str]] = {
    "compile": _compiled,
    "gradient_compression": _compressed,
    "activation_checkpointing": _checkpointed,
    "mixed_precision": _mixed,
    "data": lambda s: model_shapes.slug(s.data),
    "tokenizer": lambda s: f"tok-{model_shapes.slug(s.tokenizer)}",
    "deepspeed": lambda s: flat_keys.name_part(s.deepspeed),
    "script": lambda s: flat_keys.name_part(s.script),
}
"""By the name of the setting."""
