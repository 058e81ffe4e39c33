def main(run_dir: str) -> int:
    """Train with torch.compile switched off, also behind dsnb's back, as a plugin or a startup file may do."""
    import torch._dynamo

    from dsnb.train import worker

    torch._dynamo.config.disable = True
    return worker.main(run_dir)
