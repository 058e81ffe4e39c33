"""Executes the notebook of one run through papermill; there is always a result.

`python -m dsnb.measure.sweep.job RUN_DIR` executes the run described in that folder in a separate
process: in parallel with runs on other hosts, or as a Slurm job. A stop signal
(`dsnb.base.system.signals`) ends the run as `interrupted`.
"""

from dsnb.base.system import interpreter

if __name__ == "__main__":
    interpreter.drop_current_folder()

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from dsnb.base.errors import DsnbError, KernelDiedError, SettingsError
from dsnb.base.files import plain_text
from dsnb.base.system import launch_clock, signals
from dsnb.measure.execute import notebook
from dsnb.measure.launcher import folder
from dsnb.measure.launcher.outcome import Outcome
from dsnb.measure.launcher.run import write_result
from dsnb.measure.sweep.params import Run
from dsnb.settings import inputs
from dsnb.settings.experiment import DEFAULTS, SUPERVISION
from dsnb.settings.records import paths
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord

MODULE = "dsnb.measure.sweep.job"
"""Executes one run in a process of its own."""
NOTEBOOK = "10_run"
STOPPED = Outcome("interrupted", "stopped by the user")
CHANGED = (
    "restore it, or choose another --output, so that runs with different files are not averaged"
)


def execute(run: Run, is_begun: bool = False) -> Result:
    """Prepare the folder of a run unless it has begun, execute its notebook and return the result."""
    if not is_begun:
        begin(run)
    began_s = launch_clock.now_s()
    outcome = Outcome("interrupted", "the notebook ended without starting the run")
    template = paths.notebook_template(NOTEBOOK)
    try:
        # The parameters cell may have been edited.
        defaults = DEFAULTS | notebook.parameters(template)
        settings = run.experiment.model_dump().items()
        values = {name: value for name, value in settings if value != defaults[name]}
        values["run_dir"] = str(run.paths.dir.absolute())
        notebook.execute(template, run.paths.notebook, values)
    except KernelDiedError as error:
        outcome = Outcome("interrupted", str(error))
    except KeyboardInterrupt:
        finish(run.paths, STOPPED, began_s)
        raise
    except Exception as error:  # papermill, nbclient, zmq and the kernel raise many kinds; each concerns this run only
        kind = getattr(error, "ename", type(error).__name__)
        value = getattr(error, "evalue", str(error))
        status = "interrupted"
        if kind == SettingsError.__name__:
            status = "failed"
        outcome = Outcome(status, f"{kind}: {value}".splitlines()[0][:500])
    return finish(run.paths, outcome, began_s)


def begin(run: Run) -> None:
    """Make a run's folder an unfinished run with these settings, which is a row even if it is never launched.

    A folder that cannot be written ends the sweep.
    """
    files = inputs.digests(run.experiment)
    check_inputs(run, files)
    planned = {
        "order_seed": run.order_seed,
        "order_place": run.place,
        "model_name": run.model_name or None,
        "inputs": files or None,
    }
    planned = {name: value for name, value in planned.items() if value is not None}
    with folder.writing(run.paths.dir, "choose another --output"):
        folder.check_free_space(run.paths.dir)
        folder.begin(run.paths, run.experiment, planned)


def check_inputs(run: Run, now: Mapping[str, str]) -> None:
    """Raise SettingsError if the sweep began with files that had other digests than `now`."""
    files = inputs.changed(run.inputs, now)
    if files:
        raise SettingsError(f"{files[0]} has changed since the sweep began: {CHANGED}")


def finish(run: RunPaths, outcome: Outcome, began_s: float) -> Result:
    """Return the result that the launch wrote, or write one in its place.

    Without it, the launch did not get to its end, so the run is interrupted, or finished if all
    steps are recorded. It has `failed` only if its settings were refused.
    """
    record = RunRecord(run)
    written = Result.of(record)
    if written:
        return written
    phases_s = {"wall": launch_clock.now_s() - began_s}
    with folder.writing(run.dir, "start the sweep again when it can"):
        return write_result(record, {}, phases_s, outcome)


def changed_settings(run: Run, record: RunRecord) -> str:
    """Return how the settings in a run's folder differ from the current ones; empty if they are equal.

    A run of a sub-cluster belongs to its hosts, or the spread between groups would mean nothing. A
    setting missing in the folder is newer than the run and had its default, except torch's
    allocator, which is not compared then. Nor is a setting that is unknown until the script shows it.
    """
    recorded = record.settings
    file = run.paths.experiment.name
    if recorded.keys().isdisjoint(DEFAULTS) or record.invalid(file):
        return ""
    before = DEFAULTS | recorded
    now = run.experiment.model_dump()
    ignored = set(SUPERVISION)
    if run.lane:
        ignored.remove("include")
    if "auto" in (now["device"], before["device"]):  # resolved by the hosts
        ignored.add("device")
    if "allocator" not in record.as_written[file]:
        ignored.add("allocator")
    return ", ".join(
        f"{key} was {plain_text.short_repr(before[key])} and is {plain_text.short_repr(now[key])}"
        for key in now
        if key not in ignored and now[key] is not None and before[key] != now[key]
    )


def main() -> int:
    """Execute the run in the folder that the command line names."""
    run_dir, *options = sys.argv[1:]
    signals.install_handlers()
    if "--owned" in options:  # by the process at the other end of standard input
        threading.Thread(target=_end_with_owner, daemon=True).start()
    try:
        run = load_run(RunPaths(Path(run_dir).absolute()))
        check_inputs(run, inputs.digests(run.experiment))
        result = execute(run, is_begun=True)
    except KeyboardInterrupt:
        return signals.INTERRUPTED
    except DsnbError as error:
        print(f"error: {plain_text.line(error)}", file=sys.stderr)
        return 1
    print(plain_text.line(f"{result.status}: {result.cause or 'as planned'}"))
    return 0


def load_run(run: RunPaths) -> Run:
    """Return the run that the settings in a folder describe."""
    record = RunRecord(run)
    if not record.settings:
        raise SettingsError(f"{run.experiment} holds no settings: start the sweep again")
    files = record.settings.get("inputs", {})
    return Run(run.dir.parent.name, record.experiment, run.repeat or 1, run, inputs=files)


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
