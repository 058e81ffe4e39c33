"""Whether settings that ran out of memory, or took most of it, are predicted to fit: `python -m benchmarks.shortages`.

Every setting of `dsnb.published("h200")` and `("h100")` that ran out of a GPU's memory, or whose
tensors took more than 85 % of what there is for them. Models that were not traced before are traced
first, for a minute.

With torch's default allocator, a request can fail although enough memory is free, in pieces that
are too small. A run that ended so says nothing of what its tensors need; it is not counted, unless
it is predicted to run out anyway.
"""

from typing import Any

import dsnb
from dsnb.prediction import gpus, memory
from dsnb.settings.experiment import Experiment

CLOSE = 0.85
HOST = "killed by the kernel"
"""What the cause of a run says if the host's memory ran out, which is not predicted."""


def is_close(row: dict[str, Any]) -> bool:
    """Return whether a run ran out of a GPU's memory or came close."""
    if row["status"] != "ok":
        return row["status"] == "oom" and HOST not in row["cause"]
    return bool(row["peak_allocated_gib"] > CLOSE * room_gib(row))


def room_gib(row: dict[str, Any]) -> float:
    """Return what there was for the tensors of a run."""
    return memory.room_gib(Experiment.of_row(row), gpus.find(row["gpu_name"]).memory_gib)


def is_in_pieces(row: dict[str, Any]) -> bool:
    """Return whether the request that failed would have had enough memory, were it not in pieces."""
    in_pieces = row["status"] == "oom" and row["needed_gib"] <= room_gib(row)
    return bool(in_pieces and row.get("allocator", "default") != "expandable")


def main() -> None:
    """Print each setting with its outcome and the prediction, and how many of both kinds are predicted right."""
    right: dict[str, list[bool]] = {"oom": [], "ok": []}
    for name in ("h200", "h100"):
        runs = dsnb.published(name).drop_duplicates(["sweep", "experiment"])
        rows = [row for row in runs.to_dict("records") if is_close(row)]
        table = dsnb.predict([Experiment.of_row(row) for row in rows], rows[0]["gpu_name"])
        for row, predicted, gib in zip(
            rows, table["fits"], table["peak_allocated_gib"], strict=True
        ):
            words = f"{name} {row['experiment']}: {row['status']}, predicted to {'fit' if predicted else 'run out'}"
            print(f"{words}: {gib:.2f} of {room_gib(row):.2f} GiB")
            if predicted and is_in_pieces(row):
                free = room_gib(row) - row["oom_allocated_gib"]
                print(
                    f"  not counted: asked for {row['oom_requested_gib']:.2f} GiB with {free:.2f} free, in pieces"
                )
                continue
            right[row["status"]].append(predicted == (row["status"] == "ok"))
    for status, are_right in right.items():
        print(f"{status}: {sum(are_right)} of {len(are_right)} predicted right")


if __name__ == "__main__":
    main()
