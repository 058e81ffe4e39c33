"""The way into axolotl by a line of its configuration: `plugins: [dsnb.measure.record.axolotl.Plugin]`."""

from importlib import import_module
from typing import Any

from dsnb.measure.record.callback import TrainerCallback

BasePlugin: Any = import_module("axolotl.integrations.base").BasePlugin


class Plugin(BasePlugin):  # type: ignore[misc]
    """Adds the callback to axolotl's trainer."""

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        """Return the callback that records the training."""
        return [TrainerCallback()]
