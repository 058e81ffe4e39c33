"""A sweep's folder -> the executed report notebook -> one HTML file that opens anywhere, without kernel or network."""

from pathlib import Path
from typing import Any

import nbformat

from dsnb import notebooks, pages, paths, records
from dsnb.errors import LaunchError, SettingsError
from dsnb.explorer import page
from dsnb.paths import SweepPaths
from dsnb.places import no_run
from dsnb.runs import load_runs

NOTEBOOK = "90_report"


def write_report(folder: str | Path, output: str | Path | None = None) -> Path:
    """Execute the report notebook over a sweep's folder and write the page.

    Parameters
    ----------
    folder
        The sweep's folder, for example `outputs/quickstart`.
    output
        The HTML file, by default `report.html` in the folder.

    Returns
    -------
    pathlib.Path
        The HTML file.

    Raises
    ------
    SettingsError
        If the folder holds no run.
    LaunchError
        If the notebook failed.
    """
    sweep = SweepPaths(Path(folder).absolute())
    if load_runs(sweep.dir).empty:
        raise SettingsError(no_run(folder))
    target = Path(output).absolute() if output else sweep.report
    parameters = {"sweep_dir": str(sweep.dir), "page_dir": str(target.parent)}
    execute(paths.notebook_template(NOTEBOOK), sweep.report_notebook, parameters)
    content = nbformat.read(sweep.report_notebook, as_version=4)
    try:
        records.write_text(target, pages.to_html(content, page.resources(sweep.dir.name)))
    except OSError as error:
        raise LaunchError(f"{target} cannot be written: {error.strerror}; choose another --output") from error
    return target


def execute(template: Path, target: Path, parameters: dict[str, Any]) -> None:
    """Execute a notebook of dsnb's into `target`.

    Raises
    ------
    LaunchError
        With the failing cell's error in one line.
    """
    from papermill.exceptions import PapermillExecutionError

    try:
        notebooks.execute(template, target, parameters)
    except PapermillExecutionError as error:
        raise LaunchError(f"{template.name} failed: {error.ename}: {error.evalue}; see {target}") from error
    except OSError as error:
        raise LaunchError(f"{target} cannot be written: {error.strerror}") from error
