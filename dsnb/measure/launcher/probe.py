"""`dsnb probe` and `dsnb bandwidth`: measure GPUs, CPU and the links between ranks.

The ranks execute `dsnb.measure.train.probe`, launched like a run.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.measure.launcher import environment
from dsnb.measure.launcher.folder import create_run_dir
from dsnb.measure.launcher.run import launch
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths, record_schema
from dsnb.settings.records.paths import BANDWIDTH, RunPaths
from dsnb.settings.records.result import Result

WORKER = "dsnb.measure.train.probe"
MIN_BYTES, MAX_BYTES = 8, 16 * 2**30
"""Limits of the largest message of a bandwidth test."""
SETTINGS = {
    "gpus": "auto",
    "time_limit_s": 600.0,
    "precision": "fp32",
    "warmup_steps": 0,
    "steps": 1,
}
"""Settings in which a test differs from training."""
RECORDED = ("host", "cpu", "cores", "driver", "torch", "deepspeed", "dsnb", "date_utc")
LINKS = "links"


def measure_bandwidth(
    experiment: Experiment, folder: str | Path | None = None, *, most_bytes: int | None = None
) -> Result:
    """Measure collectives by message size over all ranks of an experiment.

    The records are written to `bandwidth/run<k>` in `folder`, the folder of a sweep, by default
    that of all outputs. `most_bytes` is the size of the largest message, by default 256 MiB on GPUs
    and 16 MiB on CPUs.
    """
    if experiment.gpus < 2:
        raise SettingsError(
            f"gpus is {experiment.gpus}: an all-reduce needs at least 2 ranks; set it to 2 or more"
        )
    if most_bytes is not None and not MIN_BYTES <= most_bytes <= MAX_BYTES:
        raise SettingsError(
            f"most_bytes is {most_bytes}: choose a number from {MIN_BYTES} to {MAX_BYTES}"
        )
    return _launch(experiment, folder or paths.outputs_root(), {"most_bytes": most_bytes})


def _launch(experiment: Experiment, folder: str | Path, plan: dict[str, Any]) -> Result:
    run = RunPaths(create_run_dir(Path(folder), BANDWIDTH))
    json_files.write_json(run.bandwidth_plan, plan)
    limit_s = max(
        experiment.step_timeout_s, experiment.time_limit_s
    )  # there are no steps to wait for
    experiment = experiment.model_copy(update={"step_timeout_s": limit_s})
    return launch(experiment, run.dir, progress=False, worker=WORKER)


def probe(device: str = "", *, quick: bool = False) -> dict[str, Any]:
    """Measure this machine and return the record: `figures` by name, `rows` of all parts, `missing` parts with reasons.

    A `quick` probe takes seconds and is not accurate. Raises LaunchError if the ranks fail.
    """
    settings = {**SETTINGS, "device": device or hardware.default_device()}
    with TemporaryDirectory(prefix="dsnb-probe-") as folder:
        result = _launch(Experiment(**{**settings, "gpus": 1}), folder, {"quick": quick})
        result.raise_for_status()
        machine, measured = (
            environment.describe(),
            json_files.read_json(RunPaths(result.run_dir).worker) or {},
        )
        record = (
            {name: machine[name] for name in RECORDED} | measured["versions"] | {"quick": quick}
        )
        record |= {name: measured[name] for name in ("gpu_name", "figures", "rows", "missing")}
        if settings["device"] == "cpu" or len(hardware.gpus()) < 2:
            record["missing"][LINKS] = "they need several GPUs"
            return record
        result = measure_bandwidth(
            Experiment(**settings), folder, most_bytes=2**16 if quick else None
        )
        if result.status != "ok":
            record["missing"][LINKS] = str(result.cause)
        for row in record_schema.read_lines(RunPaths(result.run_dir).bandwidth):
            what, rate = f"{row['collective']} of {row['bytes']:,} bytes", row["busbw_gb_per_s"]
            record["rows"].append({"part": LINKS, "what": what, "value": rate, "unit": "GB/s"})
            if row["collective"] == "all-reduce":
                record["figures"]["link_gb_per_s"] = rate  # the largest message is the last
    return record
