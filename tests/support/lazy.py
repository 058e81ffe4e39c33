"""Modules that take seconds to import: every worker collects a test file that needs them, only one runs it."""

import importlib
from typing import Any


class Module:
    """A module that is imported when something of it is first read; to replace something, name it by its path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("__") or name == "_mock_name"
        ):  # pytest asks all that it collects for these
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
