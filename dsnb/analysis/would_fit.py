"""Changes that make a setting fit where none does: they keep the training the same, and the smallest comes first.

Every change keeps the model, the data and the number of sequences of an optimizer step. One change on the same GPUs
comes before two, and these before more GPUs; settings that are predicted to be faster come first.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
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
HERE = ("zero_stage", "micro_batch_size", "loss", "activation_checkpointing", "offload")
"""Kinds of changes on the same GPUs, by the setting that they begin with; the other kind is `gpus`."""
SAID = (
    *("gpus", "zero_stage", "offload", "micro_batch_size"),
    *("grad_accum", "loss", "activation_checkpointing", "checkpoint_every"),
)
"""What changes, in the order of the words."""


def _updates(s: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the changes of settings by kind, in steps; none if the settings have it already.

    On more GPUs, less is accumulated or micro-batches shrink, so that a step has as many sequences.
    """
    size, count, every = s["micro_batch_size"], s["grad_accum"], s["checkpoint_every"]
    recomputed = [{"checkpoint_every": 1}] if every > 1 else []
    divisible = [(times, name) for times in (2, 4, 8) for name in ("micro_batch_size", "grad_accum")]
    divided = {times: name for times, name in divisible if s[name] % times == 0}
    return {
        "zero_stage": [{"zero_stage": stage} for stage in range(s["zero_stage"] + 1, 4)],
        "micro_batch_size": [
            {"micro_batch_size": less, "grad_accum": count * (size // less)}
            for less in range(size - 1, 0, -1)
            if size % less == 0
        ],
        "loss": [{"loss": "chunked"}] if s["loss"] == "whole" else [],
        "activation_checkpointing": (
            recomputed if s["activation_checkpointing"] else [{"activation_checkpointing": True}]
        ),
        "offload": [{"offload": where} for where in ("optimizer-cpu", "all-cpu")] if s["offload"] == "none" else [],
        "gpus": [{"gpus": times * s["gpus"], name: s[name] // times} for times, name in divided.items()],
    }


def sentences(experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, **options: Any) -> tuple[str, str]:
    """Return that none of the settings of a task fits by `found`, which `dsnb.predict` returned, and what would."""
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

    def fewest(kinds: Sequence[str]) -> pd.DataFrame:
        """Return what fits with the fewest changes; of those of the same kinds, what goes no farther than needed."""
        for number in range(1, len(kinds) + 1):
            rows: dict[str, dict[str, Any]] = {
                changed.name_with_model: {"instead_of": name, "kinds": chosen, "far": far, "asked": changed}
                for name, one in asked.items()
                for chosen, far, changed in variants(one, kinds, number)
                if not problem(changed, gpu, options.get("link", "nvlink"))
            }
            if not rows:
                continue
            table = predict.predict([row["asked"] for row in rows.values()], gpu, **options)
            tried.append(table)
            table = table.join(pd.DataFrame(list(rows.values())))[table["fits"]]
            if len(table):
                for at, row in table.iterrows():
                    before, after = asked[row["instead_of"]].model_dump(), row["asked"].model_dump()
                    changed = [labels.choice(after, name) for name in SAID if after[name] != before[name]]
                    table.loc[at, "change"] = ", ".join(changed)
                nearest = table.sort_values("far", kind="stable").drop_duplicates(["instead_of", "kinds"])
                return nearest.sort_values("tokens_per_s", ascending=False, kind="stable")
        return pd.DataFrame()

    here = fewest(HERE)
    more = fewest(["gpus"] if len(here) else ["gpus", *HERE])
    joined = pd.concat([here.head(MAX_NAMED), more], ignore_index=True).head(MAX_NAMED)
    return joined, pd.concat(tried, ignore_index=True)


def variants(one: Experiment, kinds: Sequence[str], number: int) -> Iterator[tuple[tuple[str, ...], int, Experiment]]:
    """Yield a setting with this number of kinds of changes: the kinds, how far they go in steps, and the setting."""
    for chosen in combinations(kinds, number):
        reached = [(0, one)]
        for kind in chosen:
            reached = [(far + step, each) for far, before in reached for step, each in _steps(before, kind, number)]
        yield from ((chosen, far, changed) for far, changed in reached)


def _steps(one: Experiment, kind: str, number: int) -> list[tuple[int, Experiment]]:
    """Return the steps of a change that the rules of settings allow: all, the first and the last of two, or the last.

    With a chunked loss, each micro-batch takes a trace of seconds.
    """
    steps = []
    for step, update in enumerate(_updates(vars(one))[kind]):
        with contextlib.suppress(SettingsError):
            steps.append((step, Experiment(**{**one.model_dump(), **update})))
    if number == 1:
        return steps
    return steps[-1:] if number > 2 else [*steps[:1], *steps[1:][-1:]]
