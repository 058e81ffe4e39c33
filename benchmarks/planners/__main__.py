"""Score planners on the published rows of `benchmarks/outside`: `python -m benchmarks.planners`.

`predict NAME...` writes the predictions of planners anew; some need what their `command` installs.
`models` counts the parameters of the models beside the rows. `--rows FILE.json` takes other rows,
with `--folder FOLDER` for their predictions.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.outside.rows import ROWS
from benchmarks.planners import models, question, registry, report


def main() -> None:
    """Print the scores, or write predictions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planners", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["score", "predict", "models"], default="score")
    parser.add_argument("names", nargs="*", help="planners to predict with")
    parser.add_argument("--rows", type=Path, default=ROWS, metavar="FILE.json")
    parser.add_argument("--folder", type=Path, default=registry.PREDICTIONS)
    given = parser.parse_args()
    if given.what == "models":
        models.write()
        return
    try:
        questions = question.read(given.rows)
        planners = [registry.find(name) for name in given.names]
    except ValueError as error:
        sys.exit(str(error))
    if given.what == "score":
        print("\n".join(report.lines(questions, given.folder)))
        return
    if not planners:
        sys.exit(f"predict with which planner? Known are {', '.join(registry.PLANNERS)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    for planner in planners:
        file = given.folder / f"{planner.name}.csv"
        registry.write(questions, planner.answers(questions), file)
        print(f"{file}: {planner.title} {planner.version}")


if __name__ == "__main__":
    main()
