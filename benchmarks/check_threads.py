"""Does `dsnb check` name what public threads established? `python -m benchmarks.check_threads [-v]`.

Each thread of `check_threads.toml` is asked as its author could have. A hit names an established
cause among the printed ones; a first hit names it first. Threads that were kept aside while causes
and words were made are counted separately.
"""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from dsnb.base.errors import SettingsError
from dsnb.cli import check as command
from dsnb.prediction.check import verdict as verdicts
from dsnb.prediction.check.claims import Claim

THREADS = Path(__file__).with_suffix(".toml")


def threads() -> list[dict[str, Any]]:
    """Return all threads."""
    found: list[dict[str, Any]] = tomllib.loads(THREADS.read_text(encoding="utf-8"))["threads"]
    return found


def claim_of(arguments: list[str]) -> Claim:
    """Return the claim that the command line makes of arguments."""
    app = typer.Typer()
    app.command()(command.check)
    with mock.patch.object(command, "print_verdict") as printed:
        app(arguments, standalone_mode=False)
    claim: Claim = printed.call_args.args[0]
    return claim


def answer(thread: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the causes that are named for a thread, and the printed lines."""
    try:
        verdict = verdicts.check(claim_of(thread["arguments"]))
    except SettingsError as error:
        return [], [str(error)]
    causes = verdict.causes
    if verdict.kind == "normal":
        causes = ["normal", *causes]
        if "peak" in causes:  # said first
            causes = ["peak", *causes]
    return list(dict.fromkeys(causes)), list(verdict.lines)


def main() -> None:
    """Print hits by thread, and the counts of both halves."""
    verbose = "-v" in sys.argv
    counts = {False: [0, 0, 0], True: [0, 0, 0]}
    for thread in threads():
        named, lines = answer(thread)
        hits = [cause for cause in named if cause in thread["causes"]]
        is_first = bool(hits) and named[0] == hits[0]
        word = "no"
        if hits:
            word = "named"
        if is_first:
            word = "first"
        count = counts[thread["kept"]]
        count[0] += 1
        count[1] += bool(hits)
        count[2] += is_first
        half = "kept" if thread["kept"] else "made"
        project = "/".join(thread["url"].split("/")[3:])
        print(f"{word:6} {half:5} {project}: {', '.join(thread['causes'])} <- {', '.join(named)}")
        if verbose:
            print("\n".join(f"         {line}" for line in lines))
    for kept, (total, named_count, first) in counts.items():
        half = "kept aside" if kept else "used to make it"
        print(f"{half}: {named_count} of {total} named, {first} first")


if __name__ == "__main__":
    main()
