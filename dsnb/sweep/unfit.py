"""`skip_oom`: leaves out the settings of a sweep that are predicted not to fit into the memory of the GPUs."""

from collections.abc import Callable
from dataclasses import replace

from dsnb.errors import SettingsError
from dsnb.sweep import job
from dsnb.sweep.params import Sweep


def without_unfit(sweep: Sweep, say: Callable[[str], None]) -> Sweep:
    """Return a sweep without the settings that are predicted not to fit, if its params ask for that.

    Left out is what would not fit even if the prediction were as wrong as the worst one was. Settings that cannot be
    predicted stay, and so do those of which a run was ok before.

    Parameters
    ----------
    say
        Is called with one sentence for each setting that is left out.

    Raises
    ------
    SettingsError
        If the memory is unknown for every setting, nothing is left, or torch is missing, which predictions need.
    """
    if not sweep.params.get("skip_oom"):
        return sweep
    from dsnb.prediction.fit import fits_here, room_here

    measured = {run.name for run in sweep.runs if (found := job.read_result(run.paths)) and found.status == "ok"}
    experiments = {run.name: run.experiment for run in sweep.runs}
    if not any(map(room_here, experiments.values())):
        raise SettingsError(
            "skip_oom needs the memory of the GPUs, which is not known here: start the sweep where the GPUs are, set "
            "memory_limit_gib, or leave skip_oom out"
        )
    asked = [name for name in experiments if name not in measured]
    say(f"predicting the memory of {len(asked)} setting{'' if len(asked) == 1 else 's'}")
    fits = dict(zip(asked, fits_here([experiments[name] for name in asked]), strict=True))
    too_large = {name: fit for name, fit in fits.items() if fit and fit.is_too_large}
    if len(too_large) == len(experiments):
        name, least = min(too_large.items(), key=lambda item: item[1].peak_gib)
        raise SettingsError(f"skip_oom leaves nothing to run: the smallest setting, {name}, {least}")
    left_out = {name: str(fit) for name, fit in too_large.items()}
    for name, why in left_out.items():
        say(f"left out: {name} {why}")
    runs = tuple(run for run in sweep.runs if run.name not in left_out)
    return replace(sweep, runs=runs, left_out={**sweep.left_out, **left_out})
