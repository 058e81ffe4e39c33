"""`dsnb init`: a folder with dsnb's notebooks and params files, for an installation without a checkout."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dsnb.cli.printing import say
from dsnb.errors import SettingsError
from dsnb.run_folder.paths import SHIPPED, START_README


def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write to.")] = Path()) -> None:
    """Write notebooks, params files and a README to start from; no file is ever overwritten."""
    sources = {folder / "README.md": START_README}
    for path in sorted([*SHIPPED.glob("notebooks/*.ipynb"), *SHIPPED.glob("params/*.yaml")]):
        sources[folder / path.relative_to(SHIPPED)] = path
    if existing := [path for path in sources if path.exists() or path.is_symlink()]:
        more = f" and {len(existing) - 1} more" if existing[1:] else ""
        raise SettingsError(f"{existing[0]}{more} would be overwritten, so nothing was written: name another folder")
    for target, source in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(source.read_bytes())
    say(f"{folder.absolute()}: notebooks, params and README.md, which says how to begin")
    for purpose, library, extra in (("to train", "torch", "train"), ("for JupyterLab", "jupyterlab", "lab")):
        if not find_spec(library):
            say(f"{purpose}: pip install 'dsnb[{extra}]'")
