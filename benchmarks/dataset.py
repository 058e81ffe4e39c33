"""Adds measured runs to `dsnb.published("h200")` or `("h100")`: `python -m benchmarks.dataset MACHINE FOLDER [NOTE]`.

MACHINE is a name for the host that the runs were made on, the same for all runs of one host,
because hosts of a cloud are all called alike: the data set, a hyphen, and more
(`h200-2026-11-23-d`). NOTE is added to the note of every run, such as what else ran beside it. Runs
of a setting that the data set holds already are further repeats of it. `outputs/examples/h200.html`
is written anew and the counts of both data sets are printed, also without arguments.
"""

import sys
from pathlib import Path

import pandas as pd

import dsnb
from dsnb.results.literature.tables import WITH_STEPS, steps_file
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.settings.records import paths
from dsnb.settings.records.columns import KEYS

PAGE_OF = "h200"
DIGITS = 6
PAGE = Path(__file__).parents[1] / "outputs" / "examples" / "h200.html"
LEFT_OUT = ("source", "run_dir", "provenance", "of_plain", "parallelism")
"""Columns that name the location of a run, or follow from the others."""


def with_repeats(published: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs whose repeats go on after those that are known of the same sweep and experiment."""
    setting = KEYS[:2]
    most = published.groupby(setting)["repeat"].max() if len(published) else pd.Series(dtype=int)
    before = [most.get(tuple(key), 0) for key in runs[setting].to_numpy()]
    return runs.assign(repeat=before + runs.groupby(setting).cumcount() + 1)


def noted(runs: pd.DataFrame, note: str) -> pd.Series:
    """Return the note of each run, with a further one."""
    return pd.Series(
        ["; ".join(filter(None, [before, note])) for before in runs["note"].fillna("")],
        index=runs.index,
    )


def add(machine: str, folder: Path, note: str = "") -> int:
    """Add the runs of a folder and their steps; return how many."""
    name = machine.partition("-")[0]
    if name not in WITH_STEPS:
        sys.exit(
            f"MACHINE is {machine!r}: begin it with the data set, {' or '.join(WITH_STEPS)}, and a hyphen"
        )
    files = paths.literature(name), steps_file(name)
    published, steps = (
        (pd.read_csv(files[0]), pd.read_parquet(files[1]))
        if files[0].exists()
        else (pd.DataFrame(),) * 2
    )
    measured = dsnb.load_runs(folder)
    measured = measured[measured["status"].isin(["ok", "oom"])]
    runs = with_repeats(published, measured).assign(host=machine, note=noted(measured, note))
    numbers = {
        tuple(old): new for old, new in zip(measured[KEYS].to_numpy(), runs["repeat"], strict=True)
    }
    new_steps = dsnb.load_steps(folder)
    new_steps = new_steps[[tuple(key) in numbers for key in new_steps[KEYS].to_numpy()]]
    new_steps = new_steps.assign(repeat=[numbers[tuple(key)] for key in new_steps[KEYS].to_numpy()])
    table = pd.concat([published, runs.drop(columns=list(LEFT_OUT))], ignore_index=True)
    table.dropna(axis=1, how="all").to_csv(files[0], index=False, float_format=f"%.{DIGITS}g")
    pd.concat([steps, new_steps.dropna(axis=1, how="all")], ignore_index=True).to_parquet(
        files[1], compression="zstd"
    )
    return len(runs)


def counts() -> list[str]:
    """Return the table of `dsnb/results/literature/README.md`: how much evidence each data set has."""
    rows = [
        f"| data set | runs | settings | with {MIN_RUNS} runs or more | hosts | on one GPU | timed seconds, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in WITH_STEPS:
        runs = dsnb.published(name)
        ok = runs[runs["status"] == "ok"]
        repeats = ok.groupby(["model", "experiment"])["repeat"].count()
        timed_s = (ok["timed_steps"] * ok["step_time_mean_s"]).median()
        rows.append(
            f"| `{name}` | {len(runs):,} | {len(repeats)} | {(repeats >= MIN_RUNS).sum()} "
            f"| {runs['host'].nunique()} | {(runs['gpus'] == 1).sum()} | {timed_s:.1f} |"
        )
    return rows


def write_page() -> Path:
    """Write the page of all runs."""
    runs = dsnb.published(PAGE_OF)
    return dsnb.explore(runs).save(
        PAGE, f"GPT-2, OPT, BLOOM and others on H200: {len(runs):,} runs"
    )


def main() -> None:
    """Add what the arguments name."""
    if sys.argv[1:]:
        machine, folder, *note = sys.argv[1:]
        print(f"{add(machine, Path(folder), *note)} runs added")
    print("\n".join([*counts(), str(write_page())]))


if __name__ == "__main__":
    main()
