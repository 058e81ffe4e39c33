"""dsnb: which DeepSpeed settings to train with on your hardware, answered by measuring.

Names are loaded at first use: looking at results must not need torch, and training must not load pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnb.version import __version__ as __version__

if TYPE_CHECKING:
    from dsnb.analysis.comparisons import compare as compare
    from dsnb.analysis.comparisons import differences as differences
    from dsnb.analysis.scaling import rampup as rampup
    from dsnb.analysis.summary import summarize as summarize
    from dsnb.designer.design import design as design
    from dsnb.designer.recommend import recommend as recommend
    from dsnb.errors import DsnbError as DsnbError
    from dsnb.errors import SettingsError as SettingsError
    from dsnb.explorer.explore import explore as explore
    from dsnb.launcher.run import launch as launch
    from dsnb.prediction.predict import predict as predict
    from dsnb.report import write_report as write_report
    from dsnb.runs.literature.tables import published as published
    from dsnb.runs.load import load_runs as load_runs
    from dsnb.runs.load import load_steps as load_steps
    from dsnb.settings.experiment import Experiment as Experiment
    from dsnb.settings.parameters import check_parameters as check_parameters
    from dsnb.sweep.params import load_sweep as load_sweep
    from dsnb.sweep.run import run_sweep as run_sweep

_HOME = {
    "DsnbError": "errors",
    "Experiment": "settings.experiment",
    "SettingsError": "errors",
    "check_parameters": "settings.parameters",
    "compare": "analysis.comparisons",
    "design": "designer.design",
    "differences": "analysis.comparisons",
    "explore": "explorer.explore",
    "launch": "launcher.run",
    "load_runs": "runs.load",
    "load_steps": "runs.load",
    "load_sweep": "sweep.params",
    "predict": "prediction.predict",
    "published": "runs.literature.tables",
    "rampup": "analysis.scaling",
    "recommend": "designer.recommend",
    "run_sweep": "sweep.run",
    "summarize": "analysis.summary",
    "write_report": "report",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dsnb' has no attribute {name!r}")
    return getattr(import_module(f"dsnb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
