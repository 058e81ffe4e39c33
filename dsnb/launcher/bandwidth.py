"""Measures all-reduce bandwidth by message size over the ranks of a run, started and supervised like any other run.

What is measured, and how, is `dsnb.train.bandwidth`'s; it is kept beside a sweep's experiments and is none of them.
"""

from pathlib import Path

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher.folder import create_run_dir
from dsnb.launcher.run import launch
from dsnb.run_folder import paths
from dsnb.run_folder.paths import BANDWIDTH, RunPaths, SweepPaths
from dsnb.run_folder.result import Result
from dsnb.settings.experiment import Experiment

WORKER = "dsnb.train.bandwidth"
MIN_BYTES, MAX_BYTES = 8, 16 * 2**30
"""Between these lies the largest message that may be asked for."""
DEFAULTS = {"gpus": "auto", "time_limit_s": 600.0, "precision": "fp32", "warmup_steps": 0, "steps": 1}
"""Settings where a test differs from a training run: all ranks, and nothing that some hardware lacks."""


def measure_bandwidth(
    experiment: Experiment, folder: str | Path | None = None, *, most_bytes: int | None = None
) -> Result:
    """Measure all-reduce bandwidth by message size over all ranks of an experiment.

    Parameters
    ----------
    experiment
        Says which ranks: device, GPUs, launcher, time limit. `Experiment(**DEFAULTS)` takes all there are.
    folder
        The sweep's folder that the figures are kept in, as `bandwidth/run<k>`; by default that of all outputs.
    most_bytes
        The largest message; by default 256 MiB on GPUs, 16 MiB on CPUs.

    Returns
    -------
    Result
        However it ended; `dsnb.render.all_reduce.load_bandwidth` reads the figures.

    Raises
    ------
    SettingsError
        If there is one rank only, or the largest message is none.
    LaunchError
        If the ranks could not even be started.
    """
    if experiment.gpus < 2:
        raise SettingsError(f"gpus is {experiment.gpus}: an all-reduce needs two ranks at least; give 2 or more")
    if most_bytes is not None and not MIN_BYTES <= most_bytes <= MAX_BYTES:
        raise SettingsError(f"most_bytes is {most_bytes}: give a number from {MIN_BYTES} to {MAX_BYTES}")
    home = paths.require_plain_name(Path(folder or paths.outputs_root()), "--output")
    run = RunPaths(create_run_dir(SweepPaths(home), BANDWIDTH))
    try:
        records.write_json(run.bandwidth_plan, {"most_bytes": most_bytes})
    except OSError as error:
        raise LaunchError(f"{run.dir} cannot be written: {error.strerror}; choose another --output") from error
    limit_s = max(experiment.step_timeout_s, experiment.time_limit_s)  # there are no steps to be missed
    experiment = experiment.model_copy(update={"step_timeout_s": limit_s})
    return launch(experiment, run.dir, progress=False, worker=WORKER)
