"""A sweep's folder -> the executed report notebook -> one self-contained HTML file that works offline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.execute import notebook
from dsnb.prediction import gpus
from dsnb.prediction.predicted import check
from dsnb.results.runs.load import load_runs, no_runs_message
from dsnb.settings.records import paths
from dsnb.settings.records.paths import SweepPaths
from dsnb.show.explorer import page

NOTEBOOK = "90_report"


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    compare_with: str | Path | None = None,
    predict: str | Path | Sequence[str | Path] = (),
    link: str = "nvlink",
) -> Path:
    """Execute the report notebook on a sweep's folder and write the HTML page.

    Parameters
    ----------
    folder
        The sweep's folder, for example `outputs/quickstart`.
    output
        The HTML file, by default `report.html` in the folder. The executed notebook, `report.html.ipynb`, is beside it.
    compare_with
        A folder of earlier runs; the report then has a section on what changed since, setting by setting.
    predict
        Params files whose settings are predicted if they were not run, and shown as hollow marks; the folder of a
        sweep means its params file, so `predict=folder` predicts its remaining settings. Models are traced with
        torch, which takes seconds each, and cached for the user.
    link
        How the GPUs of these runs are connected, as `dsnb.predict` takes it: predictions for several nodes need a
        network.

    Returns
    -------
    pathlib.Path
        The HTML file.

    Raises
    ------
    SettingsError
        If a folder contains no run, a params file cannot be used, the link is unknown, or `predict` is given but no run
        was on a GPU that dsnb can predict for.
    LaunchError
        If the notebook failed, or the page cannot be written.

    Examples
    --------
    A report on a log of transformers' Trainer:

    >>> Path("logs").mkdir()
    >>> log = "{'train_runtime': 100, 'train_steps_per_second': 2.0, 'epoch': 1.0}"
    >>> _ = Path("logs/training.log").write_text(log)
    >>> dsnb.write_report("logs").name
    'report.html'
    """
    from papermill.exceptions import PapermillExecutionError

    gpus.link(link)
    sweep = SweepPaths(Path(folder).absolute())
    target = Path(output).absolute() if output else sweep.report
    parameters: dict[str, Any] = {
        "sweep_dir": str(sweep.dir),
        "page_dir": str(target.parent),
        "link": link,
    }
    runs = _runs(folder)
    if compare_with:
        _runs(compare_with)
        parameters["compare_dir"] = str(Path(compare_with).absolute())
    files = [predict] if isinstance(predict, str | Path) else predict
    if files:
        parameters["predict"] = [str(Path(file).absolute()) for file in files]
        check(runs, parameters["predict"], link)
    executed = target.with_name(f"{target.name}.ipynb")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        is_new = not target.exists()
        target.open("ab").close()  # before the notebook is executed, which takes seconds
        if is_new:
            target.unlink()
        notebook.execute(paths.notebook_template(NOTEBOOK), executed, parameters)
        content = nbformat.read(executed, as_version=4)
        json_files.write_text(target, page.of_notebook(content, sweep.dir.name))
    except PapermillExecutionError as error:
        raise LaunchError(
            f"{NOTEBOOK}.ipynb failed: {error.ename}: {error.evalue}; see {executed}"
        ) from error
    except OSError as error:
        raise LaunchError(
            f"{target} cannot be written: {error.strerror}; choose another --output"
        ) from error
    return target


def _runs(folder: str | Path) -> pd.DataFrame:
    """Return the runs of a folder, or raise SettingsError if it contains none."""
    runs = load_runs(folder)
    if runs.empty:
        raise SettingsError(no_runs_message(folder))
    return runs
