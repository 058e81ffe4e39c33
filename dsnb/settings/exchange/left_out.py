"""What the files of another program cannot say of a training, so that nothing is dropped silently."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsnb.settings.exchange.facts import facts
from dsnb.settings.exchange.table import is_meant
from dsnb.settings.experiment import DECLARED, DEFAULTS, Experiment
from dsnb.settings.strategies.registry import BUILT_IN
from dsnb.settings.training import Training, text

TEXTS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("left_out.toml").read_text("utf-8")
)
"""Kind -> name -> sentence, and when it holds."""
OF_TASK = frozenset({
    "model", "weights", "data", "tokenizer", "seed", "seq_len", "dropout", "warmup_steps", "steps",
    "memory_limit_gib", "profile", "powersgd_rank", "nvme_path", "deepspeed", "micro_batch_size", "grad_accum",
})  # fmt: skip
"""Settings of what is trained and measured, which a user has already or another setting brings along."""


@dataclass(frozen=True)
class LeftOut:
    """A sentence on something that a program's files do not say."""

    name: str
    """The setting, or what dsnb's loop does."""
    text: str
    adapted: bool
    """Whether `dsnb.adapt` does it."""


def left_out(
    experiment: Experiment, program: str, content: Callable[[Experiment], object]
) -> list[LeftOut]:
    """Return what the files of a program do not say.

    A setting travels if the files would be others without it, unless its sentence knows better.

    Parameters
    ----------
    experiment
        The settings.
    program
        A table of `left_out.toml`.
    content
        What the files of the program have for settings.
    """
    known = facts(experiment)
    found = []
    for name, rule in {**TEXTS["loop"], **TEXTS[program]}.items():
        if is_meant(rule, known):
            found.append(_sentence(name, rule, known))
    for name in _stays(experiment, content, known):
        rule = TEXTS["settings"].get(name, {"text": "{value}."})
        found.append(_sentence(name, rule, known))
    return found


def _stays(
    experiment: Experiment, content: Callable[[Experiment], object], known: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the settings that the files do not have."""
    if experiment.strategy not in BUILT_IN:
        yield "strategy"
    whole = content(experiment)
    for name in Training.model_fields:
        if name in OF_TASK or name == "strategy":
            continue
        rule = TEXTS["settings"].get(name, {})
        value = getattr(experiment, name)
        if "values" in rule:
            if text(value) in rule["values"]:
                yield name
            continue
        if value == DEFAULTS[name]:
            continue
        without = experiment.model_copy(update={name: DEFAULTS[name]})
        is_known = rule.get("never") or ("when" in rule and is_meant(rule, known))
        if is_known or content(without) == whole:
            yield name


def _sentence(name: str, rule: Mapping[str, Any], known: Mapping[str, Any]) -> LeftOut:
    value = ""
    if name in DECLARED:
        value = DECLARED[name].describe(known[name])
    shown = {key: text(each) for key, each in known.items()}
    filled = rule["text"].format_map({**shown, "value": value})
    return LeftOut(name, filled[0].upper() + filled[1:], rule.get("adapted", False))
