"""Compare versions of DeepSpeed by `benchmarks/versions.csv`: `python -m benchmarks.versions`.

Rows were measured by `benchmarks.versions_measure`; `--add DATE FOLDER ...` appends its results.
The logarithm of a speed is taken as the sum of the version's effect, the round's effect and noise,
separately for each setting and day. Noise is what these two leave, pooled over the versions, so
that three rounds of six versions leave ten degrees of freedom. Intervals are of 95 %, each alone;
Holm's correction covers all comparisons of a day, those of a version with itself included.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.results.statistics.intervals import MIN_RUNS, exceedance, quantile

TABLE = Path(__file__).with_name("versions.csv")
BASE = "0.16.9"
TWIN = f"{BASE} again"
"""The base under another name: a second set of processes, which differs by noise alone."""
FAST = "0.13.1"
"""The version that DeepSpeed issue 7499 calls fast."""
CLAIM = -0.10
"""What that issue says: with 0.15.4 to 0.16.9 ZeRO 3 is about 10 % slower than with 0.13.1."""
RELEVANCE = 0.02
CERTAINTY = 0.95
COLUMNS = [
    "measured",
    "setting",
    "arm",
    "version",
    "round",
    "position",
    "tokens_per_s",
    "steps",
    "seconds",
    "peak_gib",
    "left_gib",
    "first_loss",
    "warm_loss",
    "loss",
    "grad_norm",
    "built_s",
    "torch",
    "transformers",
    "python",
    "gpu",
    "lent",
    "error",
]


def row_of(result: dict[str, Any], day: str) -> dict[str, Any]:
    """Return the table's row of a result."""
    row = {name: result.get(name) for name in COLUMNS}
    losses = result.get("losses") or [None]
    before = result.get("before_gib") or 0.0
    peaks = [peak - before for peak in result.get("peaks_gib", []) if peak is not None]
    row["measured"] = day
    row["setting"] = result["name"]
    row["first_loss"] = losses[0]
    row["warm_loss"] = losses[-1]
    row["peak_gib"] = max(peaks, default=None)
    row["lent"] = " ".join(result.get("lent", []))
    if row["error"]:
        row["error"] = str(row["error"]).strip().splitlines()[-1][:200]
    return row


def read_results(folders: Sequence[Path], day: str) -> pd.DataFrame:
    """Return the rows that `benchmarks.versions_measure` left in folders."""
    rows = []
    for folder in folders:
        lines = (folder / "results.jsonl").read_text().splitlines()
        rows += [row_of(json.loads(line), day) for line in lines]
    return pd.DataFrame(rows, columns=COLUMNS)


def _coded(values: pd.Series) -> np.ndarray:
    """Return a column of ones and zeros for each value."""
    return pd.get_dummies(values).to_numpy(float)


