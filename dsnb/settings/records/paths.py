"""The path of every file that dsnb writes or reads; no other module builds paths from strings."""

import os
from dataclasses import dataclass
from pathlib import Path

from dsnb.base.errors import SettingsError

PACKAGE = Path(__file__).parents[2]
WEB = PACKAGE / "show" / "explorer" / "web"
TEMPLATES = PACKAGE / "show" / "render" / "templates"
START_README = PACKAGE / "cli" / "start_folder.md"
SHIPPED = PACKAGE if (PACKAGE / "notebooks").is_dir() else PACKAGE.parent
"""Folder of dsnb's own `notebooks` and `params`: inside an installed package, beside it in a checkout."""
PROBE = "_probe-bs"
"""Part of the name of a probe: earlier versions searched for the largest micro-batch that fits."""
MAX_NAME_BYTES = 255
"""Maximum length of a file's name on Linux and macOS."""
RUN_DIR = "DSNB_RUN_DIR"
"""Environment variable with the run folder of a script that dsnb has launched."""
BANDWIDTH = "bandwidth"
"""The folder of all-reduce tests in a sweep's folder; no experiment can have this name."""


class File:
    """A file of a folder, with the meaning of its content."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning = name, meaning

    def __get__(self, folder: "RunPaths | SweepPaths", owner: object = None) -> Path:
        return folder.dir / self.name


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, `outputs/<sweep>/<experiment>/run<k>/`."""

    dir: Path
    job_log = File(
        "job.log",
        "Output of the process that executed the notebook; the ranks write to the console log.",
    )
    slurm = File("slurm.json", "Record of the submitted Slurm job.")
    experiment = File("experiment.json", "The complete settings, written before the launch.")
    deepspeed = File("deepspeed.json", "The exact configuration that was passed to DeepSpeed.")
    deepspeed_auto = File(
        "deepspeed_auto.json",
        "The configuration for transformers' Trainer that a `command` asked for.",
    )
    accelerate = File(
        "accelerate.yaml", "The configuration for accelerate that a `command` asked for."
    )
    deepspeed_accelerate = File(
        "deepspeed_accelerate.json", "DeepSpeed's configuration that `accelerate.yaml` names."
    )
    hosts = File("hostfile", "The hosts of the run, for a `command` that asked for them.")
    environment = File("environment.json", "Host, hardware and versions.")
    steps = File("steps.jsonl", "One JSON object per optimizer step.")
    gpu = File("gpu.jsonl", "One JSON object per sample of a GPU.")
    console = File("console.log", "Output of the ranks.")
    worker = File(
        "worker.json", "Measurements of rank 0 and its engine; only of a run that reached its end."
    )
    observed = File(
        "observed.json",
        "The program and the settings that a recorded script showed, not those that were stated.",
    )
    model = File("model.json", "The configuration of a recorded script's model.")
    profile = File(
        "profile.json",
        "Times of the parts of a step, with `profile: true`; rewritten after each part.",
    )
    trace = File("trace.json.gz", "Trace of one step by torch's profiler, for Perfetto or Chrome.")
    bandwidth_plan = File(
        "bandwidth.json", "Settings of a bandwidth test; its folder is no training run."
    )
    bandwidth = File(
        "bandwidth.jsonl", "One JSON object per collective and message size of a bandwidth test."
    )
    failures = File("failures.jsonl", "One JSON object per rank that raised, the first one first.")
    result = File(
        "result.json", "Status and summary, written last and atomically: it marks a finished run."
    )
    notebook = File("run.ipynb", "The notebook that papermill executed.")
    nodes = File("nodes.json", "Environment and end of every host; only of a run with a hostfile.")

    @property
    def repeat(self) -> int | None:
        """The k of `run<k>`, None for another folder name."""
        return repeat(self.dir.name)


@dataclass(frozen=True)
class SweepPaths:
    """The files of one sweep, `outputs/<sweep>/`."""

    dir: Path
    params = File("params.yaml", "The params file after the changes of `--set`.")
    planned = File(
        "planned.json",
        "The runs that the last sweep here set out to make: the repeats of each experiment.",
    )
    lock = File(".lock", "Lock of the sweep that writes here.")
    report = File("report.html", "The report, one HTML file.")

    def run(self, experiment: str, repeat: int) -> RunPaths:
        """Return the paths of one run; a SettingsError refuses a name that is no folder's, or too long."""
        if not experiment or experiment in {".", ".."} or Path(experiment).name != experiment:
            raise SettingsError(
                f"experiment name {experiment!r} is not a plain folder name: leave out '/' and '..'"
            )
        for part in (*self.dir.parts, experiment):
            what = "folder name"
            advice = "shorten it"
            if part == experiment:
                what = "experiment name"
                advice = "set fewer settings to other values than their defaults"
            size = len(os.fsencode(part))
            if size > MAX_NAME_BYTES:
                raise SettingsError(
                    f"{what} {part[:40] + '...'!r} has {size} bytes: file systems allow {MAX_NAME_BYTES}; {advice}"
                )
        return RunPaths(self.dir / experiment / f"run{repeat}")


def repeat(folder_name: str) -> int | None:
    """Return the k of `run<k>`, None for another name."""
    digits = folder_name.removeprefix("run")
    if digits.isdecimal() and len(digits) < 10 and folder_name != digits:
        return int(digits)
    return None


def outputs_root() -> Path:
    """Return the folder of all outputs: `$DSNB_OUTPUTS`, or `outputs` beside the nearest `notebooks` folder."""
    return Path(os.environ.get("DSNB_OUTPUTS") or _home() / "outputs")


def params_root() -> Path:
    """Return the folder of params files: `params` beside the nearest `notebooks` folder."""
    return _home() / "params"


def _home() -> Path:
    here = Path.cwd()
    return next(
        (folder for folder in (here, *here.parents) if (folder / "notebooks").is_dir()), here
    )


def notebook_template(name: str) -> Path:
    """Return the path of one of dsnb's notebooks."""
    return SHIPPED / "notebooks" / f"{name}.ipynb"


def literature(name: str) -> Path:
    """Return the path of a published table."""
    return PACKAGE / "results" / "literature" / f"{name}.csv"
