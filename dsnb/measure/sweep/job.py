"""Executes the notebook of one run through papermill; there is always a result.

`python -m dsnb.measure.sweep.job RUN_DIR` executes the run described in that folder in a separate process: in parallel with
runs on other hosts, or as a Slurm job. A stop signal (`dsnb.base.system.signals`) ends the run as `interrupted`.
"""

from dsnb.base.system import interpreter

if __name__ == "__main__":
    interpreter.drop_current_folder()

import os
import signal
import sys
import threading
from pathlib import Path

from dsnb.base.errors import DsnbError, KernelDiedError, LaunchError, SettingsError
from dsnb.base.files import json_files, plain_text
from dsnb.base.system import launch_clock, signals
from dsnb.measure.execute import notebook
from dsnb.measure.launcher.folder import check_free_space, remove_leftovers, write_experiment
from dsnb.measure.launcher.run import write_result
from dsnb.measure.sweep.params import Run
from dsnb.settings import inputs
from dsnb.settings.experiment import DEFAULTS, SUPERVISION, Experiment
from dsnb.settings.records import paths, record_schema
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result

NOTEBOOK = "10_run"
CHANGED = (
    "restore it, or choose another --output, so that runs with different files are not averaged"
)


def execute(run: Run) -> Result:
    """Execute the notebook of a run and return the result; a folder that cannot be written ends the sweep."""
    began = launch_clock.now_s()
    try:
        initialize(run)
    except OSError as error:
        raise LaunchError(
            f"{run.paths.dir} cannot be written: {error.strerror}; choose another --output"
        ) from error
    status, cause = "interrupted", "the notebook ended without starting the run"
    try:
        template = paths.notebook_template(NOTEBOOK)
        defaults = DEFAULTS | notebook.parameters(
            template
        )  # the parameters cell may have been edited
        values = {
            name: value
            for name, value in run.experiment.model_dump().items()
            if value != defaults[name]
        }
        values["run_dir"] = str(run.paths.dir.absolute())
        notebook.execute(template, run.paths.notebook, values)
    except KernelDiedError as error:
        cause = str(error)
    except KeyboardInterrupt:
        finish(run.paths, "interrupted", "stopped by the user", began)
        raise
    except Exception as error:  # papermill, nbclient, zmq and the kernel raise many kinds; each concerns this run only
        kind, value = (
            getattr(error, "ename", type(error).__name__),
            getattr(error, "evalue", str(error)),
        )
        cause = f"{kind}: {value}".splitlines()[0][:500]
        status = "failed" if kind == SettingsError.__name__ else "interrupted"
    return finish(run.paths, status, cause, began)


def initialize(run: Run) -> None:
    """Make a run's folder an unfinished run with these settings, which is a row even if it is never launched."""
    if files := inputs.changed(run.inputs, inputs.digests(run.experiment.model_dump())):
        raise SettingsError(f"{files[0]} has changed since the sweep began: {CHANGED}")
    check_free_space(run.paths.dir)
    remove_leftovers(run.paths)
    planned = {
        "order_seed": run.order_seed,
        "order_place": run.place,
        "model_name": run.model_name or None,
    }
    write_experiment(run.paths, run.experiment, planned=planned if run.place else None)


def finish(run: RunPaths, status: str, cause: str, began_s: float) -> Result:
    """Return the result that the launch wrote, or write one in its place.

    Without it, the launch did not get to its end, so the run is interrupted, or finished if all steps are recorded. It
    has `failed` only if its settings were refused.
    """
    if (written := read_result(run)) is not None:
        return written
    experiment = Experiment.recorded(record_schema.read(run.experiment) or {})
    phases_s = dict((record_schema.read(run.worker) or {}).get("phases_s") or {})
    phases_s["wall"] = launch_clock.now_s() - began_s
    try:
        return write_result(experiment, run, {}, phases_s, (status, cause))
    except OSError as error:
        why = f"{run.dir} cannot be written: {error.strerror}"
        raise LaunchError(f"{why}; start the sweep again when it can") from error


def read_result(run: RunPaths) -> Result | None:
    """Return the result in a run's folder; None if it has no status."""
    record = record_schema.read(run.result)
    if not record or not record.get("status"):
        return None
    codes, phases, summary = (
        record.get(key) or {} for key in ("exit_codes", "phases_s", "summary")
    )
    codes = {int(rank): code for rank, code in codes.items()}
    return Result(record["status"], record.get("cause"), codes, phases, summary, run.dir)


def changed_settings(run: Run) -> str:
    """Return how the settings in a run's folder differ from the current ones; empty if they are equal.

    A run of a sub-cluster belongs to its hosts, or the spread between groups would mean nothing. A setting missing in
    the folder is newer than the run and had its default, except torch's allocator, which is not compared then.
    """
    record = json_files.read_json(run.paths.experiment) or {}
    recorded, problem = record_schema.cleaned(run.paths.experiment.name, record)
    if problem or recorded.keys().isdisjoint(DEFAULTS):
        return ""
    before = {**DEFAULTS, **recorded}
    now = run.experiment.model_dump()
    unknown = "auto" in (now["device"], before.get("device"))  # resolved by the hosts
    free = {*SUPERVISION, *(["device"] if unknown else [])} - {"include" if run.lane else ""}
    free |= {"allocator"} - record.keys()
    keys = [key for key in now if key not in free and before[key] != now[key]]
    return ", ".join(
        f"{key} was {plain_text.short_repr(before[key])} and is {plain_text.short_repr(now[key])}"
        for key in keys
    )


def main() -> int:
    """Execute the run in the folder that the command line names."""
    run_dir, *options = sys.argv[1:]
    signals.install_handlers()
    if "--owned" in options:  # by the process at the other end of standard input
        threading.Thread(target=_end_with_owner, daemon=True).start()
    try:
        result = execute(load_run(RunPaths(Path(run_dir).absolute())))
    except KeyboardInterrupt:
        return signals.INTERRUPTED
    except DsnbError as error:
        print(f"error: {plain_text.line(error)}", file=sys.stderr)
        return 1
    print(plain_text.line(f"{result.status}: {result.cause or 'as planned'}"))
    return 0


def load_run(run: RunPaths) -> Run:
    """Return the run that the settings in a folder describe."""
    record = json_files.read_json(run.experiment)
    if record is None:
        raise SettingsError(f"{run.experiment} holds no settings: start the sweep again")
    settings = Experiment.recorded(record)
    return Run(
        run.dir.parent.name, settings, run.repeat or 1, run, inputs=record.get("inputs") or {}
    )


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
