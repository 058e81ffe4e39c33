"""What the form predicts with by itself: dsnb's own prediction, for the GPU that the form names."""

import contextlib
from collections.abc import Callable

import pandas as pd

from dsnb.designer.predicted import Predict
from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.predict import predict
from dsnb.prediction.step_time import problem
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware


def this_gpu() -> str:
    """Return the name of this machine's first GPU in `gpus.GPUS`; empty if there is none, or it is not known."""
    with contextlib.suppress(SettingsError):
        return next((gpus.find(gpu.name).name for gpu in hardware.gpus()), "")
    return ""


def predict_on(chosen: Callable[[], str], link: str) -> Predict:
    """Return a function that predicts for the GPU that is chosen when it is called; what cannot be predicted is NaN.

    Parameters
    ----------
    chosen
        Returns the name of the GPU, empty for none.
    link
        How GPUs are connected, as `dsnb.predict` takes it.
    """

    def rows(experiments: list[Experiment]) -> pd.DataFrame:
        gpu = chosen()
        if not gpu:
            raise SettingsError("choose the GPU to predict for")
        problems = {number: problem(one, gpu, link) for number, one in enumerate(experiments)}
        places = [number for number, reason in problems.items() if not reason]
        if not places:
            raise SettingsError(next(iter(problems.values())))
        found = predict([experiments[place] for place in places], gpu, link=link)
        return found.set_index(pd.Index(places)).reindex(range(len(experiments)))

    return rows
