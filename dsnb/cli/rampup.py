"""`dsnb rampup`: the schedule of a batch-size ramp-up."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsnb.cli.printing import Format, show


def _option(help_: str, **more: Any) -> Any:
    return typer.Option(help=help_, **{"metavar": "NUMBER", "show_default": False, **more})


def _argument(name: str, help_: str) -> Any:
    return typer.Argument(metavar=name, help=help_, show_default=False)


def rampup(
    first: Annotated[
        int,
        _argument("FIRST", "Global batch size at the beginning, in sequences."),
    ],
    last: Annotated[int, _argument("LAST", "Global batch size after the ramp-up.")],
    gpus_per_node: Annotated[int, _option("GPUs per node; every node is used as a whole.")],
    micro_batch_size: Annotated[int | None, _option("Largest micro-batch that fits into memory.")] = None,
    replica_gpus: Annotated[int | None, _option("GPUs of a replica: tensor x pipeline.", show_default="1")] = None,
    runs: Annotated[
        Path | None,
        _option("Measured runs: largest micro-batch, GPUs of a replica, speed of each micro-batch.", metavar="FOLDER"),
    ] = None,
    max_nodes: Annotated[int | None, _option("Maximum number of nodes.")] = None,
    increment: Annotated[int | None, _option("Growth of the batch per stage; without it, the batch doubles.")] = None,
    least_efficiency: Annotated[
        float, _option("With --runs: throughput of a GPU at the first batch, relative to its best.", show_default=True)
    ] = 0.9,
    ramp_samples: Annotated[int | None, _option("Samples over which the batch grows.")] = None,
    seq_len: Annotated[int | None, _option("Tokens of a sequence, to print where stages end in tokens.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Format of the table.")] = Format.table,
) -> None:
    """Print nodes, micro-batch and gradient accumulation for every global batch size of a ramp-up.

    The first batch gets as many nodes as it can feed. Each later one first brings them to their best micro-batch, and
    then adds nodes.
    """
    from dsnb.analysis.rampup import rampup as schedule
    from dsnb.runs.load import load_runs

    table = schedule(
        first,
        last,
        gpus_per_node=gpus_per_node,
        micro_batch_size=micro_batch_size,
        replica_gpus=replica_gpus,
        runs=None if runs is None else load_runs(runs),
        max_nodes=max_nodes,
        increment=increment,
        least_efficiency=least_efficiency,
        ramp_samples=ramp_samples,
        seq_len=seq_len,
    ).set_index("nodes")
    show(table, _texts(table), format_)


def _texts(table: Any) -> Any:
    """Return the table as text, without columns of which nothing is known."""
    known = table.dropna(axis="columns", how="all").astype(object)
    forms = {name: "{:.1%}" if name == "efficiency" else "{:,}" for name in known}
    return known.apply(lambda column: column.map(forms[column.name].format, na_action="ignore")).fillna("")
