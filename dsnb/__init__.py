"""dsnb: which DeepSpeed settings to train with on your hardware, answered by measuring.

Names are loaded at first use: looking at results must not need torch, and training must not load pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnb.version import __version__ as __version__

if TYPE_CHECKING:
    from dsnb.analysis.comparisons import compare
    from dsnb.analysis.rampup import rampup
    from dsnb.analysis.recommend import recommend
    from dsnb.analysis.summary import summarize
    from dsnb.designer.design import design
    from dsnb.errors import DsnbError, SettingsError
    from dsnb.explorer.explore import explore
    from dsnb.launcher.run import launch
    from dsnb.prediction.predict import predict
    from dsnb.report import write_report
    from dsnb.runs.literature.tables import published
    from dsnb.runs.load import load_runs, load_steps
    from dsnb.settings.experiment import Experiment
    from dsnb.sweep.run import load_sweep, run_sweep

_HOME = {
    "DsnbError": "errors",
    "SettingsError": "errors",
    "Experiment": "settings.experiment",
    "compare": "analysis.comparisons",
    "design": "designer.design",
    "explore": "explorer.explore",
    "launch": "launcher.run",
    "load_sweep": "sweep.params",
    "predict": "prediction.predict",
    "published": "runs.literature.tables",
    "rampup": "analysis.rampup",
    "recommend": "analysis.recommend",
    "run_sweep": "sweep.run",
    "load_runs": "runs.load",
    "load_steps": "runs.load",
    "summarize": "analysis.summary",
    "write_report": "report",
}

__all__ = [
    "DsnbError",
    "Experiment",
    "SettingsError",
    "compare",
    "design",
    "explore",
    "launch",
    "load_runs",
    "load_steps",
    "load_sweep",
    "predict",
    "published",
    "rampup",
    "recommend",
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
