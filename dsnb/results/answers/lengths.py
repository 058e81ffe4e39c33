"""Compare sequence lengths: how many tokens/s the same settings reach on longer or shorter sequences.

Runs of different sequence lengths are different tasks, so no length is recommended: a token of a longer sequence is
more work, since attention reads more tokens before it, and a model trained on it is another model. What a length costs
is a fair question all the same, and its answer is stated as a comparison of work.
"""

import pandas as pd

from dsnb.results.answers.decide import rate
from dsnb.results.runs import labels
from dsnb.results.runs.table import named_runs, numbers
from dsnb.results.runs.texts import fixed
from dsnb.results.statistics import intervals
from dsnb.results.statistics.comparisons import COLUMNS, rules_of, table_of
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.results.statistics.setting_axes import setting_axes, with_setting_axes
from dsnb.results.statistics.tasks import TASK

LENGTH = "seq_len"
TITLE = "What longer sequences cost"
ABOUT = (
    "A comparison of work, not of settings: the same settings on sequences of different lengths. A token of a longer "
    "sequence is more work, and models trained on different lengths are different models, so no length is recommended."
)


def compare_lengths(runs: pd.DataFrame, relevance: float = RELEVANCE) -> pd.DataFrame:
    """Compare the speed of equal settings on sequences of different lengths, each with the shortest one.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    relevance
        Smallest change that matters, as for `dsnb.compare`.

    Returns
    -------
    pandas.DataFrame
        A row for each length of settings that were measured with several: `settings` (what they have in common, in
        words), `seq_len`, `experiment`, `runs` (ok ones), `median` (tokens/s/GPU; on a CPU tokens/s of all ranks), and
        the columns of `dsnb.compare`, missing for the shortest length, which is the base. Empty without such settings.
    """
    runs = named_runs(runs)
    usable = runs[
        (runs["status"] == "ok") & (numbers(runs, LENGTH) > 0) & (numbers(runs, "tokens_per_s") > 0)
    ]
    if usable.empty or usable[LENGTH].nunique() < 2:
        return pd.DataFrame(columns=["settings", LENGTH, "experiment", "runs", "median", *COLUMNS])
    table = with_setting_axes(usable)
    names = [
        name
        for name in dict.fromkeys([*TASK, *setting_axes(table)])
        if name != LENGTH and name in table
    ]
    keys = table[names].astype(object).map(labels.text)  # a missing value is equal to another
    same = keys.groupby(names, sort=False).indices.values()
    parts = [usable.iloc[places] for places in sorted(same, key=min)]
    compared = [_compared(part, relevance) for part in parts if part[LENGTH].nunique() > 1]
    return pd.concat(compared, ignore_index=True) if compared else compare_lengths(runs.head(0))


def _compared(runs: pd.DataFrame, relevance: float) -> pd.DataFrame:
    """Compare the lengths of one combination of settings; the shortest is the base of all others."""
    figure = rate(runs)
    settings = intervals.settings_of(runs.sort_values(LENGTH, kind="stable"), LENGTH, figure)
    shortest, *others = settings.values()
    pairs = [(shortest, other) for other in others]
    table = table_of(
        pairs, intervals.repeated(settings.values()), rules_of(runs, figure, relevance=relevance)
    )
    table.index += 1
    run = runs.iloc[0].to_dict()
    model, setting = labels.text(run.get("model")), labels.setting(run)
    known = [part for part in (model, setting, f"on {labels.place(run)}") if part not in ("", "-")]
    first = runs.drop_duplicates(LENGTH).set_index(LENGTH)["experiment"]
    listed = pd.DataFrame(
        {
            "settings": ", ".join(known),
            LENGTH: list(settings),
            "experiment": [first[length] for length in settings],
            "runs": [len(setting.values) for setting in settings.values()],
            "median": [setting.median for setting in settings.values()],
        }
    )
    return listed.join(table)


def sentences(runs: pd.DataFrame) -> list[str]:
    """Return a sentence for each combination of settings that was measured with several sequence lengths."""
    table = compare_lengths(runs)
    unit = "" if rate(named_runs(runs)) == "tokens_per_s" else "/GPU"
    return [
        f"{settings}: " + "; ".join(_length(row, unit) for row in part.to_dict("records")) + "."
        for settings, part in table.groupby("settings", sort=False)
    ]


def _length(row: dict[str, object], unit: str) -> str:
    speed = f"sequence {row[LENGTH]:g}, {fixed(float(str(row['median'])))} tokens/s{unit}"
    return speed if pd.isna(row["words"]) else f"{speed} ({row['words']})"
