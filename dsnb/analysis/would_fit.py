"""Changes that make a setting fit where none does: they keep the training the same, and the smallest comes first.

Every change keeps the model, the data and the number of sequences of an optimizer step. One change on the same GPUs
comes before two, and these before more GPUs; settings that are predicted to be faster come first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from dsnb.errors import SettingsError
from dsnb.prediction import predict
from dsnb.prediction.step_time import problem
from dsnb.runs import labels
from dsnb.settings.experiment import Experiment

MAX_CHANGED = 3
"""Settings that are changed: those that need the least memory."""
MAX_NAMED = 4
"""Changes that are named."""
TIMES = (2, 4, 8)
"""Times as many GPUs that are tried."""
Settings = Mapping[str, Any]
Kind = Callable[[Settings], list[dict[str, Any]]]


def _higher_stage(s: Settings) -> list[dict[str, Any]]:
    return [{"zero_stage": stage} for stage in range(s["zero_stage"] + 1, 4)]


def _smaller_micro_batch(s: Settings) -> list[dict[str, Any]]:
    size = s["micro_batch_size"]
    smaller = [less for less in range(size - 1, 0, -1) if size % less == 0]
    return [{"micro_batch_size": less, "grad_accum": s["grad_accum"] * (size // less)} for less in smaller]


def _chunked_loss(s: Settings) -> list[dict[str, Any]]:
    return [{"loss": "chunked"}] if s["loss"] == "whole" else []


def _checkpointing(s: Settings) -> list[dict[str, Any]]:
    if not s["activation_checkpointing"]:
        return [{"activation_checkpointing": True}]
    return [{"checkpoint_every": 1}] if s["checkpoint_every"] > 1 else []


def _offload(s: Settings) -> list[dict[str, Any]]:
    return [{"offload": where} for where in ("optimizer-cpu", "all-cpu")] if s["offload"] == "none" else []


def _more_gpus(s: Settings) -> list[dict[str, Any]]:
    """Return settings for more GPUs with as many sequences in a step: less is accumulated, or micro-batches shrink."""
    divided = [(times, name) for times in TIMES for name in ("micro_batch_size", "grad_accum") if s[name] % times == 0]
    return [{"gpus": times * s["gpus"], name: s[name] // times} for times, name in dict(divided).items()]


HERE: tuple[Kind, ...] = (_higher_stage, _smaller_micro_batch, _chunked_loss, _checkpointing, _offload)
"""Changes on the same GPUs: each returns how far it can go in steps, none if the setting has it already."""
SAID = (
    *("gpus", "zero_stage", "offload", "micro_batch_size"),
    *("grad_accum", "loss", "activation_checkpointing", "checkpoint_every"),
)
"""What changes, in the order of the words."""


def sentences(experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, **options: Any) -> tuple[str, str]:
    """Return that no setting fits, and what would.

    Parameters
    ----------
    experiments
        Settings of one task, none of which fits.
    found
        Their predictions, as `dsnb.predict` returns them.
    gpu, options
        As `dsnb.predict` takes them.
    """
    least = found.loc[found["peak_allocated_gib"].idxmin()]
    first = f"no setting fits: the smallest, {least['experiment']}, needs {_need(least)}"
    fitting, tried = _would_fit(experiments, found, gpu, **options)
    if len(fitting):
        named = [
            f"{row['instead_of']} with {row['change']} ({row['peak_allocated_gib']:.1f} GiB, "
            f"{row['tokens_per_s']:,.0f} tokens/s)"
            for row in fitting.to_dict("records")
        ]
        return first, f"predicted to fit, the smallest change first: {'; '.join(named)}"
    lowest = tried.loc[tried["peak_allocated_gib"].idxmin()]
    changes = "smaller micro-batches, chunked loss, activation checkpointing, ZeRO, offload or more GPUs"
    return first, f"none would with {changes}: the least, {lowest['experiment']}, needs {_need(lowest)}"


def _need(row: "pd.Series[Any]") -> str:
    return f"{row['peak_allocated_gib']:.1f} of {row['peak_allocated_gib'] + row['headroom_gib']:.1f} GiB"


def _would_fit(
    experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, **options: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return changed settings that are predicted to fit, smallest change first, and all that were predicted.

    Those that fit have `change`, what differs in words, and `instead_of`, the setting that was changed.
    """
    order = found["peak_allocated_gib"].sort_values(kind="stable").index[:MAX_CHANGED]
    asked = {str(found["experiment"][at]): experiments[at].model_copy(update={"device": "cuda"}) for at in order}
    tried = [found]

    def fitting(kinds: Sequence[Kind], number: int) -> pd.DataFrame:
        """Return what fits with this number of changes; of one that can go far, what goes no farther than needed."""
        rows: dict[str, dict[str, Any]] = {
            changed.name_with_model: {
                "instead_of": name, "change": _words(one, changed), "kinds": chosen, "far": far, "asked": changed,
            }
            for name, one in asked.items()
            for chosen, far, changed in variants(one, kinds, number)
            if not problem(changed, gpu, options.get("link", "nvlink"))
        }  # fmt: skip
        if not rows:
            return pd.DataFrame()
        table = predict.predict([row["asked"] for row in rows.values()], gpu, **options)
        tried.append(table)
        table = table.join(pd.DataFrame(list(rows.values())))
        nearest = table[table["fits"]].sort_values("far", kind="stable").drop_duplicates(["instead_of", "kinds"])
        return nearest.sort_values("tokens_per_s", ascending=False, kind="stable")

    here = next((table for number in (1, 2, len(HERE)) if len(table := fitting(HERE, number))), pd.DataFrame())
    more = fitting((_more_gpus,), 1)
    if here.empty and more.empty:
        more = fitting((_more_gpus, *HERE), 1 + len(HERE))
    joined = pd.concat([here.head(MAX_NAMED), more], ignore_index=True).head(MAX_NAMED)
    return joined, pd.concat(tried, ignore_index=True)


def variants(one: Experiment, kinds: Sequence[Kind], number: int) -> Iterator[tuple[tuple[str, ...], int, Experiment]]:
    """Yield a setting with this number of kinds of changes: their names, how far they go in steps, and the setting.

    Of more than two kinds together, each goes as far as it can.
    """
    for chosen in combinations(kinds, number):
        reached = [(0, one)]
        for kind in chosen:
            further = [
                (far + step, changed) for far, before in reached for step, changed in _steps(before, kind, number)
            ]
            reached = further or (reached if number > 2 else [])
        for far, changed in reached:
            yield tuple(kind.__name__ for kind in chosen), far, changed


def _steps(one: Experiment, kind: Kind, number: int) -> list[tuple[int, Experiment]]:
    """Return the steps of a change that the rules of settings allow: all, the first and the last, or the last."""
    steps = []
    for step, update in enumerate(kind(vars(one))):
        try:
            steps.append((step, Experiment(**{**one.model_dump(), **update})))
        except SettingsError:
            continue
    if number == 1:
        return steps
    return steps[-1:] if number > 2 else [*steps[:1], *steps[1:][-1:]]  # each micro-batch takes a trace of seconds


def _words(one: Experiment, changed: Experiment) -> str:
    settings, before = changed.model_dump(), one.model_dump()
    return ", ".join(labels.choice(settings, name) for name in SAID if settings[name] != before[name])
