from pathlib import Path


def main(run_dir: str) -> int:
    """Write whether torch's allocator of this rank's GPU has expandable segments."""
    import torch

    from dsnb.run_folder.paths import RunPaths
    from dsnb.settings.experiment import Experiment
    from dsnb.train.worker import set_up

    run = RunPaths(Path(run_dir))
    torch.zeros(1, device=set_up(Experiment.read(run.experiment)))
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    (run.dir / "expandable").write_text(str(settings["expandable_segments"]))
    return 0
