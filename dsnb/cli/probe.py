"""`dsnb probe`: measures this machine, keeps the result for predictions, and prints it beside usual values."""

from pathlib import Path
from typing import Annotated, Any

from dsnb.cli.predict import TableFormat
from dsnb.cli.printing import Format, say, show
from dsnb.cli.sweep import option
from dsnb.errors import SettingsError
from dsnb.files import records

Device = Annotated[str, option("NAME", "cuda or cpu.", default="what this machine has")]


def probe(
    output: Annotated[Path | None, option("FILE", "JSON file to write as well.")] = None,
    device: Device = "",
    quick: Annotated[bool, option(None, "Take seconds instead of a minute: not accurate, and not kept.")] = False,
    format_: TableFormat = Format.table,
) -> None:
    """Measure what this machine reaches, for predictions: products, memory, links, and how fast it launches work."""
    from dsnb.launcher.probe import probe as measure
    from dsnb.prediction import probed

    if device not in {"", "cuda", "cpu"}:
        raise SettingsError(f"device is {device!r}: use cuda or cpu")
    record = measure(device, quick=quick)
    is_beside = format_ in {Format.csv, Format.json}
    table = tabulated(record, probed.REFERENCE)
    show(table, texts(table), format_)
    for part, why in record["missing"].items():
        say(f"{part} left out: {why}", err=is_beside)
    if output:
        records.write_json(output, record)
    if kept := None if quick else probed.save(record):
        say(f"kept for predictions: {kept}", err=is_beside)


def tabulated(record: dict[str, Any], reference: dict[str, Any]) -> Any:
    """Return the rows of a probe as a table, each beside the value of the reference, missing where it has none."""
    import pandas as pd

    usual = {(row["part"], row["what"]): row["value"] for row in reference["rows"]}
    rows = [
        {
            **{name: row[name] for name in ("part", "what", "value", "unit")},
            "usual": usual.get((row["part"], row["what"])),
        }
        for row in record["rows"]
    ]
    return (
        pd.DataFrame(rows, columns=["part", "what", "value", "usual", "unit"])
        .astype({"usual": float})
        .set_index("part")
    )


def texts(table: Any) -> Any:
    """Return the table in words, without the column of usual values if there are none."""
    shown = table.assign(
        **{name: [f"{value:,.4g}".replace("nan", "") for value in table[name]] for name in ("value", "usual")}
    )
    return shown if (shown["usual"] != "").any() else shown.drop(columns="usual")
