"""The plan of a sweep: a line a run; in full, its settings, DeepSpeed's configuration, and every command as well."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml

from dsnb.errors import SettingsError
from dsnb.launcher import hosts as on_hosts
from dsnb.launcher.folder import deepspeed_config
from dsnb.launcher.run import WORKER
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.sweep import left_out, slurm
from dsnb.sweep.allocation import Allocation
from dsnb.sweep.params import Run, Sweep
from dsnb.sweep.run import is_finished, with_inputs
from dsnb.system import interpreter

FINISHED, CHANGED, TO_RUN = "finished", "finished with other settings or files", "to run"


def lines(planned: Sweep, asked: Allocation | None = None, in_full: bool = False) -> Iterator[str]:
    """Yield the lines of a dry run.

    Parameters
    ----------
    planned
        The sweep.
    asked
        What a Slurm job may use, if runs are submitted.
    in_full
        Whether settings follow once per experiment, commands for every run, and names of what is left out.
    """
    states = [_state(run) for run in with_inputs(planned).runs]
    names = [str(run.paths.dir.relative_to(planned.paths.dir)) for run in planned.runs]
    widest = max(map(len, names), default=0)
    yield f"{planned.paths.dir}:"
    for run, name, state in zip(planned.runs, names, states, strict=True):
        yield f"  {name.ljust(widest)}  {state}"
        yield from _in_full(run, asked) if in_full else ()
    yield from (f"  {line}" for line in left_out.unfit_lines(planned, in_full))
    count = len(planned.runs)
    yield f"{count} run{'s' if count != 1 else ''}, {states.count(TO_RUN)} to run; nothing was started"


def _state(run: Run) -> str:
    """Return whether a run would be executed; one that was finished with other settings would stop the sweep."""
    try:
        return FINISHED if is_finished(run) else TO_RUN
    except SettingsError:
        return CHANGED


def _in_full(run: Run, asked: Allocation | None) -> Iterator[str]:
    if run.repeat == 1:
        settings = {"dsnb": run.experiment.model_dump(), "deepspeed": deepspeed_config(run.experiment)}
        yield yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=110, indent=2)
    yield from commands(run.experiment, run.paths.dir)
    if asked:
        yield f"  {submission(asked, run)}"


def submission(asked: Allocation, run: Run) -> str:
    """Return the `sbatch` command of a run."""
    command = interpreter.command("-m", "dsnb.sweep.job", str(run.paths.dir.absolute()))
    return shlex.join(slurm.sbatch_command("dsnb", run.paths.job_log, asked.options_of_run(run.experiment), command))


def commands(experiment: Experiment, run_dir: Path) -> Iterator[str]:
    """Yield the command for each host of a run, with its ranks; none for a run on this machine only."""
    if experiment.hostfile == hostfile.SLURM and not hostfile.in_allocation():
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
        chosen = {} if experiment.device == "cpu" else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.devices))}
        command = on_hosts.command(experiment, host, interpreter.script("torchrun"), *words, **chosen)
        yield f"  ranks {first} to {last}: {shlex.join(command)}"
        first = last + 1
