import time
from pathlib import Path


def main(run_dir: str) -> int:
    """Sleep 0.2 s a step, and 0.6 s on rank 1, outside any collective; leave what the meters and their skew say."""
    import torch
    from torch import distributed

    from dsnb.files import records
    from dsnb.run_folder.paths import RunPaths
    from dsnb.settings.experiment import Experiment
    from dsnb.system import launch_clock
    from dsnb.train import over_ranks, worker
    from dsnb.train.meter import Meter

    run = RunPaths(Path(run_dir))
    experiment = Experiment.read(run.experiment)
    device = worker.set_up(experiment)
    rank, launched_at = worker.rank(), launch_clock.launched_at()
    meter = Meter(run.steps if rank == 0 else None, experiment.steps, 64, device, launched_at)
    meter.begin("timed", distributed.barrier)
    for _ in range(experiment.steps):
        time.sleep(0.6 if rank == 1 else 0.2)
        meter.step(torch.tensor(1.0), skipped=False)
    meter.end()
    meter.close()
    apart = over_ranks.skew_of_ranks(meter.times_s("timed"), meter.forwards_s("timed"), device)
    if rank == 0:
        records.write_json(run.worker, {**apart, "phases_s": {"timed": meter.wall_s["timed"]}})
    distributed.destroy_process_group()
    return 0
