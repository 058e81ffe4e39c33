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
    table = pd.DataFrame(record["rows"], columns=["part", "what", "value", "unit"])
    usual = pd.DataFrame(probed.REFERENCE["rows"]).set_index(["part", "what"])["value"]
    places = pd.MultiIndex.from_frame(table[["part", "what"]])
    table.insert(3, "usual", usual.reindex(places).to_numpy())
    table = table.set_index("part")
    texts = table[["value", "usual"]].map("{:,.4g}".format).replace("nan", "")
    show(table, table.assign(**texts), format_)
    for part, why in record["missing"].items():
        say(f"{part} left out: {why}", err=format_.is_data)
    if output:
        json_files.write_json(output, record)
    kept = "" if quick else probed.save(record)
    if kept:
        say(f"kept for predictions: {kept}", err=format_.is_data)
