"""What is declared about a setting beside its type, default and meaning: its words, and its part of names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args, get_origin

from pydantic.fields import FieldInfo

GENERAL = {"auto": "default", "none": "no", "": "no", "-": "unknown"}
"""Values that mean the same for all settings, and the word in front of a setting's title that says it."""

FIRST_IN_NAMES = (
    "grad_accum", "activation_checkpointing", "tensor_parallel", "pipeline_parallel", "offload", "mixed_precision",
    "attention", "compile", "compile_unit", "loss", "lora_rank", "optimizer", "gradient_compression",
    "memory_limit_gib", "allocator", "weights", "dropout", "data", "tokenizer", "nodes", "learning_rate",
    "gradient_clipping", "seed",
)  # fmt: skip
"""Order of the parts that names have had longest; the others follow as they are declared."""


@dataclass(frozen=True)
class Setting:
    """How a setting is displayed; `phrase` describes one of its values, as in "ZeRO 3"."""

    title: str = ""
    """By default the setting's name with spaces."""
    phrase: str = ""
    """By default the title and the value."""
    short: str | Callable[[Any], str] = ""
    """Part of an experiment's name for a value other than the default: a form of the value, or a function of all
    settings; empty if the setting is in no name."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Phrases for values that `phrase` does not fit, such as a 0 that turns something off, by their text."""
    only_with: str = ""
    """Another setting; while it is off, this one has no effect."""
    order: tuple[object, ...] = ()
    """Order of the values, by default that of its type, numeric or alphabetic."""
    is_axis: bool = False
    """Whether this is one of the most important settings, which views show first."""
    omit_default: bool = False
    """Whether the default is omitted when an experiment is described by its settings."""
    is_supervision: bool = False
    """Whether it does not affect what is measured: it is in no column, and may change when a sweep is resumed."""
    usual: object = None
    """The value to omit; None for none."""

    @classmethod
    def of(cls, name: str, about: FieldInfo) -> Self:
        """Return what is declared about a setting, completed from its name, type and default."""
        declared = next((item for item in about.metadata if isinstance(item, cls)), cls())
        choices = get_args(about.annotation) if get_origin(about.annotation) is Literal else ()
        return replace(
            declared,
            title=declared.title or name.replace("_", " "),
            order=declared.order or choices,
            usual=about.default if declared.omit_default else None,
        )

    def describe(self, value: object) -> str:
        """Return a phrase for a value, which says what `none`, `auto` and a missing value mean."""
        shown = text(value)
        if shown in self.phrases:
            return self.phrases[shown]
        if shown in GENERAL:
            return f"{GENERAL[shown]} {self.title}"
        phrase = self.phrase or f"{self.title} {{}}"
        return phrase.replace("{}", "on" if value is True else "off" if value is False else shown)

    def describe_unusual(self, value: object) -> str:
        """Return a phrase for a value, empty for the usual one."""
        return "" if self.usual is not None and value == self.usual else self.describe(value)

    def sort_key(self, value: object) -> tuple[int, float, str]:
        """Return a sort key for values: `order` first, then numbers, then texts, missing values last."""
        if text(value) == "-":
            return 3, 0, ""
        if isinstance(value, int | float) and value not in self.order:
            return 1, float(value), ""
        return (0, self.order.index(value), "") if value in self.order else (2, 0, str(value))


def text(value: object) -> str:
    """Return a value of a setting as text: `true` and `false` in lower case, a dash for a missing value."""
    if value is None or str(value) in {"nan", "<NA>", "NaT"}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def experiment_name(experiment: Any, settings: Mapping[str, Setting], defaults: Mapping[str, Any]) -> str:
    """Return the name without the model, such as `zs2_bf16_gpus8_bs32_sl128`; further parts only for what is unusual.

    Parameters
    ----------
    experiment
        An `Experiment`.
    settings, defaults
        What is declared about each setting, and its default.
    """
    s = experiment
    sharing = f"zs{s.zero_stage}" if s.strategy == "deepspeed" else s.strategy
    parts = [f"{sharing}_{s.precision}_gpus{s.gpus}_bs{s.micro_batch_size}_sl{s.seq_len}"]
    for key in dict.fromkeys((*FIRST_IN_NAMES, *settings)):
        short, value = settings[key].short, getattr(s, key)
        if short and value != defaults[key]:
            parts.append(short(s) if callable(short) else short.replace("{}", text(value)))
    return "_".join(parts)
