"""`dsnb probe`: measures this machine, keeps the result for predictions, and prints it beside usual values."""

from pathlib import Path
from typing import Annotated

from dsnb.base.files import json_files
from dsnb.cli.predict import TableFormat
from dsnb.cli.printing import Format, say, show
from dsnb.cli.sweep import option


def probe(
    output: Annotated[Path | None, option("FILE", "JSON file to write as well.")] = None,
    quick: Annotated[
        bool, option("", "Finish in seconds; not accurate, and not kept.", "--quick")
    ] = False,
    format_: TableFormat = Format.table,
) -> None:
    """Measure this machine for predictions: matrix products, memory, links, and how fast it launches kernels."""
    import pandas as pd

    from dsnb.measure.launcher.probe import probe as measure
    from dsnb.prediction import probed

    record = measure(quick=quick)
    usual = {(row["part"], row["what"]): row["value"] for row in probed.REFERENCE["rows"]}
    rows = [
        {**row, "usual": usual.get((row["part"], row["what"]), float("nan"))}
        for row in record["rows"]
    ]
    table = pd.DataFrame(rows, columns=["part", "what", "value", "usual", "unit"]).set_index("part")
    numbers = {
        name: [f"{value:,.4g}".replace("nan", "") for value in table[name]]
        for name in ("value", "usual")
    }
    show(table, table.assign(**numbers), format_)
    is_beside = format_ in {Format.csv, Format.json}
    for part, why in record["missing"].items():
        say(f"{part} left out: {why}", err=is_beside)
    if output:
        json_files.write_json(output, record)
    if kept := None if quick else probed.save(record):
        say(f"kept for predictions: {kept}", err=is_beside)
