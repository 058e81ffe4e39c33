"""The path of every file that dsnb writes or reads; no other module builds paths from strings."""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from dsnb.errors import SettingsError
from dsnb.files import plain_text

PACKAGE = Path(__file__).parents[1]
PROBE = "_probe-bs"
"""Part of a probe's experiment name, between the name of the probed experiment and the micro-batch size."""
BANDWIDTH = "bandwidth"
"""The folder of all-reduce tests in a sweep's folder; no experiment can have this name."""


@dataclass(frozen=True)
class _JobPaths:
    """The files of a job, which executes one run or a whole sweep."""

    dir: Path

    @property
    def job_log(self) -> Path:
        """Output of the job's own process; the output of the ranks is in each run's console log."""
        return self.dir / "job.log"

    @property
    def slurm(self) -> Path:
        """Record of the submitted Slurm job."""
        return self.dir / "slurm.json"


@dataclass(frozen=True)
class RunPaths(_JobPaths):
    """The files of one run, `outputs/<sweep>/<experiment>/run<k>/`."""

    @property
    def experiment(self) -> Path:
        """The complete settings, written before the launch."""
        return self.dir / "experiment.json"

    @property
    def deepspeed(self) -> Path:
        """The exact configuration that was passed to DeepSpeed."""
        return self.dir / "deepspeed.json"

    @property
    def environment(self) -> Path:
        """Host, hardware and versions."""
        return self.dir / "environment.json"

    @property
    def steps(self) -> Path:
        """One JSON object per optimizer step."""
        return self.dir / "steps.jsonl"

    @property
    def gpu(self) -> Path:
        """One JSON object per sample of a GPU."""
        return self.dir / "gpu.jsonl"

    @property
    def console(self) -> Path:
        """Output of the ranks."""
        return self.dir / "console.log"

    @property
    def worker(self) -> Path:
        """Measurements of rank 0 and the engine that it built; only of a run that reached its end."""
        return self.dir / "worker.json"

    @property
    def profile(self) -> Path:
        """Times of the parts of a step, with `profile: true`; rewritten after each part."""
        return self.dir / "profile.json"

    @property
    def trace(self) -> Path:
        """Trace of one step by torch's profiler, for Perfetto or Chrome."""
        return self.dir / "trace.json.gz"

    @property
    def flops(self) -> Path:
        """Report of DeepSpeed's flops profiler about one forward pass."""
        return self.dir / "flops.txt"

    @property
    def bandwidth_plan(self) -> Path:
        """Settings of an all-reduce test, written before its launch; a folder with this file is no training run."""
        return self.dir / "bandwidth.json"

    @property
    def bandwidth(self) -> Path:
        """One JSON object per message size of an all-reduce test."""
        return self.dir / "bandwidth.jsonl"

    @property
    def failures(self) -> Path:
        """One JSON object per rank that raised, the first one first."""
        return self.dir / "failures.jsonl"

    @property
    def result(self) -> Path:
        """Status and summary, written last and atomically: it marks a finished run."""
        return self.dir / "result.json"

    @property
    def notebook(self) -> Path:
        """The notebook that papermill executed."""
        return self.dir / "run.ipynb"

    @property
    def nodes(self) -> Path:
        """Environment and end of every host; only of a run with a hostfile."""
        return self.dir / "nodes.json"

    @property
    def repeat(self) -> int | None:
        """The k of `run<k>`, None for another folder name."""
        return repeat(self.dir.name)


@dataclass(frozen=True)
class SweepPaths(_JobPaths):
    """The files of one sweep, `outputs/<sweep>/`."""

    @property
    def params(self) -> Path:
        """The params file after the changes of `--set`."""
        return self.dir / "params.yaml"

    @property
    def planned(self) -> Path:
        """The runs that the last sweep here set out to make: the repeats of each experiment."""
        return self.dir / "planned.json"

    @property
    def lock(self) -> Path:
        """Lock of the sweep that writes here."""
        return self.dir / ".lock"

    @property
    def report_notebook(self) -> Path:
        """The executed report notebook."""
        return self.dir / "report.ipynb"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.dir / "report.html"

    def run(self, experiment: str, repeat: int) -> RunPaths:
        """Return the paths of one run.

        Raises
        ------
        SettingsError
            If the name leads out of the sweep's folder.
        """
        if not experiment or experiment in {".", ".."} or Path(experiment).name != experiment:
            raise SettingsError(f"experiment name {experiment!r} is not a plain folder name: leave out '/' and '..'")
        return RunPaths(self.dir / experiment / f"run{repeat}")


def require_plain_name(path: Path, option: str) -> Path:
    """Return a path to write to, if scripts, notebooks and tables can contain its name.

    Raises
    ------
    SettingsError
        If it holds a control character, such as a new line, or bytes that are not UTF-8.
    """
    if not plain_text.is_name(str(path.absolute())):
        shown = ascii(str(path))[:200]
        raise SettingsError(f"{option} is {shown}: it contains a control character or is not UTF-8; choose another")
    return path


def repeat(folder_name: str) -> int | None:
    """Return the k of `run<k>`, None for another name."""
    digits = folder_name.removeprefix("run")
    return int(digits) if digits.isdecimal() and len(digits) < 10 and folder_name != digits else None


def outputs_root() -> Path:
    """Return the folder of all outputs: `$DSNB_OUTPUTS`, or `outputs` beside the nearest `notebooks` folder."""
    if chosen := os.environ.get("DSNB_OUTPUTS"):
        return Path(chosen)
    return _home() / "outputs"


def params_root() -> Path:
    """Return the folder of params files: `params` beside the nearest `notebooks` folder."""
    return _home() / "params"


def _home() -> Path:
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "notebooks").is_dir()), here)


def cache_home() -> Path | None:
    """Return the folder of the traces of models: `$DSNB_CACHE`, or the user's cache; None if there is none."""
    try:
        if (chosen := os.environ.get("DSNB_CACHE")) is not None:
            return None if chosen in {"", "off"} else Path(chosen).expanduser()
        folder = platformdirs.user_cache_path("dsnb", appauthor=False)
    except RuntimeError:  # no home, or `~` of an unknown user
        return None
    return folder if folder.is_absolute() else None  # some versions return `~` as it is instead of raising


def notebook_template(name: str) -> Path:
    """Return the path of one of dsnb's notebooks, in a checkout or an installed package."""
    candidates = [PACKAGE / "notebooks" / f"{name}.ipynb", PACKAGE.parent / "notebooks" / f"{name}.ipynb"]
    return next((path for path in candidates if path.is_file()), candidates[-1])


def literature(name: str) -> Path:
    """Return the path of a published table."""
    return PACKAGE / "runs" / "literature" / f"{name}.csv"


def web() -> Path:
    """Return the folder of the explorer's scripts and styles."""
    return PACKAGE / "explorer" / "web"


def templates() -> Path:
    """Return the folder of the HTML templates."""
    return PACKAGE / "render" / "templates"
