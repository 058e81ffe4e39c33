"""Follow a sweep that is running: load its runs again and again, and keep what the reader chose."""

import asyncio
import contextlib
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dsnb.errors import DsnbError
from dsnb.explorer.data import Data
from dsnb.explorer.state import State, change, default
from dsnb.runs.load import load_runs

if TYPE_CHECKING:
    from dsnb.explorer.explore import Explorer

EVERY_S = 2.0
"""Time between two looks at the folder."""
IDENTITY = ["sweep", "experiment", "repeat"]


class Watch:
    """The watch over one folder of runs; it ends when its explorer is gone, or with `stop`.

    Without an event loop, as in a plain script, nothing happens by itself: call `look`.
    """

    def __init__(self, explorer: "Explorer", folder: Path) -> None:
        self._explorer = weakref.ref(explorer)
        self._folder = folder
        self._seen = _summary(explorer.data.runs)
        with contextlib.suppress(RuntimeError):  # no event loop is running
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Stop watching."""
        self._explorer = lambda: None  # type: ignore[assignment]

    async def _follow(self) -> None:
        while self._explorer() is not None:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> bool:
        """Show the runs that are in the folder now, and return whether they are others than before."""
        explorer = self._explorer()
        if explorer is None:
            return False
        try:
            runs = load_runs(self._folder)
        except (DsnbError, OSError):  # the folder is being replaced
            return False
        seen = _summary(runs)
        if seen == self._seen:
            return False
        self._seen = seen
        explorer.show(runs)
        return True


def _summary(runs: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(runs[[*IDENTITY, "status"]].astype(str).itertuples(index=False, name=None))


def carried_over(before: Data, state: State, after: Data) -> State:
    """Return the state for other runs: what the reader chose stays as far as it exists there.

    A pinned or opened run is found again by its experiment and repeat, since its position may have changed.
    """
    usual, kept = default(before), default(after)
    for name, value in state.items():
        moved = _moved(before, after, value) if name in {"run", "pins"} else value
        if value != usual.get(name) or name == "task":
            with contextlib.suppress(DsnbError):  # not in these runs
                kept = change(after, kept, {name: moved})
    with contextlib.suppress(DsnbError):
        kept = change(after, kept, {"brush": state["brush"]})  # a change of an axis clears the region
    return kept


def _moved(before: Data, after: Data, value: object) -> object:
    if isinstance(value, list):
        return [_moved(before, after, one) for one in value]
    if not isinstance(value, int):
        return value
    identities = [
        list(map(tuple, one.runs.reindex(columns=IDENTITY).astype(str).to_numpy())) for one in (before, after)
    ]
    wanted = identities[0][value]
    return identities[1].index(wanted) if wanted in identities[1] else None
