"""Predictions beside the form: made in a thread, so that the form answers meanwhile; the latest change wins."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pandas as pd

from dsnb.designer.predicted import Predict, StillPredictingError
from dsnb.settings.experiment import Experiment

Asked = tuple[int, list[Experiment]]
"""The number of a question, and its experiments."""


class Predicting:
    """Predicts as `predict` does, but raises `StillPredictingError` at once where the answer is not known yet.

    Where no event loop is running, which would take the answer of a thread, it waits.

    Parameters
    ----------
    predict
        The function that predicts. It is called in one thread at a time.
    changed
        Is called in the event loop when an answer has become known that is still asked for.
    """

    def __init__(self, predict: Predict, changed: Callable[[], None]) -> None:
        self._predict, self._changed = predict, changed
        self._question = 0
        self._asked: Asked = (0, [])
        self._known: tuple[Asked, pd.DataFrame | Exception] | None = None
        self._is_running = False

    def forget(self) -> None:
        """Ask anew from now on: `predict` has another answer to the same experiments."""
        self._question += 1

    def __call__(self, experiments: list[Experiment]) -> pd.DataFrame:
        """Return the prediction of these experiments.

        Raises
        ------
        StillPredictingError
            If it is being made.
        """
        asked = self._question, experiments
        if self._known and self._known[0] == asked:
            if isinstance(self._known[1], Exception):
                raise self._known[1]
            return self._known[1]
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._predict(experiments)
        self._asked = asked
        if not self._is_running:
            self._start(loop)
        raise StillPredictingError

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_running = True
        threading.Thread(target=self._work, args=(loop, self._asked), daemon=True).start()

    def _work(self, loop: asyncio.AbstractEventLoop, asked: Asked) -> None:
        found: pd.DataFrame | Exception
        try:
            found = self._predict(asked[1])
        except Exception as error:  # of a function from elsewhere; the plan turns it into a note
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._end, loop, asked, found)

    def _end(self, loop: asyncio.AbstractEventLoop, asked: Asked, found: pd.DataFrame | Exception) -> None:
        self._is_running = False
        if asked != self._asked:  # the form has changed since
            self._start(loop)
            return
        self._known = asked, found
        self._changed()
