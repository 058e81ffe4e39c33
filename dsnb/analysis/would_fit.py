"""Changes that make a setting fit where none does: they keep the training the same, and the smallest comes first.

Every change keeps the model, the data and the number of sequences of an optimizer step. Changes on the same GPUs come
before more GPUs; among these, settings that are predicted to be faster come first. One change is enough or two are
tried, then all together. A change that can be made in steps, such as a smaller micro-batch, takes the fewest that fit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from dsnb.errors import SettingsError
from dsnb.prediction import predict
from dsnb.prediction.step_time import problem
from dsnb.runs import setting_words
from dsnb.settings.experiment import Experiment

CANDIDATES = 3
"""Settings that are changed: those that need the least memory."""
SHOWN = 4
"""Changes that are named."""
TIMES = (2, 4, 8)
"""Times as many GPUs that are tried."""
Settings = Mapping[str, Any]
Steps = list[dict[str, Any]]


@dataclass(frozen=True)
class Changed:
    """A changed setting: number of the candidate, kinds of changes with how far each goes, and the changes in words."""

    experiment: Experiment
    candidate: int
    steps: tuple[tuple[str, int], ...]
    words: str

    @property
    def kind(self) -> tuple[Any, ...]:
        """What was changed, however far."""
        return self.candidate, *(name for name, _ in self.steps)

    @property
    def far(self) -> int:
        """How far all changes go together."""
        return sum(step for _, step in self.steps)


def sentences(experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, **options: Any) -> tuple[str, ...]:
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
    fitting, tried = would_fit(experiments, found, gpu, **options)
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


def would_fit(
    experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, **options: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return changed settings that are predicted to fit, smallest change first, and all that were predicted.

    Parameters
    ----------
    experiments, found, gpu, options
        As for `sentences`.

    Returns
    -------
    fitting, tried
        Rows of `dsnb.predict`; those that fit have `change`, what differs in words, and `instead_of`, the name of the
        setting that was changed.
    """
    order = found["peak_allocated_gib"].sort_values(kind="stable").index[:CANDIDATES]
    candidates = [experiments[place].model_copy(update={"device": "cuda"}) for place in order]
    names = [found["experiment"][place] for place in order]
    tried = [found]

    def fitting(changed: Iterable[Changed]) -> pd.DataFrame:
        asked = list({one.experiment.name_with_model: one for one in changed}.values())
        asked = [one for one in asked if not problem(one.experiment, gpu, options.get("link", "nvlink"))]
        table = predict.predict([one.experiment for one in asked], gpu, **options)
        if table.empty:
            return table
        tried.append(table)
        table = table.assign(change=[one.words for one in asked], instead_of=[names[one.candidate] for one in asked])
        kept = _fewest_steps({place: one for place, one in enumerate(asked) if table["fits"][place]})
        return table.loc[kept].sort_values("tokens_per_s", ascending=False, kind="stable")

    rounds = (fitting(_all(candidates, HERE, count)) for count in (1, 2, None))
    here = next((table for table in rounds if len(table)), pd.DataFrame())
    more = fitting(_all(candidates, (_more_gpus,), 1))
    if here.empty and more.empty:
        more = fitting(_all(candidates, (_more_gpus, *HERE), None))
    found_fitting = [table for table in (here.head(SHOWN), more) if len(table)]
    joined = pd.concat(found_fitting, ignore_index=True).head(SHOWN) if found_fitting else pd.DataFrame()
    return joined, pd.concat(tried, ignore_index=True)


def _fewest_steps(fitting: Mapping[int, Changed]) -> list[int]:
    """Return the places of those that fit whose changes go no farther than needed."""
    nearest: dict[tuple[Any, ...], int] = {}
    for place, one in sorted(fitting.items(), key=lambda item: item[1].far):
        nearest.setdefault(one.kind, place)
    return sorted(nearest.values())


def _all(candidates: Sequence[Experiment], kinds: Sequence["Kind"], count: int | None) -> Iterator[Changed]:
    """Yield every candidate with `count` kinds of changes in every step; None for all kinds, as far as they go."""
    for number, one in enumerate(candidates):
        for chosen in combinations(kinds, count) if count else [tuple(kinds)]:
            for steps, changed in _changed(one, chosen, only_farthest=count is None, sizes=count == 1):
                settings, before = changed.model_dump(), one.model_dump()
                words = [setting_words.choice(settings, name) for name in SAID if settings[name] != before[name]]
                yield Changed(changed, number, steps, ", ".join(words))


def _changed(
    one: Experiment, kinds: Sequence["Kind"], only_farthest: bool, sizes: bool
) -> Iterator[tuple[tuple[tuple[str, int], ...], Experiment]]:
    """Yield a setting with some kinds of changes, and how far each goes; with `only_farthest`, as far as is allowed."""
    if not kinds:
        yield (), one
        return
    kind, *rest = kinds
    made = [(step, changed) for step, update in enumerate(kind(vars(one))) if (changed := _accepted(one, update))]
    if only_farthest:
        made = made[-1:]
        if not made:
            yield from _changed(one, rest, only_farthest, sizes)
    elif not sizes and len(made) > 2:  # a trace for each size with chunked loss takes seconds
        made = [made[0], made[-1]]
    for step, changed in made:
        for steps, further in _changed(changed, rest, only_farthest, sizes):
            yield ((kind.__name__, step), *steps), further


def _accepted(one: Experiment, update: Settings) -> Experiment | None:
    try:
        return Experiment(**{**one.model_dump(), **update})
    except SettingsError:
        return None


def _smaller_micro_batch(s: Settings) -> Steps:
    size = s["micro_batch_size"]
    return [
        {"micro_batch_size": less, "grad_accum": s["grad_accum"] * (size // less)}
        for less in range(size - 1, 0, -1)
        if size % less == 0
    ]


def _chunked_loss(s: Settings) -> Steps:
    return [{"loss": "chunked"}] if s["loss"] == "whole" else []


def _checkpointing(s: Settings) -> Steps:
    if not s["activation_checkpointing"]:
        return [{"activation_checkpointing": True}]
    return [{"checkpoint_every": 1}] if s["checkpoint_every"] > 1 else []


def _higher_stage(s: Settings) -> Steps:
    return [{"zero_stage": stage} for stage in range(s["zero_stage"] + 1, 4)]


def _offload(s: Settings) -> Steps:
    return [{"offload": where} for where in ("optimizer-cpu", "all-cpu")] if s["offload"] == "none" else []


def _more_gpus(s: Settings) -> Steps:
    """Return settings for more GPUs with as many sequences in a step: less is accumulated, or micro-batches shrink."""
    found = []
    for times in TIMES:
        for name in ("grad_accum", "micro_batch_size"):
            if s[name] % times == 0:
                found.append({"gpus": times * s["gpus"], name: s[name] // times})
                break
    return found


Kind = Callable[[Settings], Steps]
HERE: tuple[Kind, ...] = (_higher_stage, _smaller_micro_batch, _chunked_loss, _checkpointing, _offload)
"""Changes on the same GPUs."""
SAID = (
    "gpus",
    "zero_stage",
    "offload",
    "micro_batch_size",
    "grad_accum",
    "loss",
    "activation_checkpointing",
    "checkpoint_every",
)
"""What changes, in the order of the words."""
