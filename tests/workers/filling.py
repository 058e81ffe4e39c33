import os
from pathlib import Path

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths


def main(run_dir: str) -> int:
    """As rank 0, write records until the disk is full."""
    while os.environ["RANK"] == "0":
        records.append_line(RunPaths(Path(run_dir)).steps, {"step": 1, "phase": "warmup", "filling": "x" * 100_000})
    return 0
