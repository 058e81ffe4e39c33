"""Measure the quickstart on this machine and keep it as the open example: `make example`, about four minutes.

What is kept under `outputs/examples/quickstart/`: the records of every run, the report, and two executed notebooks for
the documentation, whose output blocks then get the new figures. What would name this machine or its user is replaced,
and nothing else: `outputs/README.md` lists it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

from docs import code_blocks
from dsnb.measure.execute.notebook import execute

ROOT = Path(__file__).parents[1]
PARAMS = ROOT / "params" / "quickstart.yaml"
TARGET = ROOT / "outputs" / "examples" / "quickstart"
RECORDS = (
    "experiment.json",
    "deepspeed.json",
    "environment.json",
    "steps.jsonl",
    "worker.json",
    "result.json",
)
HOST = "example-host"
MAX_LINES = 10
"""Longer cells of parameters are folded in the documentation."""


def main() -> None:
    """Measure the example and render it; with the argument `render`, render what was measured before."""
    if sys.argv[1:] not in ([], ["render"]):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as home:
        if not sys.argv[1:]:
            measure(Path(home) / "quickstart")
        render(Path(home))
    code_blocks.main()


def measure(made: Path) -> None:
    """Run the sweep in a separate folder, and keep its records and the notebook of its first run."""
    dsnb("sweep", str(PARAMS), "--output", str(made))
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    keep_records(made)
    keep_notebook(sorted(made.glob("*/run1/run.ipynb"))[0], "one_run.ipynb", "outputs/quickstart")


def render(home: Path) -> None:
    """Write the report of the records that were kept, and execute the notebook that compares them."""
    dsnb("report", str(TARGET))
    (TARGET / "report.html.ipynb").unlink()
    execute(
        ROOT / "notebooks" / "20_compare.ipynb", home / "compare.ipynb", {"sweep_dir": str(TARGET)}
    )
    keep_notebook(home / "compare.ipynb", "compare.ipynb", "outputs/examples/quickstart")


def dsnb(*words: str) -> None:
    """Run one of dsnb's commands."""
    subprocess.run([sys.executable, "-m", "dsnb", *words], check=True, cwd=ROOT)


def keep_records(made: Path) -> None:
    """Copy the params file and the records of every run, without the names of host and kernel."""
    shutil.copyfile(made / "params.yaml", TARGET / "params.yaml")
    for run in sorted(made.glob("*/run*")):
        target = TARGET / run.relative_to(made)
        target.mkdir(parents=True)
        for name in RECORDS:
            shutil.copyfile(run / name, target / name)
        machine = json.loads((target / "environment.json").read_text())
        machine |= {"host": HOST, "os": machine["os"].partition("-")[0]}
        (target / "environment.json").write_text(json.dumps(machine, indent=1) + "\n")


def keep_notebook(path: Path, name: str, sweep: str) -> None:
    """Copy an executed notebook without metadata and explorer (the report has it); call its sweep's folder `sweep`."""
    notebook = nbformat.read(path, as_version=4)
    parameters = notebook.metadata["papermill"]["parameters"]
    private = parameters.get("sweep_dir") or str(Path(parameters["run_dir"]).parents[1])
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        folded = {"parameters", "injected-parameters"} & set(tags) and len(
            cell.source.splitlines()
        ) > MAX_LINES
        cell.metadata = {"tags": [*tags, *(["hide-input"] if folded else [])]}
        for output in cell.get("outputs", []):
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
                output.data = {"text/markdown": "*The explorer is in [the report](report.html).*"}
    (TARGET / name).write_text(nbformat.writes(notebook).replace(private, sweep) + "\n")


if __name__ == "__main__":
    main()
