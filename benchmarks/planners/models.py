"""Parameters of the models of the rows: `models.csv`, written by `python -m benchmarks.planners models`.

Planners then need neither torch nor transformers for them.
"""

import csv
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.outside import rows

TABLE = Path(__file__).with_name("models.csv")


class ModelSize(NamedTuple):
    """Numbers of parameters of a model; tied ones count once."""

    parameters: int
    without_head: int
    """Of the model without its output layer, transformers' `AutoModel`."""
    largest_layer: int
    """The most parameters that one module holds itself."""


@cache
def table() -> Mapping[str, ModelSize]:
    """Return the sizes of all models, by the names of their configurations."""
    found = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            sizes = [int(line[name]) for name in ModelSize._fields]
            found[line["model"]] = ModelSize(*sizes)
    return found


def size(name: str) -> ModelSize:
    """Return the size of a model; raise ValueError if it is not in the table."""
    known = table()
    if name not in known:
        raise ValueError(
            f"model {name!r} is not in {TABLE.name}: run `python -m benchmarks.planners models`"
        )
    return known[name]


def count(config: Mapping[str, Any]) -> ModelSize:
    """Return the size of a model of transformers, built without memory."""
    import torch  # takes seconds
    import transformers

    known = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(known)
        without_head = transformers.AutoModel.from_config(known)
    largest = 0
    for module in whole.modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        largest = max(largest, own)
    return ModelSize(_parameters(whole), _parameters(without_head), largest)


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def write() -> None:
    """Count the models that lie beside the rows, and write their table."""
    lines = []
    for file in sorted((rows.HERE / "models").glob("*.json")):
        counted = count(json.loads(file.read_text(encoding="utf-8")))
        lines.append([file.stem, *counted])
    with TABLE.open("w", encoding="utf-8", newline="") as table_file:
        writer = csv.writer(table_file, lineterminator="\n")
        writer.writerow(["model", *ModelSize._fields])
        writer.writerows(lines)
