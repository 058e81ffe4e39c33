"""How wrong predicted host memory is.

`python -m benchmarks.host_memory` prints the errors and writes them to
`dsnb/prediction/tuned.toml`.

No figure of a run with offload went into the rules, which are read in the code of DeepSpeed and
torch. The one constant, the memory of a rank's process, is the median of runs without offload.
"""

import math
from typing import Any

import dsnb
from benchmarks import tuning
from dsnb.prediction import gpus, host_memory
from dsnb.prediction.accuracy import PredictionError, host_kind
from dsnb.settings.experiment import Experiment

TABLES = ("h200", "h100", "h200_memory")
OF_A_RANK = {"h200_memory"}
"""Tables whose `host_memory_gib` is that of one rank: they were measured before it was summed over
a host."""


def errors() -> dict[str, PredictionError]:
    """Return the errors of settings with and without offload: each counts once, with the median of its runs."""
    found: dict[str, list[float]] = {"with offload": [], "without offload": []}
    for name in TABLES:
        runs = dsnb.published(name)
        runs = runs[(runs["status"] == "ok") & (runs["host_memory_gib"] > 0)]
        for _, group in runs.groupby(["model", "experiment"]):
            kind, error_pct = _error(
                group.iloc[0].to_dict(), group["host_memory_gib"].median(), name in OF_A_RANK
            )
            found[kind].append(error_pct)
    return {kind: PredictionError.of(of_kind) for kind, of_kind in found.items()}


def _error(row: dict[str, Any], measured_gib: float, is_of_rank: bool) -> tuple[str, float]:
    experiment = Experiment.of_row(row)
    of_node = host_memory.of_node(experiment, gpus.link())
    predicted_gib = host_memory.of_rank(experiment).gib if is_of_rank else of_node
    return host_kind(experiment), 100 * (predicted_gib / measured_gib - 1)


def main() -> None:
    """Print the errors, and write them."""
    found = errors()
    print(*found.items(), sep="\n")
    assert not any(math.isnan(number) for error in found.values() for number in error)
    tuning.write_rows("errors.host", found)


if __name__ == "__main__":
    main()
