from pathlib import Path


def main(run_dir: str) -> int:
    """Write the UUID of the GPU that this rank works on."""
    import torch

    from dsnb.run_folder.paths import RunPaths
    from dsnb.settings.experiment import Experiment
    from dsnb.train.worker import rank, set_up

    run = RunPaths(Path(run_dir))
    device = set_up(Experiment.read(run.experiment))
    (run.dir / f"gpu{rank()}").write_text(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return 0
