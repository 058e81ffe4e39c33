from tests import workers


def main(run_dir: str) -> int:
    """Train for real, but let every gradient arrive as zero: as fast as a training, and none."""
    import torch

    def change(trainer):
        for parameter in trainer.module.parameters():
            parameter.register_hook(torch.zeros_like)

    return workers.train(run_dir, change)
