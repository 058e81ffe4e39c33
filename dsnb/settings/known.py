"""Which settings of a run are unknown to predictions: those without a value, or with one that dsnb does not have.

Runs of other programs have both: a recorder cannot see everything, and programs name attention,
optimizers and strategies that no model of time or memory was fitted to. A prediction with a default
in their place would be one of another setting.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.settings.experiment import DECLARED, DEFAULTS, Experiment
from dsnb.settings.strategies import strategy
from dsnb.settings.strategies.logged import MEGATRON
from dsnb.settings.training import text

CHECKED = {
    name: (*declared.order, MEGATRON) if declared.order else ()
    for name, declared in DECLARED.items()
    if declared.order or declared.is_needed
}
"""Settings that a prediction needs, or whose values it has to know, and these values."""


def unknown(experiment: Experiment) -> list[str]:
    """Return the settings that a prediction needs and does not know, in words.

    >>> unknown(Experiment.recorded({"program": "own", "gpus": 1}))[:2]
    ['model', 'strategy']
    >>> unknown(Experiment(gpus=1).model_copy(update={"attention": "flash_attention_2"}))
    ["attention 'flash_attention_2'"]
    """
    return list(_unknown(vars(experiment)))


def _unknown(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, values in CHECKED.items():
        value = settings[name]
        if value is None:
            if DECLARED[name].is_needed and has_effect(settings, name):
                yield DECLARED[name].title
        elif values and value not in values:
            yield f"{DECLARED[name].title} {text(value)!r}"


def has_effect(settings: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting can have an effect: its strategy has it, and what it depends on is known and not off."""
    needed = DECLARED[name].only_with
    if needed and text(settings.get(needed)) in ("-", *DECLARED[needed].off):
        return False
    chosen = strategy(settings.get("strategy"))
    if name == "zero_stage":
        return chosen.has_zero_stages and chosen.is_runnable
    return chosen.has(name)


def check(experiment: Experiment) -> None:
    """Raise SettingsError if a prediction would need a setting that is unknown."""
    found = unknown(experiment)
    if found:
        raise SettingsError(f"unknown to the model of time: {', '.join(found)}")


def completed(experiment: Experiment) -> Experiment:
    """Return settings with defaults for the unknown ones that few programs change; SettingsError if it needs others."""
    check(experiment)
    missing = [name for name in DECLARED if getattr(experiment, name) is None]
    return experiment.model_copy(update={name: DEFAULTS[name] for name in missing})
