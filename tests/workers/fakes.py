"""Workers that do one known thing. Each class is a module to the launcher: `tests.workers.NAME` has a `main`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock


def steps_of(run_dir: str, seconds: list[float]) -> int:
    """Sleep so long per step, through the real meter, and leave the record of a finished worker."""
    import torch

    from dsnb.train.meter import Meter

    began = launch_clock.now_s()
    run = RunPaths(Path(run_dir))
    experiment = Experiment.read(run.experiment)
    launched_at = launch_clock.launched_at()
    path = run.steps if os.environ["RANK"] == "0" else None
    meter = Meter(path, len(seconds), experiment.tokens_per_step, torch.device("cpu"), launched_at)
    for phase, part in (
        ("warmup", seconds[: experiment.warmup_steps]),
        ("timed", seconds[experiment.warmup_steps :]),
    ):
        meter.begin(phase, lambda: None)
        for length_s in part:
            time.sleep(length_s)
            meter.step(torch.tensor(1.0), skipped=False)
        meter.end()
    meter.close()
    if os.environ["RANK"] == "0":
        phases = {"start": began - launched_at, "build": 0.0, **meter.wall_s}
        record = {"phases_s": phases, "ended_s": launch_clock.since_launch_s()}
        records.write_json(run.worker, record)
    return 0


def write_environment(run_dir: str) -> int:
    """Write this rank's variables and process facts."""
    facts = {"env": dict(os.environ), "cwd": os.getcwd(), "argv0": sys.argv[0], "group": os.getpgid(0)}
    (Path(run_dir) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts))
    print(f"rank {os.environ['RANK']} was here")
    return 0


def hang_with_a_child(run_dir: str) -> int:
    """Write both process numbers, hold the master port, and wait for ever."""
    import socket

    child = subprocess.Popen(["sleep", "1000"])
    if os.environ["RANK"] == "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        listener = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        records.write_text(Path(run_dir) / "port", str(listener.getsockname()[1]))
    # Tests wait for the file to appear, so it must appear whole.
    records.write_text(Path(run_dir) / f"pids{os.environ['RANK']}", f"{os.getpid()} {child.pid}")
    if os.environ.get("DSNB_TEST_KILL_RANK") == os.environ["RANK"]:
        while len(list(Path(run_dir).glob("pids*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
    return 0
