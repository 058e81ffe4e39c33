"""What is unusual about single runs, and how far the steps of a run that has no repeats spread, as the page says it."""

from collections import Counter
from collections.abc import Iterable

import pandas as pd

from dsnb.analysis.flags import flags, single_run_words
from dsnb.explorer import series
from dsnb.explorer.data import Data
from dsnb.runs import labels


def remarks(data: Data, read: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return remarks on runs by their positions.

    Parameters
    ----------
    data
        The runs.
    read
        The positions of runs whose steps and samples are read; of the others, only their columns count.

    Returns
    -------
    tuple of dict
        What is unusual (`dsnb.analysis.flags`), without runs of which nothing is. The spread within the run, for ok
        runs that are the only one of their experiment and whose steps are read.
    """
    found = {position: series.read(data, position) for position in read}
    runs = data.runs.reset_index(drop=True).assign(sweep="", experiment=data.experiments)
    runs["repeat"] = range(len(runs))  # tables put together may number two runs alike
    steps = [
        own.assign(sweep="", experiment=data.experiments[position], repeat=position)
        for position, (own, _) in found.items()
        if len(own)
    ]
    samples: dict[object, pd.DataFrame] = {position: own for position, (_, own) in found.items() if len(own)}
    table = flags(runs, pd.concat(steps) if steps else None, samples)
    unusual = {position: words for position, words in enumerate(table["words"]) if words}
    is_ok = [status == "ok" for status in runs["status"].map(labels.text)]
    counts = Counter(name for name, ok in zip(data.experiments, is_ok, strict=True) if ok)
    alone = [position for position in found if is_ok[position] and counts[data.experiments[position]] == 1]
    spreads = table["step_spread_pct"]
    return unusual, {at: single_run_words(spreads[at]) for at in alone if pd.notna(spreads[at])}
