"""`dsnb contribute`: own runs as rows for the data set, checked and shown before anything is written."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsnb.base.errors import SettingsError
from dsnb.cli.predict import LinkName
from dsnb.cli.printing import say, say_line
from dsnb.cli.sweep import option

if TYPE_CHECKING:
    import pandas as pd

    from dsnb.results.contribution.package import Contribution

MAX_NUMBERS = 6
"""Different numbers of a column that are listed; of more, the lowest and the highest are."""


def contribute(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of runs.", show_default=False)
    ],
    contributor: Annotated[
        str, option("NAME", "Name of your account, which the data set names.", "--contributor")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="New folder to write the rows and their manifest to.",
            show_default=False,
        ),
    ] = None,
    link: LinkName = "nvlink",
    single: Annotated[
        bool,
        option("", "Accept settings with fewer than 4 runs or 10 s, and mark them.", "--single"),
    ] = False,
    project: Annotated[
        str | None,
        option("URL", "Repository to open an issue in.", default="that of this version"),
    ] = None,
) -> None:
    """Check runs, show everything that would leave this machine, and pack it for dsnb's data set."""
    from dsnb.prediction import gpus
    from dsnb.results.contribution import link as links
    from dsnb.results.contribution import package

    gpus.link(link)
    if output and output.exists():
        raise SettingsError(f"{output} exists: name a folder that does not")
    url = project or links.repository()
    if url:
        url = links.checked(url)
    found = package.of_folder(folder, contributor, link, single)
    _show(found)
    if output is None:
        say("Nothing is written yet. With --output FOLDER, these rows and the manifest are.")
        return
    found.write(output)
    say(
        f"{output}: send {package.ROWS} and {package.MANIFEST}; {package.READABLE} is for you to read"
    )
    if url:
        say("Open this link, attach a .zip of both files, and send the issue:")
        say(links.issue(url, found.manifest, found.rows))
    else:
        say("This version names no repository: --project URL prints the link that opens an issue.")


def _show(found: "Contribution") -> None:
    """Print every column with its values, what the manifest says, and what stays."""
    from dsnb.results.runs.labels import count

    table = found.table()
    hosts = count(found.manifest["hosts"], "host")
    say(f"Would leave this machine: {len(table)} rows of {len(table.columns)} columns, {hosts}")
    width = max(map(len, table.columns))
    for name in table.columns:
        say_line(f"  {name:{width}}  {values_text(table[name])}")
    say("and the manifest:")
    for name, value in found.manifest.items():
        say_line(f"  {name:{width}}  {_joined(value)}")
    say_line(f"Stays here: {', '.join(found.staying)}")
    for status, runs in found.left_out.items():
        say_line(f"Left out: {count(runs, 'run')} with the status {status}")


def values_text(values: "pd.Series[Any]") -> str:
    """Return all different texts of a column, or all different numbers; of many numbers, their range."""
    known = values.dropna()
    different = known.drop_duplicates().tolist()
    if known.dtype.kind in "if" and len(different) > MAX_NUMBERS:
        return f"{known.min():.6g} to {known.max():.6g} ({len(different)} different numbers)"
    if known.dtype.kind in "if":
        different = [f"{value:.6g}" for value in sorted(different)]
    text = ", ".join(map(str, different))
    missing = len(values) - len(known)
    if missing:
        return f"{text} (missing in {missing})"
    return text


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
