"""Compare sequence lengths: how many tokens/s the same settings reach on longer or shorter sequences.

Runs of different sequence lengths are different tasks, so no length is recommended: a token of a
longer sequence is more work, since attention reads more tokens before it, and a model trained on it
is another model. What a length costs is a fair question all the same, and its answer is stated as a
comparison of work.
"""

import pandas as pd

from dsnb.results.answers.decide import rate
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import fixed
from dsnb.results.runs.table import named_runs, numbers
from dsnb.results.statistics import intervals
from dsnb.results.statistics.comparisons import COLUMNS, rules_of, table_of
from dsnb.results.statistics.setting_axes import split

LENGTH = "seq_len"


def compare_lengths(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare the speed of equal settings on sequences of different lengths, each with the shortest one.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.

    Returns
    -------
    pandas.DataFrame
        A row for each length of settings that were measured with several: `settings` (what they have in common, in
        words), `seq_len`, `experiment`, `runs` (ok ones), `median` (tokens/s/GPU; on a CPU tokens/s of all ranks), and
        the columns of `dsnb.compare`, missing for the shortest length, which is the base. Empty without such settings.
    """
    runs = named_runs(runs)
    is_timed = (numbers(runs, LENGTH) > 0) & (numbers(runs, "tokens_per_s") > 0)
    usable = runs[(runs["status"] == "ok") & is_timed]
    compared = []
    for _, part in split(usable, {LENGTH}):
        if numbers(part, LENGTH).nunique() > 1:
            compared.append(_compared(part))
    if compared:
        return pd.concat(compared, ignore_index=True)
    return pd.DataFrame(columns=["settings", LENGTH, "experiment", "runs", "median", *COLUMNS])


def _compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare the lengths of one combination of settings; the shortest is the base of all others."""
    figure = rate(runs)
    runs = runs.sort_values(LENGTH, kind="stable")
    settings = intervals.settings_of(runs, LENGTH, figure)
    shortest, *others = settings.values()
    rules = rules_of(runs, figure)
    pairs = [(shortest, other) for other in others]
    table = table_of(pairs, intervals.repeated(settings.values()), rules)
    table.index += 1
    run = runs.iloc[0].to_dict()
    known = [
        labels.axis("model").label(run.get("model")),
        labels.setting(run),
        f"on {labels.place(run)}",
    ]
    by_length = runs.groupby(LENGTH)
    listed = pd.DataFrame(
        {
            "settings": ", ".join(part for part in known if part not in ("", "-")),
            LENGTH: list(settings),
            "experiment": by_length["experiment"].first().tolist(),
            "runs": [len(setting.values) for setting in settings.values()],
            "median": [setting.median for setting in settings.values()],
        }
    )
    return listed.join(table)


def sentences(runs: pd.DataFrame) -> list[Sentence]:
    """Return a sentence for each combination of settings that was measured with several sequence lengths."""
    per = "GPU"
    if rate(named_runs(runs)) == "tokens_per_s":
        per = ""
    said = []
    for settings, part in compare_lengths(runs).groupby("settings", sort=False):
        lengths = []
        for row in part.to_dict("records"):
            words = ""
            if not pd.isna(row["words"]):
                words = row["words"]
            facts = {"length": f"{row[LENGTH]:g}", "rate": fixed(row["median"]), "words": words}
            lengths.append(say("lengths.one", per=per, **facts))
        said.append(say("lengths", settings=settings, lengths="; ".join(lengths)))
    return said
