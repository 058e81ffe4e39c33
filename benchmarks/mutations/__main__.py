"""Print the table of mutations, noticed or not."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.mutations import __doc__ as description
from benchmarks.mutations import listed, trials
from benchmarks.mutations.trials import Outcome


def main() -> int:
    """Try the selected mutations; return 1 if a test should have noticed one and none did."""
    arguments = _arguments()
    mutations = listed.selected(listed.read(), arguments.modules)
    wrong = [fault for mutation in mutations for fault in listed.faults(mutation)]
    if wrong or not mutations:
        print("\n".join(wrong) or f"no mutation is in {', '.join(arguments.modules)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutations", ignore_cleanup_errors=True) as home:
        trials.prepare(Path(home) / "log")
        folders = [Path(home) / str(number) for number in range(arguments.workers)]
        workers = [trials.Worker(listed.ROOT, folder) for folder in folders]
        outcomes = trials.try_mutations(mutations, workers, arguments.limit, _print_row)
    _print_rooms(outcomes)
    missed = [outcome for outcome in outcomes if outcome.verdict != trials.NOTICED]
    for outcome in missed:
        _print_missed(outcome)
    return int(bool(missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutations",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="a room, a folder or a file")
    parser.add_argument("--workers", type=int, default=2, help="mutations tried at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one mutation")
    return parser.parse_args()


def _print_row(outcome: Outcome) -> None:
    mutation = outcome.mutation
    start = f"{outcome.verdict:8} {outcome.seconds:6.1f} s  {mutation.room:10}"
    print(f"{start}  {mutation.holds}", flush=True)


def _print_rooms(outcomes: list[Outcome]) -> None:
    tried = Counter(outcome.mutation.room for outcome in outcomes)
    noticed = Counter(
        outcome.mutation.room for outcome in outcomes if outcome.verdict == trials.NOTICED
    )
    print()
    for room in sorted(tried):
        print(f"{room:10}  noticed {noticed[room]:3} of {tried[room]:3}")
    print(f"{'all':10}  noticed {noticed.total():3} of {tried.total():3}")


def _print_missed(outcome: Outcome) -> None:
    mutation = outcome.mutation
    print(f"\n{outcome.verdict}: {mutation.holds} ({outcome.reason})")
    print(f"  {mutation.file}\n- {mutation.old}\n+ {mutation.new}")


if __name__ == "__main__":
    sys.exit(main())
