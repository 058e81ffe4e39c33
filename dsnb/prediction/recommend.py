"""`dsnb.recommend`: which of some settings to train with, how sure that is, and which two runs would decide it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dsnb.errors import SettingsError
from dsnb.prediction.predict import predict
from dsnb.settings.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
COLUMNS: dict[str, tuple[str, bool]] = {
    "days": ("days", True),
    "tokens_per_s": ("tokens_per_s", False),
    "memory": ("peak_allocated_gib", True),
    "cost": ("cost", True),
}
"""The column of each objective, and whether less of it is better."""
ALTERNATIVES = 3


@dataclass(frozen=True)
class Recommendation:
    """A choice among predicted settings.

    Attributes
    ----------
    table
        The best setting and the three nearest, in the columns of `dsnb.predict` and `worse_pct`: by how many per cent
        each is worse than the best in the objective.
    sentences
        What to train with, how sure that is, and what would decide it.
    """

    table: "pd.DataFrame"
    sentences: tuple[str, ...]


def recommend(
    experiments: Sequence[Experiment], gpu: str = "H200", *, objective: Objective = "days", **options: Any
) -> Recommendation:
    """Return the best of some settings that is predicted to fit.

    Parameters
    ----------
    experiments, gpu, options
        As `dsnb.predict` takes them.
    objective
        `days` or `cost` of the training, `tokens_per_s` of all GPUs, or `memory` of a GPU.

    Raises
    ------
    SettingsError
        If no setting is predicted to fit, the objective is unknown, or `cost` is asked for without a price.
    """
    if objective not in COLUMNS:
        raise SettingsError(f"objective is {objective!r}: use one of {', '.join(COLUMNS)}")
    if objective == "cost" and options.get("price") is None:
        raise SettingsError("objective is 'cost', but price is missing: give the price of a GPU-hour")
    found = predict(experiments, gpu, **options)
    fitting = found[found["fits"].astype(bool)] if len(found) else found
    if fitting.empty:
        raise SettingsError(f"no setting fits: {_nearest(found)}")
    name, less = COLUMNS[objective]
    table = fitting.sort_values(name, ascending=less, kind="stable").head(1 + ALTERNATIVES).reset_index(drop=True)
    best = table[name].iloc[0]
    table.insert(1, "worse_pct", (100 * (table[name] / best - 1) if less else 100 * (best / table[name] - 1)))
    return Recommendation(table, tuple(_sentences(table, objective, len(found) - len(fitting))))


def _nearest(found: "pd.DataFrame") -> str:
    if found.empty:
        return "there is none"
    least = found.loc[found["peak_allocated_gib"].idxmin()]
    missing = f"{-least['headroom_gib']:.1f} more than there is"
    if least["headroom_gib"] >= 0:
        missing = f"which is there, but in pieces: torch would reserve {least['peak_reserved_with_room_gib']:.1f}"
    return (
        f"the smallest, {least['experiment']}, needs {least['peak_allocated_gib']:.1f} GiB, {missing}; "
        "raise zero_stage, recompute activations or offload"
    )


def _sentences(table: "pd.DataFrame", objective: str, left_out: int) -> list[str]:
    best = table.iloc[0]
    lines = [
        f"Train with {best['experiment']}: {best['tokens_per_s']:,.0f} tokens/s "
        f"(± {best['tokens_per_s_error_pct']:.1f} %), {best['peak_allocated_gib']:.1f} GiB "
        f"(± {best['peak_allocated_error_pct']:.1f} %), {best['days']:.2f} days."
    ]
    if left_out:
        lines.append(f"{left_out} {'setting does' if left_out == 1 else 'settings do'} not fit.")
    if len(table) > 1:
        lines.append(_how_sure(best, table.iloc[1], objective))
    if best["headroom_gib"] <= best["peak_reserved_with_room_gib"] - best["peak_allocated_gib"]:
        lines.append(
            f"It fits with {best['headroom_gib']:.1f} GiB to spare, but torch would reserve "
            f"{best['peak_reserved_with_room_gib']:.1f} GiB if it could: memory in pieces can still make it run out."
        )
    if best["outside"]:
        lines.append(f"Less sure than that: {best['outside']}.")
    return lines


def _how_sure(best: Any, second: Any, objective: str) -> str:
    error = "peak_allocated_error_pct" if objective == "memory" else "tokens_per_s_error_pct"
    within = max(best[error], second[error])
    difference = f"{second['experiment']} is {second['worse_pct']:.1f} % worse"
    if second["worse_pct"] <= within:
        return (
            f"{difference}, within the error of {within:.1f} %: run {best['experiment']} and {second['experiment']} "
            "to decide."
        )
    return f"{difference}, more than the error of {within:.1f} %."
