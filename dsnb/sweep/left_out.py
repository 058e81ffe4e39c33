"""Settings that are left out of a sweep or a prediction; `skip_oom` leaves out those predicted not to fit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from dsnb.errors import SettingsError
from dsnb.sweep import job
from dsnb.sweep.params import Sweep


def lines(left_out: Iterable[tuple[str, str]], total: int, in_full: bool = False) -> Iterator[str]:
    """Yield a line for each reason, with the number of settings that are left out for it.

    Parameters
    ----------
    left_out
        Name and reason of each setting.
    total
        The number of all settings, those that are left out included.
    in_full
        Whether each name follows in a line; a single one is always in its reason's line.
    """
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out:
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        note = f" ({names[0]})" if len(names) == 1 else "" if in_full else " (names with -v)"
        yield f"left out {len(names)} of {total} settings{note}: {reason}"
        if in_full and len(names) > 1:
            yield from (f"  {name}" for name in sorted(set(names)))


def unfit_lines(sweep: Sweep, in_full: bool = False) -> Iterator[str]:
    """Yield what a sweep leaves out because it is predicted not to fit, as `lines` does."""
    unfit = [(f"{name} {need}", "predicted not to fit into memory") for name, need in sweep.left_out.items()]
    yield from lines(unfit, len({run.name for run in sweep.runs}) + len(unfit), in_full)


def without_unfit(sweep: Sweep, say: Callable[[str], None], in_full: bool = False) -> Sweep:
    """Return a sweep without the settings that are predicted not to fit, if its params ask for that.

    Left out is what would not fit even if the prediction were as wrong as the worst one was. Settings that cannot be
    predicted stay, and so do those with an ok run. `say` is called with what is being predicted, and with each of
    `unfit_lines`.

    Raises
    ------
    SettingsError
        If the memory is unknown for every setting, nothing is left, or torch is missing, which predictions need.
    """
    if not sweep.params.get("skip_oom"):
        return sweep
    from dsnb.prediction.fit import fits_here, room_here

    experiments = {run.name: run.experiment for run in sweep.runs}
    if not any(map(room_here, experiments.values())):
        raise SettingsError(
            "skip_oom needs the memory of the GPUs, which is not known here: start the sweep where the GPUs are, set "
            "memory_limit_gib, or leave skip_oom out"
        )
    measured = {run.name for run in sweep.runs if (result := job.read_result(run.paths)) and result.status == "ok"}
    asked = [name for name in experiments if name not in measured]
    say(f"predicting the memory of {len(asked)} setting{'' if len(asked) == 1 else 's'}")
    fits = dict(zip(asked, fits_here([experiments[name] for name in asked]), strict=True))
    too_large = {name: fit for name, fit in fits.items() if fit and fit.is_too_large}
    if len(too_large) == len(experiments):
        name, least = min(too_large.items(), key=lambda item: item[1].peak_gib)
        raise SettingsError(f"skip_oom leaves nothing to run: the smallest setting, {name}, {least}")
    runs = tuple(run for run in sweep.runs if run.name not in too_large)
    fitting = replace(sweep, runs=runs, left_out={name: str(fit) for name, fit in too_large.items()})
    for line in unfit_lines(fitting, in_full):
        say(line)
    return fitting
