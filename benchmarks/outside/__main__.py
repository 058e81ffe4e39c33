"""Print how wrong predictions are for published rows: `python -m benchmarks.outside [ROWS.json]`.

Another file of rows has the same form; its models may lie beside it. `--write FILE.csv` saves one
line for each measurement. `--fit` instead fits what GPUs reach of their data sheets to the rows,
and writes that to `dsnb/prediction/tuned.toml`; `--mark` writes into the file of rows which of them
decided a constant. Models are traced once, for a minute.
"""

import argparse
from pathlib import Path

from benchmarks.outside import fitting, marks, rows, summary

WRITTEN = ["source", "gpu", "nodes", "predicted", "measured", "ratio", "low", "high", "of_dsnb"]


def main() -> None:
    """Print the tables, and write the lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outside", description=__doc__)
    parser.add_argument("rows", nargs="?", type=Path, default=rows.ROWS)
    parser.add_argument("--write", type=Path, metavar="FILE.csv")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--mark", action="store_true")
    given = parser.parse_args()
    published = rows.read(given.rows)
    if given.fit:
        fitting.write(published)
        return
    if given.mark:
        marks.write(given.rows, published)
        return
    table = rows.predicted(published)
    for lines in (
        summary.speed_lines(summary.by_gpu(table), "GPU and place"),
        summary.speed_lines(summary.by_source(table), "source"),
        fitting.left_out_lines(published),
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
