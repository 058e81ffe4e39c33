from pathlib import Path

MIB = 2**20


def main(run_dir: str) -> int:
    """Take memory while building and less of it while training; leave the peaks before and after."""
    from torch import distributed

    from dsnb.files import records
    from dsnb.run_folder.paths import RunPaths
    from dsnb.settings.experiment import Experiment
    from dsnb.train import over_ranks, worker

    run = RunPaths(Path(run_dir))
    device = worker.set_up(Experiment.read(run.experiment))
    over_ranks.reset_host_peak()
    before = over_ranks.peaks_of_ranks({"peak_allocated_gib": 1.0 + worker.rank()}, device)
    building = b"\1" * (600 * MIB)
    del building
    over_ranks.reset_host_peak()
    training = b"\1" * ((100 + 100 * worker.rank()) * MIB)
    after = over_ranks.peaks_of_ranks({"peak_allocated_gib": 1.0 + worker.rank()}, device)
    assert training
    if worker.rank() == 0:
        records.write_lines(run.dir / "peaks.jsonl", [before, after])
    distributed.destroy_process_group()
    return 0
