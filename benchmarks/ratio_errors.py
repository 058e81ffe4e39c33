"""Errors of predicted ratios of two settings: `python -m benchmarks.ratio_errors` prints and writes both tables.

The first is of `dsnb.published("h200")`: each step time is predicted with constants fitted to all
other models, and pairs of settings of one task that ran on one host are compared. The second is of
the published tables of other GPUs, predicted with the constants of H200.
`dsnb/prediction/tuned.toml` holds both.
"""

import dsnb
from benchmarks import prediction_errors, tuning
from dsnb.prediction.calibration import Measured, left_out, measured
from dsnb.prediction.ratio_errors import RatioError, by_limit, of_hosts


def h200() -> dict[str, RatioError]:
    """Return the errors on the data set of H200, one model left out."""
    runs, hosts = of_hosts(prediction_errors.steady())
    return by_limit(runs, left_out(runs, prediction_errors.PRIOR), hosts)


def elsewhere() -> dict[str, RatioError]:
    """Return the errors on the published tables of other GPUs; the runs of one table count as those of one host."""
    runs: list[Measured] = []
    hosts: list[int] = []
    for place, (name, link) in enumerate(prediction_errors.PUBLISHED.items()):
        rows = measured(dsnb.published(name), link)
        runs += rows
        hosts += [place] * len(rows)
    return by_limit(runs, prediction_errors.errors_of(runs), hosts)


def lines(errors: dict[str, RatioError]) -> list[str]:
    """Return the rows of docs/explanation/prediction.md."""
    return [
        f"| {name} | {error.pairs} | {error.mean_pct:.1f} | {error.worst_pct:.1f} |"
        for name, error in errors.items()
    ]


def main() -> None:
    """Print both tables as the documentation has them, and write them."""
    for table, errors in {"ratios": h200(), "ratios_elsewhere": elsewhere()}.items():
        print("\n".join(lines(errors)))
        tuning.write_rows(f"errors.{table}", errors)


if __name__ == "__main__":
    main()
