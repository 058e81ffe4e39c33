"""Measures all-reduce bandwidth by message size over the ranks of a run, started and supervised like any other run.

What is measured, and how, is `dsnb.train.bandwidth`'s; it is kept beside a sweep's experiments and is none of them.
"""

from pathlib import Path

from dsnb import paths, records
from dsnb.errors import LaunchError, SettingsError
from dsnb.experiment import Experiment
from dsnb.launcher.folder import next_run
from dsnb.launcher.outcome import Result
from dsnb.launcher.run import launch
from dsnb.paths import BANDWIDTH, RunPaths, SweepPaths

WORKER = "dsnb.train.bandwidth"
LEAST_BYTES = 8
MOST_BYTES = {"cuda": 256 * 2**20, "cpu": 16 * 2**20}
"""The largest message by default. nccl-tests' usual call is `all_reduce_perf -b 8 -e 256M -f 2`."""
LARGEST_BYTES = 16 * 2**30
"""The largest message that may be asked for."""
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
        However it ended; `dsnb.bandwidth.load_bandwidth` reads the figures.

    Raises
    ------
    SettingsError
        If there is one rank only, or the largest message is none.
    LaunchError
        If the ranks could not even be started.
    """
    if experiment.gpus < 2:
        raise SettingsError(f"gpus is {experiment.gpus}: an all-reduce needs two ranks at least; give 2 or more")
    sizes = message_sizes(MOST_BYTES[experiment.device] if most_bytes is None else most_bytes)
    run = RunPaths(next_run(SweepPaths(Path(folder or paths.outputs_root())), BANDWIDTH))
    try:
        records.write_json(run.bandwidth_plan, {"sizes_bytes": sizes})
    except OSError as error:
        raise LaunchError(f"{run.dir} cannot be written: {error.strerror}; choose another --output") from error
    return launch(experiment, run.dir, progress=False, worker=WORKER)


def message_sizes(most_bytes: int) -> list[int]:
    """Give the powers of two from 8 bytes up to the largest message.

    Raises
    ------
    SettingsError
        If none fits in, or the largest is beyond reason.
    """
    if not LEAST_BYTES <= most_bytes <= LARGEST_BYTES:
        raise SettingsError(f"most_bytes is {most_bytes}: give a number from {LEAST_BYTES} to {LARGEST_BYTES}")
    return [2**power for power in range(LEAST_BYTES.bit_length() - 1, most_bytes.bit_length())]
