def main(run_dir: str) -> int:
    """Train a pipeline whose stages were never split."""
    from dsnb.train import model_parts, worker

    model_parts.split_stage = lambda *_: None
    return worker.main(run_dir)
