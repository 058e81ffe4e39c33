"""Values of `auto` in DeepSpeed's configuration, as files for transformers' Trainer have them.

`auto` is no value of DeepSpeed: its models drop such a key without a word, its other sections fail
on it. transformers replaces it by a value of the Trainer or of the model's hidden size
(`HfTrainerDeepSpeedConfig`, transformers 5.23). The same is done here, before anything is named or
recorded; what transformers does not know is refused.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas import model_shapes
from dsnb.settings import deepspeed_keys

AUTO = "auto"
FROM_HIDDEN_SIZE: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Keys that transformers derives from the model's hidden size; those of ZeRO 3 only at that stage."""
ONLY_ZERO_3 = "zero_optimization.stage3_"
FROM_SETTINGS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "scheduler.params.warmup_min_lr": lambda s: 0,
    "scheduler.params.warmup_max_lr": lambda s: float(s["learning_rate"]),
    # transformers' default is no warm-up, which DeepSpeed refuses
    "scheduler.params.warmup_num_steps": lambda s: 1,
    "scheduler.params.total_num_steps": lambda s: int(s["warmup_steps"]) + int(s["steps"]),
}
"""Keys of a scheduler, from the settings of a run."""
OF_THE_OPTIMIZER = (
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
)
"""Keys whose values dsnb sets anyway (`dsnb.settings.training.ADAMW`)."""
OF_DEEPSPEED = ("data_types.keep_in_fp32_modules",)
"""Keys for which DeepSpeed itself knows `auto`."""


def resolved(
    keys: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return flat keys without `auto`, and one sentence for each that has no value.

    Keys that dsnb decides itself, such as the batch size, are left out: `auto` leaves them to the
    settings of the run. `settings` are those of the run, with defaults for those that are not
    given.
    """
    kept: dict[str, Any] = {}
    problems = []
    for path, value in keys.items():
        if not _has_auto(value) or path in OF_DEEPSPEED:
            kept[path] = value
        elif value != AUTO:
            problems.append(_no_value(path, value))
        elif path in FROM_SETTINGS:
            with contextlib.suppress(TypeError, ValueError):  # the setting itself is refused
                kept[path] = FROM_SETTINGS[path](settings)
        elif path in FROM_HIDDEN_SIZE:
            if path.startswith(ONLY_ZERO_3) and settings["zero_stage"] != 3:
                continue
            hidden = model_shapes.facts(str(settings["model"])).get("hidden")
            if hidden is None:
                problems.append(_unknown_size(path, settings["model"]))
            else:
                kept[path] = FROM_HIDDEN_SIZE[path](hidden)
        elif path not in OF_THE_OPTIMIZER and not deepspeed_keys.decided(path):
            problems.append(_no_value(path, value))
    return kept, problems


def _has_auto(value: Any) -> bool:
    """Return whether a value is `auto`, or a list or mapping with it somewhere inside."""
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        return any(map(_has_auto, inside))
    return bool(value == AUTO)


def _no_value(path: str, value: Any) -> str:
    return (
        f"{deepspeed_keys.PREFIX}{path} is {short_repr(value)}: neither DeepSpeed nor transformers has a value for "
        "'auto' there; give a value, or leave the key out for DeepSpeed's default"
    )


def _unknown_size(path: str, model: object) -> str:
    return (
        f"{deepspeed_keys.PREFIX}{path} is 'auto': it follows from the hidden size, which is not known of "
        f"{short_repr(model)}; give a number, or the model's config.json as model"
    )
