"""Launches an all-reduce bandwidth test over the ranks of a run, supervised like any other run.

`dsnb.train.bandwidth` defines the measurement. The test is kept beside a sweep's experiments, not among them.
"""

from pathlib import Path

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.launcher.folder import create_run_dir
from dsnb.launcher.run import launch
from dsnb.run_folder import paths
from dsnb.run_folder.paths import BANDWIDTH, RunPaths, SweepPaths
from dsnb.run_folder.result import Result
from dsnb.settings.experiment import Experiment

WORKER = "dsnb.train.bandwidth"
MIN_BYTES, MAX_BYTES = 8, 16 * 2**30
"""Limits of the largest message size."""
DEFAULTS = {"gpus": "auto", "time_limit_s": 600.0, "precision": "fp32", "warmup_steps": 0, "steps": 1}
"""Settings in which a test differs from a training run: all ranks, and no hardware-dependent precision."""


def measure_bandwidth(
    experiment: Experiment, folder: str | Path | None = None, *, most_bytes: int | None = None
) -> Result:
    """Measure all-reduce bandwidth by message size over all ranks of an experiment.

    Parameters
    ----------
    experiment
        Selects the ranks: device, GPUs, launcher, time limit. `Experiment(**DEFAULTS)` takes all of them.
    folder
        The sweep folder that receives `bandwidth/run<k>`; by default the root of all outputs.
    most_bytes
        The largest message; by default 256 MiB on GPUs, 16 MiB on CPUs.

    Returns
    -------
    Result
        The result, whatever its status; `dsnb.runs.all_reduce.load_bandwidth` reads the figures.

    Raises
    ------
    SettingsError
        If there is only one rank, or the largest message size is out of range.
    LaunchError
        If the ranks could not be started.
    """
    if experiment.gpus < 2:
        raise SettingsError(f"gpus is {experiment.gpus}: an all-reduce needs at least 2 ranks; set it to 2 or more")
    if most_bytes is not None and not MIN_BYTES <= most_bytes <= MAX_BYTES:
        raise SettingsError(f"most_bytes is {most_bytes}: choose a number from {MIN_BYTES} to {MAX_BYTES}")
    home = Path(folder or paths.outputs_root())
    run = RunPaths(create_run_dir(SweepPaths(home), BANDWIDTH))
    records.write_json(run.bandwidth_plan, {"most_bytes": most_bytes})
    limit_s = max(experiment.step_timeout_s, experiment.time_limit_s)  # a test has no steps
    experiment = experiment.model_copy(update={"step_timeout_s": limit_s})
    return launch(experiment, run.dir, progress=False, worker=WORKER)
