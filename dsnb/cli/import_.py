"""`dsnb import`: another program's configuration as a params file."""

from pathlib import Path
from typing import Annotated

import typer

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.cli.printing import say, say_line
from dsnb.cli.sweep import option, parse_overrides
from dsnb.settings.exchange import importing
from dsnb.settings.exchange.imported import Imported


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Configuration, or a training's folder.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PARAMS", help="Params file to write.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None, option("MODEL", "The model, which such files often leave out.")
    ] = None,
    set_: Annotated[
        list[str] | None, option("KEY=VALUE", "A setting that the file leaves open.", "--set")
    ] = None,
) -> None:
    """Make a params file of a configuration of DeepSpeed, accelerate, the Trainer, axolotl or LLaMA-Factory."""
    if not source.exists():
        raise SettingsError(f"{str(source)!r} is missing: name a file or a folder")
    if output and output.exists():
        raise SettingsError(f"{output} exists: name another file")
    given = parse_overrides(set_ or [])
    if model:
        given["model"] = model
    found = importing.read(source, given)
    name = source.stem if source.is_file() else source.resolve().name
    text = importing.params_text(found, importing.sweep_name(name), source.name)
    if output is None:
        say(text.rstrip("\n"))
        return
    json_files.write_text(output, text)
    _print(found)
    say_line(f"{output}: check it with `dsnb sweep {output} --dry-run`")


def _print(found: Imported) -> None:
    """Print what became of every key."""
    for setting, value in found.ordered().items():
        say_line(f"{setting}: {value}  (from {found.sources[setting]})")
    for title, entries in (("left open", found.left_open), ("left out", found.dropped)):
        for key, why in entries.items():
            say_line(f"{title}: {key}: {why}")
