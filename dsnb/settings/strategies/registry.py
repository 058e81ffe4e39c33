"""All strategies by name: the built-in ones, then those of installed packages.

The names of a package's strategies are known from its entry points; a module is imported when its
strategy is asked something. One that fails is reported once, and its strategy is treated as one of
another program.
"""

import importlib
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dsnb.settings.strategies.base import Strategy
from dsnb.settings.strategies.ddp import Ddp
from dsnb.settings.strategies.deepspeed import DeepSpeed
from dsnb.settings.strategies.fsdp import Fsdp
from dsnb.settings.strategies.logged import Logged
from dsnb.settings.strategies.plain import Plain

GROUP = "dsnb.strategies"
"""The group of entry points that add strategies: `name = "module:Class"`."""
DEFAULT = DeepSpeed.name
BUILT_IN = {each.name: each for each in (Plain(), Ddp(), Fsdp(), DeepSpeed())}
"""The strategies of dsnb, in display order."""


def plugins() -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by the name of their strategy."""
    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point for point in found if point.name not in BUILT_IN}


PLUGINS = plugins()
NAMES = (*BUILT_IN, *PLUGINS)
"""The allowed values of the setting `strategy`, in display order."""


UNKNOWN = ("None", "nan", "<NA>", "-")
"""Texts of a missing name."""


def strategy(name: object) -> Strategy:
    """Return a strategy by its name; one of another program, or without a name, cannot be run."""
    known = str(name)
    if known in BUILT_IN:
        return BUILT_IN[known]
    if known in PLUGINS:
        return _of_plugin(known)
    return Logged("" if known in UNKNOWN else known)


@cache
def _of_plugin(name: str) -> Strategy:
    point = PLUGINS[name]
    try:
        found: Strategy = point.load()()
        if not isinstance(found, Strategy) or found.name != name:
            raise TypeError("it is no Strategy of that name")
    except Exception as error:  # a package of someone else, which may fail in any way
        warnings.warn(
            f"strategy '{name}' cannot be used: {point.value} could not be loaded "
            f"({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return Logged(name)
    return found


class _Strategies(Mapping[str, Strategy]):
    """All strategies by name, loaded when they are read."""

    def __getitem__(self, name: str) -> Strategy:
        if name not in NAMES:
            raise KeyError(name)
        return strategy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


STRATEGIES: Mapping[str, Strategy] = _Strategies()
"""The strategies that dsnb can run, by name."""


def without_zero() -> list[str]:
    """Return the names of the strategies for which `zero_stage` has no meaning."""
    return [name for name, each in STRATEGIES.items() if not each.has_zero_stages]


def load(place: str) -> Any:
    """Return the class or function that "module:name" stands for."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
