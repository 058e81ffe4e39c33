import os
from pathlib import Path

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths


def main(run_dir: str) -> int:
    """Fail as a rank of a training does: with a record of why."""
    rank = int(os.environ["RANK"])
    records.append_line(RunPaths(Path(run_dir)).failures, {"rank": rank, "status": "failed", "cause": f"no {rank}"})
    return 1
