"""dsnb: which DeepSpeed settings to train with on your hardware, answered by measuring.

Names are loaded at first use: looking at results must not need torch, and training must not load
pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnb.version import __version__ as __version__

if TYPE_CHECKING:
    from dsnb.base.errors import DsnbError as DsnbError
    from dsnb.base.errors import SettingsError as SettingsError
    from dsnb.measure.launcher.run import launch as launch
    from dsnb.measure.record.callback import TrainerCallback as TrainerCallback
    from dsnb.measure.record.recorder import record as record
    from dsnb.measure.sweep.params import load_sweep as load_sweep
    from dsnb.measure.sweep.run import run_sweep as run_sweep
    from dsnb.models.adapt import adapt as adapt
    from dsnb.prediction.predict import predict as predict
    from dsnb.results.literature.tables import published as published
    from dsnb.results.runs.load import load_runs as load_runs
    from dsnb.results.runs.load import load_steps as load_steps
    from dsnb.results.statistics.comparisons import compare as compare
    from dsnb.results.statistics.comparisons import differences as differences
    from dsnb.results.statistics.rampup import rampup as rampup
    from dsnb.results.statistics.summary import summarize as summarize
    from dsnb.settings.experiment import Experiment as Experiment
    from dsnb.settings.parameters import check_parameters as check_parameters
    from dsnb.show.explorer.explore import explore as explore
    from dsnb.show.form.design import design as design
    from dsnb.show.form.recommend import recommend as recommend
    from dsnb.show.report import write_report as write_report

_HOME = {
    "DsnbError": "base.errors",
    "Experiment": "settings.experiment",
    "SettingsError": "base.errors",
    "TrainerCallback": "measure.record.callback",
    "adapt": "models.adapt",
    "check_parameters": "settings.parameters",
    "compare": "results.statistics.comparisons",
    "design": "show.form.design",
    "differences": "results.statistics.comparisons",
    "explore": "show.explorer.explore",
    "launch": "measure.launcher.run",
    "load_runs": "results.runs.load",
    "load_steps": "results.runs.load",
    "load_sweep": "measure.sweep.params",
    "predict": "prediction.predict",
    "published": "results.literature.tables",
    "rampup": "results.statistics.rampup",
    "recommend": "show.form.recommend",
    "record": "measure.record.recorder",
    "run_sweep": "measure.sweep.run",
    "summarize": "results.statistics.summary",
    "write_report": "show.report",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dsnb' has no attribute {name!r}")
    return getattr(import_module(f"dsnb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
