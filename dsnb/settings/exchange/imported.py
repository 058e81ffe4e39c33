"""What another program's configuration says in dsnb's settings, and what becomes of the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsnb.base.files.plain_text import short_repr
from dsnb.settings.exchange.table import KEYS
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.training import text


@dataclass
class Imported:
    """Settings from keys of other programs; a key is in one of the four collections."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings, and keys of DeepSpeed that are passed on, by their dotted names."""
    left_open: dict[str, str] = field(default_factory=dict)
    """Keys, or settings, without a value -> what to give."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Keys without a counterpart -> why."""
    problems: list[str] = field(default_factory=list)
    """Why the configuration cannot be imported, one sentence each."""
    sources: dict[str, str] = field(default_factory=dict)
    """Setting -> the key that it is from."""

    def put(self, key: str, **settings: Any) -> None:
        """Set settings that a key says; a key that contradicts an earlier one is a problem."""
        for name, value in settings.items():
            before = self.settings.get(name, value)
            if before != value:
                self.problems.append(
                    f"{name} is {short_repr(before)} by {self.sources[name]}, but {short_repr(value)} by {key}: "
                    "correct one of them"
                )
            self.settings[name] = value
            self.sources[name] = key
            self.left_open.pop(name, None)

    def add(self, name: str, value: Any, key: str) -> None:
        """Set a setting that no key has said."""
        if name not in self.settings:
            self.put(key, **{name: value})

    def include(self, inner: "Imported") -> None:
        """Add what a file says that this one names."""
        for name, value in inner.settings.items():
            self.put(inner.sources[name], **{name: value})
        for path, advice in inner.left_open.items():
            self.left_open.setdefault(path, advice)
        self.dropped.update(inner.dropped)
        self.problems += inner.problems

    def refuse_split(self, name: str, ranks: object) -> None:
        """Refuse ranks that share a sequence."""
        if isinstance(ranks, int) and ranks > 1:
            self.problems.append(
                f"{name} is {ranks}: dsnb does not measure sequence or context parallelism; set it to 1"
            )

    def close(self) -> None:
        """Forget the open keys whose settings are known by now, and what is dsnb's own choice for the others."""
        have = self.settings
        is_half = have.get("precision") == "bf16" and have.get("mixed_precision") is None
        accumulates = have.get("zero_stage", 0) > 0 and have.get("grad_accum", 1) > 1
        if is_half and accumulates and have.get("grad_accum_dtype") == "fp32":
            del have["grad_accum_dtype"]
        rules = KEYS["deepspeed"]
        for path in list(self.left_open):
            setting = rules.get(path, {}).get("setting", path)
            is_precision = setting == "half_weights"
            if setting in self.settings or (is_precision and "precision" in self.settings):
                del self.left_open[path]
        if {"micro_batch_size", "grad_accum", "gpus"} <= self.settings.keys():
            self.left_open.pop("train_batch_size", None)

    def ordered(self) -> dict[str, Any]:
        """Return the settings in the order of tables, then the keys of DeepSpeed."""
        own = {name: self.settings[name] for name in DEFAULTS if name in self.settings}
        return {**own, **self.settings}


def backwards(program: str) -> dict[str, Mapping[str, Any]]:
    """Return the keys of a program that carry a single setting, each with its rule."""
    return {key: rule for key, rule in KEYS[program].items() if rule.get("setting") in DEFAULTS}


def setting_of(rule: Mapping[str, Any], value: Any) -> Any:
    """Return the value of a rule's setting for the value of its key; None if no value of it writes such a key."""
    if "values" not in rule:
        return value
    names = [name for name, written in rule["values"].items() if text(written) == text(value)]
    if len(names) == 1:
        return names[0]
    return None