def compared(rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """Compare the arms of one setting and day with a base.

    Parameters
    ----------
    rows : DataFrame
        One row for each `arm` and `round`, with `tokens_per_s`.
    base : str
        The arm that others are compared with.

    Returns
    -------
    DataFrame
        One row for each other arm: `change` (0.02 is 2 % faster), `low`, `high`, `p` of no change,
        the number of `rounds` of the arm, and the `noise`, the standard deviation of one run's
        logarithm; without noise to judge by, bounds and `p` are NaN.

    Notes
    -----
    Least squares of a randomized block design (Fisher 1935), also where some rounds lack an arm.
    """
    arms = sorted(rows["arm"].unique())
    design = np.hstack([_coded(rows["arm"]), _coded(rows["round"])])
    speeds = np.log(rows["tokens_per_s"].to_numpy(float))
    effects, _, rank, _ = np.linalg.lstsq(design, speeds, rcond=None)
    degrees = len(rows) - int(rank)
    residuals = speeds - design @ effects
    squares = np.linalg.pinv(design.T @ design)
    found = []
    for arm in arms:
        if arm == base or base not in arms:
            continue
        contrast = np.zeros(design.shape[1])
        contrast[arms.index(arm)] = 1.0
        contrast[arms.index(base)] = -1.0
        estimate = float(contrast @ effects)
        low = high = p = variance = math.nan
        if degrees > 0:
            variance = float(residuals @ residuals) / degrees
            error = math.sqrt(variance * float(contrast @ squares @ contrast))
            margin = quantile(1 - CERTAINTY, 2, degrees) / math.sqrt(2) * error
            low, high = estimate - margin, estimate + margin
            p = _p(estimate, error, degrees)
        found.append(
            {
                "arm": arm,
                "change": math.expm1(estimate),
                "low": math.expm1(low),
                "high": math.expm1(high),
                "p": p,
                "rounds": int((rows["arm"] == arm).sum()),
                "noise": math.sqrt(variance),
            }
        )
    return pd.DataFrame(found)


def _p(estimate: float, error: float, degrees: int) -> float:
    """Return the two-sided p value of a t test; the range of two groups is sqrt(2) |t|."""
    if estimate == 0:
        return 1.0
    if error == 0:
        return 0.0
    return exceedance(math.sqrt(2) * abs(estimate) / error, 2, degrees)


def rounds_needed(noise: float, half_width: float, arms: int) -> int:
    """Return how many rounds make an interval of a change this narrow."""
    rounds = 2
    while True:
        degrees = (arms - 1) * (rounds - 1)
        t = quantile(1 - CERTAINTY, 2, degrees) / math.sqrt(2)
        if t * noise * math.sqrt(2 / rounds) <= half_width:
            return rounds
        rounds += 1


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected for their number (Holm 1979); NaN stays and is not counted."""
    known = [place for place, value in enumerate(p) if not math.isnan(value)]
    corrected = [math.nan] * len(p)
    largest = 0.0
    for rank, place in enumerate(sorted(known, key=lambda place: p[place])):
        largest = max(largest, min(1.0, (len(known) - rank) * p[place]))
        corrected[place] = largest
    return corrected


def comparisons(table: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return all comparisons with a base, by day and setting, with Holm's `corrected` p of a day."""
    timed = table[table["tokens_per_s"] > 0]
    found = []
    for (day, setting), rows in timed.groupby(["measured", "setting"], sort=False):
        each = compared(rows, base)
        each.insert(0, "setting", setting)
        each.insert(0, "measured", day)
        found.append(each)
    if not found:
        return pd.DataFrame()
    whole = pd.concat(found, ignore_index=True)
    by_day = whole.groupby("measured")["p"]
    whole["corrected"] = by_day.transform(lambda p: holm(p.tolist()))
    whole["verdict"] = [verdict(row) for _, row in whole.iterrows()]
    return whole


def verdict(row: pd.Series) -> str:
    """Say what a comparison shows."""
    if math.isnan(row["p"]) or row["rounds"] < MIN_RUNS:
        return "too few rounds"
    if row["corrected"] < 1 - CERTAINTY:
        return "faster" if row["change"] > 0 else "slower"
    if max(abs(row["low"]), abs(row["high"])) <= RELEVANCE:
        return "no larger difference"
    return "unclear"


def claim_verdict(low: float, high: float, rounds: int) -> str:
    """Say whether an interval of a change lies nearer to the claim than to no change."""
    if math.isnan(low) or rounds < MIN_RUNS:
        return "too few rounds"
    if high <= CLAIM / 2:
        return "confirmed"
    if low >= CLAIM / 2:
        return "refuted"
    return "unclear"


def change_text(row: pd.Series) -> str:
    """Return a change with its interval in per cent."""
    change = f"{100 * row['change']:+.1f}"
    if math.isnan(row["low"]):
        return f"{change} (n = {int(row['rounds'])})"
    text = f"{change} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    is_certain = row["verdict"] in ("faster", "slower")
    return f"**{text}**" if is_certain else text


def setting_text(name: str) -> str:
    """Describe a setting of `benchmarks.versions_worker`."""
    from benchmarks.versions_worker import SETTINGS

    models = {"gpt2": "GPT-2 124M", "llama-374m": "Llama 374M", "llama-1.3b": "Llama 1.3B"}
    setting = SETTINGS[name]
    text = (
        f"ZeRO {setting.stage}, {models[setting.model]}, {setting.micro_batch} x {setting.seq_len}"
    )
    if setting.accumulated > 1:
        text += f", {setting.accumulated} accumulated"
    if setting.recomputed:
        text += ", checkpointing"
    return f"{text}, {setting.gpus} GPU{'s' if setting.gpus > 1 else ''}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _arms(table: pd.DataFrame) -> list[str]:
    """Return the arms, oldest version first, the twin last."""
    arms = [arm for arm in table["arm"].unique() if arm != TWIN]
    arms.sort(key=lambda arm: [int(part) for part in arm.split(".")])
    return [*arms, TWIN] if (table["arm"] == TWIN).any() else arms


def speed_lines(table: pd.DataFrame) -> list[str]:
    """Return the changes of one day relative to the base, per cent, as a table of Markdown."""
    found = comparisons(table, BASE).set_index(["setting", "arm"])
    others = [arm for arm in _arms(table) if arm != BASE]
    rows = []
    for name in table["setting"].unique():
        base = table[(table["setting"] == name) & (table["arm"] == BASE)]["tokens_per_s"].dropna()
        if base.empty:
            continue
        middle = math.exp(np.log(base).mean())
        noise = found.loc[name]["noise"].iloc[0] if name in found.index else math.nan
        noise_text = "" if math.isnan(noise) else f"{100 * noise:.1f}"
        cells = [setting_text(name), f"{middle:,.0f}", str(len(base)), noise_text]
        for arm in others:
            known = (name, arm) in found.index
            cells.append(change_text(found.loc[name, arm]) if known else "did not run")
        rows.append(cells)
    header = ["per cent", f"{BASE}, tokens/s", "n", "noise", *others]
    return _markdown(header, rows)


def claim_lines(table: pd.DataFrame) -> list[str]:
    """Return the base's changes of one day relative to the version that the issue calls fast."""
    found = comparisons(table, FAST)
    rows = []
    for _, row in found[found["arm"] == BASE].iterrows():
        says = claim_verdict(row["low"], row["high"], row["rounds"])
        rows.append([setting_text(row["setting"]), str(row["rounds"]), change_text(row), says])
    return _markdown(["setting", "n", f"{BASE} against {FAST}, per cent", "10 % slower"], rows)


def _row_of_arms(table: pd.DataFrame, column: str, digits: int) -> list[list[str]]:
    """Return the medians of a column, a row for each setting and a cell for each arm."""
    rows = []
    for name in table["setting"].unique():
        own = table[table["setting"] == name].groupby("arm")[column].median()
        medians = [own.get(arm, math.nan) for arm in _arms(table)[:-1]]
        cells = ["" if math.isnan(value) else f"{value:,.{digits}f}" for value in medians]
        rows.append([setting_text(name), *cells])
    return rows


def norm_lines(table: pd.DataFrame) -> list[str]:
    """Return the first gradient norm that each version reports."""
    header = ["gradient norm of the first step", *_arms(table)[:-1]]
    return _markdown(header, _row_of_arms(table, "grad_norm", 3))


def memory_lines(table: pd.DataFrame) -> list[str]:
    """Return the peak memory of each version, less what was allocated before the setting."""
    return _markdown(["peak GiB", *_arms(table)[:-1]], _row_of_arms(table, "peak_gib", 2))


def loss_lines(table: pd.DataFrame) -> list[str]:
    """Return the loss of the last step of the warm-up."""
    return _markdown(
        ["loss after the warm-up", *_arms(table)[:-1]], _row_of_arms(table, "warm_loss", 3)
    )


def noise_line(table: pd.DataFrame) -> str:
    """Say how the comparisons of the base with itself came out."""
    found = comparisons(table, BASE)
    twins = found[(found["arm"] == TWIN) & found["p"].notna()]
    alarms = int((twins["corrected"] < 1 - CERTAINTY).sum())
    alone = int((twins["p"] < 1 - CERTAINTY).sum())
    widest = 100 * twins["change"].abs().max()
    return (
        f"{BASE} against itself: {alarms} of {len(twins)} settings differ after Holm's correction, "
        f"{alone} before; the largest change is {widest:.1f} %."
    )


LINES = {
    "speed": speed_lines,
    "claim": claim_lines,
    "norm": norm_lines,
    "loss": loss_lines,
    "memory": memory_lines,
}


def lines(kind: str, day: str) -> list[str]:
    """Return one of the tables of a day."""
    table = pd.read_csv(TABLE)
    return LINES[kind](table[table["measured"] == day])


def main() -> None:
    """Append results, or print the tables of each day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", metavar="DATE", help="the day on which the results were measured")
    parser.add_argument("folders", nargs="*", type=Path, help="with --add: folders of results")
    args = parser.parse_args()
    if args.add:
        new = read_results(args.folders, args.add)
        old = [pd.read_csv(TABLE)] if TABLE.exists() else []
        pd.concat([*old, new]).to_csv(TABLE, index=False, float_format="%.6g")
        return
    for day, table in pd.read_csv(TABLE).groupby("measured"):
        print(f"# {day}\n")
        for kind in LINES:
            print("\n".join(lines(kind, str(day))), end="\n\n")
        print(noise_line(table), end="\n\n")


if __name__ == "__main__":
    main()
