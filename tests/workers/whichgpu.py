from pathlib import Path


def main(run_dir: str) -> int:
    """Write the UUID of the GPU that this rank works on, and whether its allocator has expandable segments."""
    import torch

    from dsnb.run_folder.paths import RunPaths
    from dsnb.settings.experiment import Experiment
    from dsnb.train.worker import rank, set_up

    run = RunPaths(Path(run_dir))
    device = set_up(Experiment.read(run.experiment))
    torch.zeros(1, device=device)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    (run.dir / "expandable").write_text(str(settings["expandable_segments"]))
    (run.dir / f"gpu{rank()}").write_text(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return 0
