"""Print how wrong predictions are for published rows: `python -m benchmarks.outside [ROWS.json] [--write FILE.csv]`.

Another file of rows has the same form; its models may lie beside it. `--write` saves one line for
each measurement. Models are traced first, for some minutes.
"""

import argparse
from pathlib import Path

from benchmarks.outside import rows, summary

WRITTEN = ["source", "gpu", "nodes", "predicted", "measured", "ratio", "low", "high"]


def main() -> None:
    """Print the tables, and write the lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outside", description=__doc__)
    parser.add_argument("rows", nargs="?", type=Path, default=rows.ROWS)
    parser.add_argument("--write", type=Path, metavar="FILE.csv")
    given = parser.parse_args()
    table = rows.predicted(rows.read(given.rows))
    for lines in (
        summary.speed_lines(summary.by_gpu(table), "GPU and place"),
        summary.speed_lines(summary.by_source(table), "source"),
        summary.fit_lines(table),
        summary.memory_lines(summary.memory_errors(table)),
        summary.regret_lines(table),
        summary.problem_lines(table),
    ):
        print("\n".join(lines), end="\n\n")
    if given.write:
        summary.timed(table)[WRITTEN].to_csv(given.write, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
