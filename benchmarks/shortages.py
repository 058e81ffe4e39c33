"""Whether settings that ran out of memory, or took most of it, are predicted to fit: `python -m benchmarks.shortages`.

Every setting of `dsnb.published("h200")` and `("h100")` that ran out of a GPU's memory, or whose tensors took more than
85 % of what there is for them. Models that were not traced before are traced first, for a minute.
"""

from typing import Any

import dsnb
from dsnb.prediction import gpus
from dsnb.prediction.measured import recorded
from dsnb.prediction.memory import room

CLOSE = 0.85
HOST = "killed by the kernel"
"""What the cause of a run says if the host's memory ran out, which is not predicted."""


def is_close(row: dict[str, Any]) -> bool:
    """Return whether a run ran out of a GPU's memory or came close."""
    if row["status"] != "ok":
        return row["status"] == "oom" and HOST not in row["cause"]
    there_is = room(recorded(row), gpus.find(row["gpu_name"]).memory_gib).tensors_gib
    return bool(row["peak_allocated_gib"] > CLOSE * there_is)


def main() -> None:
    """Print each setting with its outcome and the prediction, and how many of both kinds are predicted right."""
    right: dict[str, list[bool]] = {"oom": [], "ok": []}
    for name in ("h200", "h100"):
        rows = [row for row in dsnb.published(name).drop_duplicates("experiment").to_dict("records") if is_close(row)]
        fits = dsnb.predict([recorded(row) for row in rows], rows[0]["gpu_name"])["fits"]
        for row, predicted in zip(rows, fits, strict=True):
            right[row["status"]].append(predicted == (row["status"] == "ok"))
            print(f"{name} {row['experiment']}: {row['status']}, predicted to {'fit' if predicted else 'run out'}")
    for status, found in right.items():
        print(f"{status}: {sum(found)} of {len(found)} predicted right")


if __name__ == "__main__":
    main()
