"""Validate the contributed rows and compare them with predictions: `python -m benchmarks.contributed`.

Prints each problem and ends with 1 if there is one; otherwise prints a line for each setting, the
errors, and the GPUs whose rows constants may be fitted to. `--write` writes `schema.json` and the counts
of the card, and adds a changed schema to the changelog. `--own` prints instead how many of dsnb's own
runs would pass the checks. Models are traced once, for a minute.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.contributed import card, errors, fits, own, tree
from dsnb.base.files import json_files, plain_text
from dsnb.results.runs.labels import count


def write() -> None:
    """Write what follows from the columns and the rows."""
    json_files.write_bytes(tree.HERE / tree.SCHEMA, tree.schema_bytes())
    changes = tree.HERE / tree.CHANGES
    text = changes.read_text(encoding="utf-8")
    if tree.schema_digest() not in text:
        day = datetime.now(UTC).date().isoformat()
        entry = f"* {day}: schema `{tree.schema_digest()}`.\n"
        json_files.write_text(changes, text + entry)
    file = tree.HERE / tree.CARD
    updated = card.updated(file.read_text(encoding="utf-8"), tree.load())
    json_files.write_text(file, updated)


def lines(root: Path = tree.HERE) -> list[str]:
    """Return the comparison as lines of text."""
    rows = tree.load(root)
    compared = errors.compared(rows)
    folders = count(len(tree.folders(root)), "contribution")
    found = [f"{count(len(rows), 'row')} of {folders}"]
    for line in compared:
        if line.problem:
            found.append(f"{line.contribution}: {line.setting}: not predicted: {line.problem}")
            continue
        place = "within" if line.in_range else "outside"
        found.append(
            f"{line.contribution}: {line.setting} on {line.gpu}, n = {line.runs}: "
            f"{line.tokens_per_s:,.0f} tokens/s, predicted {line.predicted_tokens_per_s:,.0f} "
            f"({line.speed_error_pct:+.1f} %, {place} the range); {line.peak_gib:.1f} GiB, predicted "
            f"{line.predicted_peak_gib:.1f} ({line.memory_error_pct:+.1f} %)"
        )
    of_speed = errors.speed_error(compared)
    if of_speed:
        found.append(
            f"step times: {of_speed.mean_pct} % off on average, {of_speed.worst_pct} % at worst, "
            f"{count(of_speed.settings, 'setting')}"
        )
        found.append(f"peak memory: {errors.memory_error_pct(compared):.1f} % off on average")
    fitted = sorted(set(fits.for_fits(rows)["gpu_name"]))
    found.append(
        f"GPUs with {fits.MIN_HOSTS} hosts or more, for fits: {', '.join(fitted) or 'none'}"
    )
    return found


def main() -> int:
    """Print problems or the comparison; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contributed", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--own", action="store_true")
    given = parser.parse_args()
    if given.own:
        print("\n".join(own.lines()))
        return 0
    if given.write:
        write()
    problems = tree.tree_problems()
    for line in problems or lines():
        print(plain_text.line(line))
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
