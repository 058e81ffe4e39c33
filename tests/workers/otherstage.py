def main(run_dir: str) -> int:
    """Train with another ZeRO stage than the settings say."""
    import deepspeed

    from dsnb.train import worker

    initialize = deepspeed.initialize
    other = {"zero_optimization": {"stage": 2}}
    deepspeed.initialize = lambda *, config, **named: initialize(config={**config, **other}, **named)
    return worker.main(run_dir)
