"""dsnb: which DeepSpeed settings to train with on your hardware, answered by measuring.

Names are loaded at first use: looking at results must not need torch, and training must not load pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsnb.errors import DsnbError, SettingsError
    from dsnb.experiment import Experiment
    from dsnb.explorer.explore import explore
    from dsnb.launcher.run import launch
    from dsnb.literature.tables import published
    from dsnb.report import write_report
    from dsnb.runs import load_runs, load_steps
    from dsnb.summary import summarize
    from dsnb.sweep import load_sweep, run_sweep

__version__ = "0.1.0"

_HOME = {
    "DsnbError": "errors",
    "SettingsError": "errors",
    "Experiment": "experiment",
    "explore": "explorer.explore",
    "launch": "launcher.run",
    "load_sweep": "sweep",
    "published": "literature.tables",
    "run_sweep": "sweep",
    "load_runs": "runs",
    "load_steps": "runs",
    "summarize": "summary",
    "write_report": "report",
}

__all__ = [
    "DsnbError",
    "Experiment",
    "SettingsError",
    "explore",
    "launch",
    "load_runs",
    "load_steps",
    "load_sweep",
    "published",
    "run_sweep",
    "summarize",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dsnb' has no attribute {name!r}")
    return getattr(import_module(f"dsnb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
