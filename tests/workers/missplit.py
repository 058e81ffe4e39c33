def main(run_dir: str) -> int:
    """Train a pipeline of another ZeRO stage whose stages were never split, and expect another data-parallel rank."""
    import deepspeed

    from dsnb.train import engine, model_parts, worker

    model_parts.split_stage = lambda *_: None
    engine.data_rank = lambda *_: 1
    initialize, other = deepspeed.initialize, {"zero_optimization": {"stage": 1}}
    deepspeed.initialize = lambda *, config, **named: initialize(config={**config, **other}, **named)
    return worker.main(run_dir)
