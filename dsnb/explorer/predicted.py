"""What the browser needs of predicted settings that were not run: `web/predicted.js` shows them beside the runs."""

from typing import Any

import pandas as pd

from dsnb.analysis.unmeasured import FIGURES, PER_GPU
from dsnb.explorer.data import Data, json_numbers, plain
from dsnb.runs import labels, setting_words
from dsnb.runs.columns import numbers

SIGNIFICANT = 6


def payload(data: Data) -> dict[str, Any] | None:
    """Return predicted settings by column, none of which is a run; None without any.

    Returns
    -------
    dict
        `names`, `settings` (in words), `kinds` (the GPU as prices name it), `gpus`, `tasks` (positions of titles),
        `codes` (setting -> positions among the values of its axis), `figures` and `errors` (per cent) by column, `fits`
        (None if unknown), `outside` (the place in `texts` of the words on how a setting differs from all runs that the
        time model is fitted to), `notes`.
    """
    table = data.predicted
    if not len(table) and not data.predicted_notes:
        return None
    rows = table.to_dict("records")
    outside = list(dict.fromkeys(row["outside"] for row in rows))  # many settings share theirs
    known = [name for name in (*FIGURES, PER_GPU) if len(table) and table[name].notna().any()]
    return {
        "names": [labels.text(row["experiment"]) for row in rows],
        "settings": [setting_words.setting(row) for row in rows],
        "kinds": [str(row["gpu_name"]) for row in rows],
        "gpus": [int(row["gpus"]) for row in rows],
        "tasks": data.predicted_tasks,
        "codes": {name: choice.predicted for name, choice in data.choices.items() if choice.predicted},
        "figures": {name: _rounded(numbers(table, name)) for name in known},
        "errors": {name: _rounded(numbers(table, f"{name}_error_pct")) for name in known},
        "fits": [plain(row["fits"]) for row in rows],
        "outside": [outside.index(row["outside"]) for row in rows],
        "texts": outside,
        "notes": list(data.predicted_notes),
    }


def _rounded(values: pd.Series) -> list[float | int | None]:
    """Return numbers as precise as a prediction can be."""
    return json_numbers(float(f"{value:.{SIGNIFICANT}g}") for value in values)
