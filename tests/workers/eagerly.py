def main(run_dir: str) -> int:
    """Train without compiling anything, DeepSpeed's own functions included."""
    import torch

    from dsnb.train import worker

    torch.compiler.set_stance("force_eager")
    return worker.main(run_dir)
