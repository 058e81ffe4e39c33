"""`dsnb recommend --list`: the models and GPUs that predictions know by name."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from dsnb.cli.printing import Format, say, show


def print_known(asked: bool) -> None:
    """Print both tables and end the command, if they are asked for."""
    if not asked:
        return
    import pandas as pd

    for title, rows in {"Models": models(), "GPUs": gpus()}.items():
        table = pd.DataFrame(rows).set_index(title)
        show(table, table, Format.table)
        say("")
    say("A model may also be a config.json or its folder, a GPU a CSV file of its data sheet.")
    say(
        "TFLOP/s are dense ones in half precision, GB/s those of memory; links join GPUs of a node."
    )
    say("dsnb and others: settings measured with dsnb and with other programs, which tell ranges.")
    raise typer.Exit


def models() -> Sequence[Mapping[str, Any]]:
    """Return a row for each preset: parameters, family and name on the Hugging Face Hub."""
    from dsnb.base.formulas.model_shapes import PRESETS
    from dsnb.prediction.shapes import shape
    from dsnb.results.runs.number_text import amount

    rows = []
    for name, preset in PRESETS.items():
        model = shape(name)
        size = amount(float(f"{model.parameters:.3g}"))
        rows.append(
            {
                "Models": name,
                "parameters": size,
                "family": model.family,
                "on the Hugging Face Hub": preset.hub_id or "",
            }
        )
    return rows


def gpus() -> Sequence[Mapping[str, Any]]:
    """Return a row for each GPU of dsnb and of the user's file."""
    from dsnb.prediction.gpus import known
    from dsnb.prediction.nearest import runs

    by_dsnb = Counter(run.gpu for run in runs() if run.is_own)
    by_others = Counter(run.gpu for run in runs() if not run.is_own)
    rows = []
    for spec in known().values():
        link = "PCIe"
        if spec.nvlink_gb_per_s:
            link = f"{spec.nvlink_gb_per_s:.0f}"
        rows.append(
            {
                "GPUs": spec.name,
                "GiB": f"{spec.memory_gib:.1f}",
                "TFLOP/s": f"{spec.half_tflops:,.0f}",
                "GB/s": f"{spec.memory_gb_per_s:,.0f}",
                "links": link,
                "W": "" if spec.power_w is None else f"{spec.power_w:.0f}",
                "dsnb": by_dsnb[spec.name] or "",
                "others": by_others[spec.name] or "",
            }
        )
    return rows
