"""Executed report notebook -> one HTML file that opens anywhere, with no kernel and no network."""

import warnings
from pathlib import Path
from typing import Any

import nbformat
from traitlets.config import Config

from dsnb import notebooks, paths, records
from dsnb.errors import LaunchError, SettingsError
from dsnb.paths import SweepPaths
from dsnb.runs import find_runs

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
    if not find_runs(sweep.dir):
        raise SettingsError(f"{str(folder)!r} holds no run: give the folder of a sweep, such as outputs/quickstart")
    execute(paths.notebook_template(NOTEBOOK), sweep.report_notebook, {"sweep_dir": str(sweep.dir)})
    target = Path(output) if output else sweep.report
    try:
        records.write_text(target, to_html(sweep.report_notebook, title=sweep.dir.name))
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


def to_html(notebook: Path, title: str) -> str:
    """Give an executed notebook as a page: words and outputs, no code, no script, nothing outside the file."""
    from nbconvert import HTMLExporter

    config = Config()
    config.TemplateExporter.extra_template_basedirs = [str(paths.templates())]
    config.HTMLExporter.embed_images = True
    exporter = HTMLExporter(config=config, template_name="report", exclude_input=True, exclude_input_prompt=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = nbformat.read(notebook, as_version=4)
        content.metadata.pop("widgets", None)
        page, _ = exporter.from_notebook_node(content, resources={"dsnb_title": title})
    return str(page)
