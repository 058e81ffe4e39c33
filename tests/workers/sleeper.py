import json
import os
import time
from pathlib import Path

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock

STEPS_S = [0.6, 0.32, 0.32, 0.64, 1.28]


def main(run_dir: str) -> int:
    """Sleep so long per step, through the real meter, and leave the record of a finished worker and process facts."""
    import torch

    from dsnb.train.meter import Meter

    began, rank, run = launch_clock.now_s(), os.environ["RANK"], RunPaths(Path(run_dir))
    print(f"rank {rank} was here")
    (run.dir / f"rank{rank}.json").write_text(json.dumps({"cwd": os.getcwd(), "group": os.getpgid(0)}))
    experiment = Experiment.read(run.experiment)
    launched_at = launch_clock.launched_at()
    path = run.steps if rank == "0" else None
    meter = Meter(path, len(STEPS_S), experiment.tokens_per_step, torch.device("cpu"), launched_at)
    for phase, part in (("warmup", STEPS_S[:1]), ("timed", STEPS_S[1:])):
        meter.begin(phase, lambda: None)
        for length_s in part:
            time.sleep(length_s)
            meter.step(torch.tensor(1.0), skipped=False)
        meter.end()
    meter.close()
    if rank == "0":
        phases = {"start": began - launched_at, "build": 0.0, **meter.wall_s}
        records.write_json(run.worker, {"phases_s": phases, "ended_s": launch_clock.since_launch_s()})
    return 0
