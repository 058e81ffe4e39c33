"""A program that prints what torch and DeepSpeed support, or what is wrong with keys on stdin.

The answer is one line of JSON. It comes from a separate process, because imports take seconds, and
a crash must not end `dsnb doctor`. Sections with a pydantic model refuse unknown keys. The others
are read key by key: a key that DeepSpeed's parser never asks for is one that it would silently
ignore.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from dsnb.base.system import interpreter
from dsnb.settings import deepspeed_keys
from dsnb.settings.checks import closest_match

FREE = {"optimizer.params", "scheduler.params"}
"""Sections that DeepSpeed passes on as they are; the receiver refuses unknown keys."""

MODELS = {
    "zero_optimization": "zero_config",
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "compile": "compile_config",
}
"""Sections of DeepSpeed's configuration -> the attribute of its configuration object with their
pydantic model."""


class Watched(dict[str, Any]):
    """The configuration, or a section of it, that remembers which keys were asked for.

    Iterating over a section asks for all its keys; iterating over the whole configuration does not.
    """

    def __init__(self, section: Mapping[str, Any], is_top: bool = False) -> None:
        super().__init__(section)
        for key, value in section.items():
            if isinstance(value, dict):
                self[key] = Watched(value)
        self.asked: set[str] = set()
        self._is_top = is_top

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        if not self._is_top:
            self.asked.update(super().keys())
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as a dict does."""
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        """Return this section itself, so that its keys are watched here, too."""
        return self

    def items(self) -> Any:
        """Return keys and values; all count as asked for."""
        return [(key, super(Watched, self).__getitem__(key)) for key in self]

    def __copy__(self) -> "Watched":
        return self  # DeepSpeed reads a copy

    def unasked(self, path: str = "") -> Iterator[tuple[str, set[str]]]:
        """Yield the path of each key that was never asked for, with the keys of its section that were."""
        for key, value in dict.items(self):
            if key not in self.asked:
                yield f"{path}{key}", self.asked
            elif isinstance(value, Watched) and value.asked and f"{path}{key}" not in FREE:
                yield from value.unasked(f"{path}{key}.")


def check(zero_stage: int, keys: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the keys, one sentence each."""
    from deepspeed.runtime.config import DeepSpeedConfig

    minimal = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": zero_stage},
        "optimizer": {"type": "AdamW"},
    }
    config = Watched(deepspeed_keys.merged(minimal, keys), is_top=True)
    try:
        built = DeepSpeedConfig(config)
    except ValidationError as error:
        return [_invalid(detail, keys) for detail in error.errors(include_url=False)]
    except Exception as error:  # sections without a model fail in any way
        text = str(error).strip().splitlines() or [type(error).__name__]
        return [f"deepspeed: DeepSpeed refuses these keys: {text[0]}"]
    problems = []
    for path, valid in config.unasked():
        if deepspeed_keys.lookup(minimal, path) is None:
            problems.append(_unknown(path, valid))
    return problems or list(_replaced(built, keys))


def configured(built: Any, path: str) -> Any:
    """Return the value for a key in DeepSpeed's configuration object; in sections without a model, as it was read."""
    section, *names = path.split(".")
    place = getattr(built, MODELS.get(section, ""), None)
    for name in names:
        fields = getattr(type(place), "model_fields", {})
        field = next((field for field, info in fields.items() if info.alias == name), name)
        place = place.get(name) if isinstance(place, dict) else getattr(place, field, None)
    if section in MODELS:
        return place
    return deepspeed_keys.lookup(built._param_dict, path)


def _replaced(built: Any, keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value that DeepSpeed replaces; a run compares it with the engine and would fail."""
    for path, value in keys.items():
        used = configured(built, path)
        if used != value:
            key = f"{deepspeed_keys.PREFIX}{path}"
            yield f"{key} is {value!r}: DeepSpeed would use {used!r}; write that, or leave the key out"


def _invalid(detail: Any, keys: Mapping[str, Any]) -> str:
    inside = ".".join(map(str, detail["loc"]))
    path = next((path for path in keys if path == inside or path.endswith(f".{inside}")), inside)
    if detail["type"] == "extra_forbidden":
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

        fields = DeepSpeedZeroConfig.model_fields if path.startswith("zero_optimization.") else {}
        return _unknown(path, {*fields, *(field.alias for field in fields.values() if field.alias)})
    # without pydantic's "Value error, "
    message = str(detail.get("ctx", {}).get("error") or detail["msg"])
    message = f"{message[:1].lower()}{message[1:]}"
    return f"{deepspeed_keys.PREFIX}{path} is {detail['input']!r}: {message}"


def _unknown(path: str, valid: set[str]) -> str:
    match = closest_match(path.rpartition(".")[2], sorted(valid))
    hint = "look its name up in DeepSpeed's documentation"
    if match:
        hint = f"did you mean '{match}'?"
    return f"{deepspeed_keys.PREFIX}{path} is no key of DeepSpeed: {hint}"


def abilities() -> dict[str, Any]:
    """Return the versions of the training libraries, and what torch and DeepSpeed support."""
    import deepspeed
    import torch
    import transformers
    from deepspeed.accelerator import get_accelerator

    dtypes = get_accelerator().supported_dtypes()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_works": torch.cuda.is_available(),
        "deepspeed": deepspeed.__version__,
        "transformers": transformers.__version__,
        "precisions": [str(dtype).removeprefix("torch.") for dtype in dtypes],
    }


if __name__ == "__main__":
    interpreter.end_quickly()
    answer = check(int(sys.argv[1]), json.loads(sys.stdin.read())) if sys.argv[1:] else abilities()
    print(json.dumps(answer))
