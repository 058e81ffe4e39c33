def main(run_dir: str) -> int:
    """Train a pipeline whose stages were never split, and expect another data-parallel rank."""
    from dsnb.train import model_parts, verify_engine, worker

    model_parts.split_stage = lambda *_: None
    verify_engine.data_rank = lambda *_: 1
    return worker.main(run_dir)
