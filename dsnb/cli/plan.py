"""The plan that `dsnb sweep --dry-run` prints."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dsnb.base.errors import SettingsError
from dsnb.base.system import interpreter
from dsnb.measure.launcher import hosts as on_hosts
from dsnb.measure.launcher.run import WORKER
from dsnb.measure.sweep import slurm as slurm_jobs
from dsnb.measure.sweep.allocation import Allocation
from dsnb.measure.sweep.params import Run, Sweep
from dsnb.measure.sweep.run import is_finished, with_inputs
from dsnb.settings import command
from dsnb.settings import hostfile as hostfiles
from dsnb.settings.command import Place
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

FINISHED, CHANGED, TO_RUN = "finished", "finished with other settings or files", "to run"


def plan_lines(
    planned: Sweep, allocation: Allocation | None = None, in_full: bool = False
) -> Iterator[str]:
    """Yield a line for each run; in full, also settings and commands."""
    states = [_state(run) for run in with_inputs(planned).runs]
    names = [str(run.paths.dir.relative_to(planned.paths.dir)) for run in planned.runs]
    widest = max(map(len, names), default=0)
    yield f"{planned.paths.dir}:"
    for run, name, state in zip(planned.runs, names, states, strict=True):
        yield f"  {name.ljust(widest)}  {state}"
        if in_full and run.repeat == 1:
            settings = {"dsnb": run.experiment.model_dump(), **_files(run)}
            yield yaml.safe_dump(
                settings, sort_keys=False, default_flow_style=None, width=110, indent=2
            )
        if in_full:
            yield from _commands(run.experiment, run.paths.dir)
        if in_full and allocation:
            job = interpreter.command("-m", "dsnb.measure.sweep.job", str(run.paths.dir.absolute()))
            options = allocation.options(run.experiment)
            yield f"  {shlex.join(slurm_jobs.sbatch_command('dsnb', run.paths.job_log, options, job))}"
    count = len(planned.runs)
    yield f"{count} run{'s' if count != 1 else ''}, {states.count(TO_RUN)} to run; nothing was started"


def _files(run: Run) -> dict[str, Any]:
    """Return the configurations that a run is given, by their names in its folder."""
    if run.experiment.command:
        return command.files(run.experiment, run.paths)
    return {"deepspeed": deepspeed_config(run.experiment)}


def _state(run: Run) -> str:
    """Return the state of a run; one that was finished with other settings would stop the sweep."""
    try:
        return FINISHED if is_finished(run) else TO_RUN
    except SettingsError:
        return CHANGED


def _commands(experiment: Experiment, run_dir: Path) -> Iterator[str]:
    """Yield the command for each host of a run, with its ranks; on this machine only, there is only one's own."""
    if experiment.command:
        place = Place(RunPaths(run_dir), experiment.master_port or 29500)
        yield f"  {shlex.join(command.arguments(experiment, place))}"
        return
    if experiment.hostfile == hostfiles.SLURM and not hostfiles.in_allocation():
        return
    try:
        hosts = experiment.hosts
    except SettingsError as error:
        yield f"  {error}"
        return
    address, port, first = hosts[0].name if hosts else "", experiment.master_port or 29500, 0
    for node, host in enumerate(hosts):
        last = first + len(host.devices) - 1
        words = on_hosts.torchrun_words(hosts, node, address, port, WORKER, run_dir)
        chosen = (
            {}
            if experiment.device == "cpu"
            else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.devices))}
        )
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        there = on_hosts.command(experiment, host, torchrun, *words, **chosen)
        yield f"  ranks {first} to {last}: {shlex.join(there)}"
        first = last + 1
