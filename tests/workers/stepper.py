import contextlib
import os
import time
from pathlib import Path

from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths


def main(run_dir: str) -> int:
    """Leave the records of a training without torch; wait where the test asks for it, after the first step.

    `$DSNB_TEST_WAIT` is a file: while it exists, runs of the seed that it names wait. `$DSNB_TEST_WAIT_AT_END` is
    another, for all runs, after their last record. `$DSNB_TEST_STEP_S` is the duration of a step, and
    `$DSNB_TEST_FILL` a file that fills the disk first.
    """
    run = RunPaths(Path(run_dir))
    experiment = Experiment.read(run.experiment)
    rank = os.environ["RANK"]
    print(f"rank {rank} é was here")
    wait = Path(os.environ.get("DSNB_TEST_WAIT", "none"))
    if fill := os.environ.get("DSNB_TEST_FILL"):
        with open(fill, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(2**16)):
                pass
    step_s = float(os.environ.get("DSNB_TEST_STEP_S", "0"))
    for number in range(1, experiment.warmup_steps + experiment.steps + 1):
        time.sleep(step_s)
        if rank == "0":
            phase = "warmup" if number <= experiment.warmup_steps else "timed"
            json_files.append_line(
                run.steps,
                {"step": number, "phase": phase, "loss": 1.0 / number, "step_time_s": 0.01},
            )
        # Tests wait for the file to appear, so it must appear whole.
        json_files.write_text(run.dir / f"pids{rank}", f"{os.getpid()} {os.getpid()}")
        while wait.is_file() and wait.read_text() == str(experiment.seed):
            time.sleep(0.05)
    if rank == "0":
        json_files.write_json(
            run.worker, {"phases_s": {}, "ended_s": launch_clock.since_launch_s()}
        )
    while Path(os.environ.get("DSNB_TEST_WAIT_AT_END", "none")).is_file():
        time.sleep(0.05)
    return 0
