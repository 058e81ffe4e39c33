"""The name of every file that dsnb writes or looks for, and nothing else.

Nobody else joins strings to a path: a file that moves is moved here.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from dsnb.errors import SettingsError
from dsnb.files import plain_text

PACKAGE = Path(__file__).parents[1]
PROBE = "_probe-bs"
"""What stands in an experiment's name between that of the run that it is a probe for and its micro-batch."""
BANDWIDTH = "bandwidth"
"""The folder of all-reduce tests beside a sweep's experiments, none of which can have this name."""


@dataclass(frozen=True)
class _JobPaths:
    """The files of a job, which makes one run or a whole sweep."""

    dir: Path

    @property
    def job_log(self) -> Path:
        """What the job's own process said; the ranks' words are in each run's console."""
        return self.dir / "job.log"

    @property
    def slurm(self) -> Path:
        """Which Slurm job it is, written before it is waited for."""
        return self.dir / "slurm.json"

    @property
    def job_script(self) -> Path:
        """What was submitted to Slurm."""
        return self.dir / "job.sh"


@dataclass(frozen=True)
class RunPaths(_JobPaths):
    """The files of one run, `outputs/<sweep>/<experiment>/run<k>/`."""

    @property
    def experiment(self) -> Path:
        """The complete settings, written before the launch."""
        return self.dir / "experiment.json"

    @property
    def deepspeed(self) -> Path:
        """The configuration handed to DeepSpeed, to the letter."""
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
        """One JSON object per sample and GPU."""
        return self.dir / "gpu.jsonl"

    @property
    def console(self) -> Path:
        """All that the ranks printed."""
        return self.dir / "console.log"

    @property
    def worker(self) -> Path:
        """What rank 0 measured and what engine it really built; only of a run that reached its end."""
        return self.dir / "worker.json"

    @property
    def profile(self) -> Path:
        """Where the time of a step goes, with `profile: true`; written anew as parts of it are measured."""
        return self.dir / "profile.json"

    @property
    def trace(self) -> Path:
        """One step as torch's profiler saw it, for Perfetto or Chrome."""
        return self.dir / "trace.json.gz"

    @property
    def flops(self) -> Path:
        """What DeepSpeed's flops profiler says of one forward pass."""
        return self.dir / "flops.txt"

    @property
    def bandwidth_plan(self) -> Path:
        """What an all-reduce test is to measure, written before its launch: what has it is no training run."""
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
        """Written last and atomically: its presence means that the run is finished."""
        return self.dir / "result.json"

    @property
    def notebook(self) -> Path:
        """The notebook that papermill executed."""
        return self.dir / "run.ipynb"

    @property
    def nodes(self) -> Path:
        """What every host of a run was and how it ended; only of a run with a hostfile."""
        return self.dir / "nodes.json"

    @property
    def written_by_ranks(self) -> tuple[Path, ...]:
        """What is fetched from hosts that do not share this folder."""
        return self.steps, self.worker, self.failures, self.profile, self.trace, self.flops, self.bandwidth

    @property
    def repeat(self) -> int | None:
        """The k of `run<k>`, None for a folder of another name."""
        return repeat(self.dir.name)


@dataclass(frozen=True)
class SweepPaths(_JobPaths):
    """The files of one sweep, `outputs/<sweep>/`."""

    @property
    def params(self) -> Path:
        """The params file as it was run, with what `--set` changed."""
        return self.dir / "params.yaml"

    @property
    def lock(self) -> Path:
        """Held while a sweep writes here."""
        return self.dir / ".lock"

    @property
    def index(self) -> Path:
        """What its run folders say, for a quick first load; taken only while it fits them."""
        return self.dir / ".index.arrow"

    @property
    def report_notebook(self) -> Path:
        """The executed report notebook."""
        return self.dir / "report.ipynb"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.dir / "report.html"

    def run(self, experiment: str, repeat: int) -> RunPaths:
        """Give the folder of one run.

        Raises
        ------
        SettingsError
            If the name would lead out of the sweep's folder.
        """
        if not experiment or experiment in {".", ".."} or Path(experiment).name != experiment:
            raise SettingsError(f"experiment name {experiment!r} is not a plain folder name: leave out '/' and '..'")
        return RunPaths(self.dir / experiment / f"run{repeat}")


def require_plain_name(path: Path, option: str) -> Path:
    """Return a path to write to, if its name is one that scripts, notebooks and tables can hold.

    Raises
    ------
    SettingsError
        If it holds a control character, such as a new line, or bytes that are not UTF-8.
    """
    if not plain_text.is_name(str(path.absolute())):
        shown = ascii(str(path))[:200]
        raise SettingsError(f"{option} is {shown}: its name holds a control character or is not UTF-8; choose another")
    return path


def repeat(folder_name: str) -> int | None:
    """Give the k of `run<k>`, None for another name."""
    digits = folder_name.removeprefix("run")
    return int(digits) if digits.isdecimal() and len(digits) < 10 and folder_name != digits else None


def outputs_root() -> Path:
    """Give the folder of all outputs: `$DSNB_OUTPUTS`, or `outputs` beside the nearest `notebooks` folder."""
    if chosen := os.environ.get("DSNB_OUTPUTS"):
        return Path(chosen)
    here = Path.cwd()
    home = next((folder for folder in (here, *here.parents) if (folder / "notebooks").is_dir()), here)
    return home / "outputs"


def cache_home() -> Path | None:
    """Return the folder in which large tables are kept: `$DSNB_CACHE`, or the user's cache; None if there is none."""
    try:
        if (chosen := os.environ.get("DSNB_CACHE")) is not None:
            return None if chosen in {"", "off"} else Path(chosen).expanduser()
        folder = platformdirs.user_cache_path("dsnb", appauthor=False)
    except RuntimeError:  # no home, or `~` of an unknown user
        return None
    return folder if folder.is_absolute() else None  # some versions return `~` as it is instead of raising


def notebook_template(name: str) -> Path:
    """Give the path of one of dsnb's notebooks, in a checkout or an installed package."""
    candidates = [PACKAGE / "notebooks" / f"{name}.ipynb", PACKAGE.parent / "notebooks" / f"{name}.ipynb"]
    return next((path for path in candidates if path.is_file()), candidates[-1])


def literature(name: str) -> Path:
    """Give the path of a published table."""
    return PACKAGE / "runs" / "literature" / f"{name}.csv"


def web() -> Path:
    """Give the folder of the explorer's scripts and style."""
    return PACKAGE / "explorer" / "web"


def templates() -> Path:
    """Give the folder of the HTML templates."""
    return PACKAGE / "render" / "templates"
