"""One run of `benchmarks.trainers` with the settings that dsnb recommends, by its own launcher."""

import tempfile
from pathlib import Path

from benchmarks.trainers import (
    LIMIT_S,
    Record,
    Run,
    first_and_mean,
    make_rank,
    recommendation,
)
from dsnb.measure.launcher.run import launch
from dsnb.results.runs.load import load_steps

MARGIN_S = 15.0
"""A run is ended this long before it would be killed, to say why."""
FIGURES = ("tokens_per_s", "peak_allocated_gib", "peak_reserved_gib")


def main(run: Run) -> Record:
    """Train with the recommended settings."""
    limit = {"time_limit_s": LIMIT_S - MARGIN_S}
    experiment = recommendation(run).model_copy(update=limit)
    with tempfile.TemporaryDirectory() as folder:
        result = launch(experiment, Path(folder) / "run1", progress=False)
        record: Record = {"status": result.status, "settings": experiment.name}
        if result.status != "ok":
            return {**record, "cause": result.cause}
        losses = list(load_steps(result.run_dir)["loss"])
    figures = {name: result.summary.get(name) for name in FIGURES}
    step_s = experiment.tokens_per_step / result.summary["tokens_per_s"]
    return {**record, **figures, "step_s": step_s, **first_and_mean(losses)}


if __name__ == "__main__":
    make_rank(main)
