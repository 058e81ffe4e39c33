"""Names of runs that share a folder: those with other settings than the rest get names of their own."""

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence

from dsnb.base.errors import DsnbWarning
from dsnb.base.formulas import model_shapes
from dsnb.results.runs.names import displayable
from dsnb.results.runs.run import Run
from dsnb.settings import programs
from dsnb.settings.experiment import ALWAYS_NAMED, IN_NAMES
from dsnb.settings.records.paths import PROBE

NAMED = ("model", "strategy", "zero_stage", *ALWAYS_NAMED, *IN_NAMES)
"""Settings that names have."""


def name_by_settings(runs: Sequence[Run]) -> None:
    """Name a run that is not of its folder's experiment for both, by the settings of the runs there.

    A sweep's run is in the wrong folder then, which deserves a warning. A recorded script writes
    where its user says, with any settings.
    """
    by_experiment: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_experiment[os.path.dirname(run.folder), run.names["experiment"]].append(run)
    for (_, experiment), same in by_experiment.items():
        planned = [run for run in same if not run.is_standalone]
        standalone = [run for run in same if run.is_standalone]
        _name_planned(experiment, planned)
        _name_standalone(
            experiment, standalone, {programs.of_record(run.settings) for run in planned}
        )


def _name_planned(experiment: str, same: Sequence[Run]) -> None:
    counts = Counter(run.recorded_name for run in same if run.recorded_name)
    fitting = [name for name in counts if f"_{name}".endswith(f"_{experiment}")]
    usual = max(fitting or counts, key=counts.__getitem__, default="")
    for run in same:
        name = run.recorded_name
        if name in {"", usual} or PROBE in experiment:
            continue
        run.names["experiment"] = f"{experiment}_{name}"
        warnings.warn(
            f"{displayable(run.folder)} has the settings of {name}, unlike other runs of {experiment}: "
            f"it is listed as {experiment}_{name}; move it to its own experiment's folder",
            DsnbWarning,
            stacklevel=5,
        )


def _name_standalone(experiment: str, same: Sequence[Run], others: set[str]) -> None:
    """Name runs of scripts; `others` are the programs of the sweep's runs in the folder.

    A run of which less is known, since it failed early, is a repeat of one that it does not
    contradict.
    """
    groups: list[list[Run]] = []
    for run in sorted(same, key=_number_known, reverse=True):
        alike = [group for group in groups if _are_alike(group[0], run)]
        if alike:
            alike[0].append(run)
        else:
            groups.append([run])
    loops = {programs.loop(program) for program in others}
    loops |= {programs.loop(programs.of_record(group[0].settings)) for group in groups}
    names = {group[0].recorded_name for group in groups}
    for group in groups:
        parts = [experiment]
        if len(names) > 1:
            parts.append(group[0].recorded_name)
        if len(loops) > 1:
            parts.append(model_shapes.slug(programs.loop(programs.of_record(group[0].settings))))
        for run in group:
            run.names["experiment"] = "_".join(filter(None, parts))


def _number_known(run: Run) -> int:
    return sum(run.settings.get(name) is not None for name in NAMED)


def _are_alike(one: Run, other: Run) -> bool:
    """Return whether one program trained in both runs, and no setting that is known of both differs."""
    loops = {programs.loop(programs.of_record(run.settings)) for run in (one, other)}
    if len(loops) > 1:
        return False
    for name in NAMED:
        values = [run.settings.get(name) for run in (one, other)]
        if None not in values and values[0] != values[1]:
            return False
    return True
